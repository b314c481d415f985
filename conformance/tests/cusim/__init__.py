"""Tests of the simulated driver itself."""
