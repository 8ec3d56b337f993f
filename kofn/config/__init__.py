"""A run's TOML file: its tables as typed, checked values, what overrides them, and the names that they may hold."""
