"""What needs a GPU: `make gpu` runs it, and the tests run each part's logic on the simulated driver."""
