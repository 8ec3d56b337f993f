"""A run's TOML file: its tables as typed, checked values, their overrides, and the names that they may hold."""
