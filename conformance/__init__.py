"""Evidence for what the project claims: its tests, the matrix of libraries, the soak and the kit."""
