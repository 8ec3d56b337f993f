"""Errors of this package: one base class; the message has the fault, the object, and the remedy."""

from kofn_common.config.errors import KofnError


class RunError(KofnError):
    """A run that cannot go on; the message is for the person at the terminal."""


class InterruptedRun(RunError):  # noqa: N818 - a request, not a mistake
    """A run that a signal has stopped; the message names the signal."""


class LeftoversError(RunError):
    """A run whose network could not be removed; the message has the remedy."""
