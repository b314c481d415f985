"""Checks shared by many tests: the layout by the specifications, and the form of a refusal."""
