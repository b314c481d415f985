"""Libraries that take a view and ask for no stream, as they are installed: `make readers`."""
