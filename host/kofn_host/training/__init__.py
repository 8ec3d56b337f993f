"""Data-parallel training of one worker."""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
