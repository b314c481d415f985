"""DLPack's C structs, built and read by ctypes alone."""
