"""Sizes in messages."""

LAGS = 16
"""The number of earlier iterations for which a Report has the product of their aggregate with its own."""
