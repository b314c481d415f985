"""Engines that carry views between processes, in an environment of their own."""
