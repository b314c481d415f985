"""The checks in these folders run on the simulator, each mode in a process of its own: see running.py."""

collect_ignore = ["model", "outsiders"]
