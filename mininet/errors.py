"""The one error class of this folder.  It must not know anything else."""


class NetworkError(Exception):
    """Something about the network that cannot be done: one line that says what, which, and what is allowed."""
