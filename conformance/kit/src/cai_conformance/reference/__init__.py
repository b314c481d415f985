"""A producer and a consumer of each protocol, in plain Python and ctypes, that every check passes."""
