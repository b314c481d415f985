"""The conformance kit: its checks, its command, and what it says of libraries."""
