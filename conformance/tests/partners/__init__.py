"""Tests of dtypes, copies and protocols that partner libraries use."""
