"""Requests that a target does not support."""


class Unsupported(Exception):  # noqa: N818 - says what happened
    """The target does not support a script's request."""


class NoRegisters(Unsupported):
    """The target can neither read nor write registers; the script's checks of registers are left out."""
