"""Judges producers and consumers: what a check is, what it is given, how it is run, and what comes out."""
