"""Tests of torch's CPU tensors, in torch's own environment."""
