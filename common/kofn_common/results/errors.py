"""The error of this package."""

from kofn.config.errors import KofnError


class ResultsError(KofnError):
    """A file of a run is missing or damaged; the message names it."""
