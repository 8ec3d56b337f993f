"""The packet format."""
