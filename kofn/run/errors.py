"""Errors of this package: one base class; the message has the fault, the object, and the remedy."""

from kofn_common.config.errors import KofnError


class RunError(KofnError):
    """A run that cannot go on; the message is for the person at the terminal."""


class InterruptedRun(RunError):  # noqa: N818 - a request, not a mistake
    """Stopped by a signal; the message names it."""


class LeftoversError(RunError):
    """Parts of the run are still there; the message has the remedy."""
