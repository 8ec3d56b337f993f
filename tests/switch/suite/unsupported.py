"""What a target cannot be asked."""


class Unsupported(Exception):  # noqa: N818 - says what happened
    """The target has no means for what a script asks of it."""


class NoRegisters(Unsupported):
    """It cannot read or write registers; what a script says of them is left out."""
