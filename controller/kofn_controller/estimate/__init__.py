"""Measurements of each worker, and the model of its first-block times."""
