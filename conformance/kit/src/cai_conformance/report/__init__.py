"""Reports for people and machines: a table for the terminal, JUnit for CI, and one page of HTML."""
