"""Sizes in messages."""

LAGS = 16
"""The number of earlier iterations whose aggregates are multiplied with an iteration's own aggregate: a Report has a
product for each."""
