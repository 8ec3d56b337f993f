"""Schedules: the order of weight gradients, the pieces in which they leave, and what a forward pass waits for."""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
