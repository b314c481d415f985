"""Every installed producer handed to every installed consumer, as a table."""
