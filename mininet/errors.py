"""The error class of this folder.  It must not import anything."""


class NetworkError(Exception):
    """A network cannot be built or changed; the message, one line, states the requirement and the finding."""
