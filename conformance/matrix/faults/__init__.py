"""Tests what the bridge makes of faults of the libraries of the matrix, by the libraries themselves."""
