"""Test doubles of the libraries that produce and consume arrays."""
