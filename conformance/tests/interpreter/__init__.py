"""Kinds of CPython, and Python in a process of its own."""
