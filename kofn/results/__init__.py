"""The files of a run: where each one is, and what reads it back."""
