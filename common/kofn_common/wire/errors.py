"""Packets that are refused."""


class WireError(Exception):
    """A datagram is not a kofn packet of this version."""


class ChecksumError(WireError):
    """A kofn packet was damaged on its way."""
