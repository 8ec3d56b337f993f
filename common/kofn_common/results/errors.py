"""The error of this package."""

from kofn_common.config.errors import KofnError


class ResultsError(KofnError):
    """A file of a run is missing or damaged; the message names it."""
