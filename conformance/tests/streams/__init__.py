"""Tests of stream order, contexts and capture."""
