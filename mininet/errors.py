"""The one error class of this folder.  This module imports nothing."""


class NetworkError(Exception):
    """A network that cannot be built or changed; one line names the condition and the value found."""
