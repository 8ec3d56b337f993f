"""Sizes in messages."""

LAGS = 16
"""Earlier iterations with whose aggregates a Report has products."""
