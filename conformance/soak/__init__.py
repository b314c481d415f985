"""Checks that take longer than a test run."""
