"""The driver's rules, checked in each mode of the simulator, in a process of its own."""
