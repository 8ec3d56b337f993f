"""Errors of this package: one base class; the message says what, which object, and what to do."""

from kofn.config.errors import KofnError


class RunError(KofnError):
    """A run that cannot go on; the message is for the person at the terminal."""


class InterruptedRun(RunError):  # noqa: N818 - not a mistake, somebody asked for it
    """Stopped by a signal; the message names it."""


class LeftoversError(RunError):
    """Something of the run is still there; the message says what to do."""
