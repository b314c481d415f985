"""Libraries of others that run unmodified on the simulator, each in a process of its own."""
