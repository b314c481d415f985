"""Tests of the Python package, of its Rust extensions and of the simulated driver."""
