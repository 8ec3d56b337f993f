"""A run: its configuration, its orchestration, its live table and its report."""
