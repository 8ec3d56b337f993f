"""Schedules: the order of weight gradients, the pieces in which they leave, and the waits of a forward pass."""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
