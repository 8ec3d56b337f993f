"""A whole worker: its place in a job, from its arguments or its environment, and its membership."""

from kofn_common.exports import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
