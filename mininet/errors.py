"""The one error class of this folder.  It must not know anything else."""


class NetworkError(Exception):
    """A network that cannot be built or changed; one line names the condition and the value found."""
