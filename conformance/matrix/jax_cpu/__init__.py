"""Tests with JAX's arrays of the CPU, run by `make conformance`: JAX is too large for `make test`."""
