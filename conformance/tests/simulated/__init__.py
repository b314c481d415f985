"""The simulated machine: memory, streams, the log of calls, graph capture."""
