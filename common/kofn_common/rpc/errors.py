"""Errors of this package: one base class; the message has the file or address, the expected content, and the remedy."""


class RpcError(Exception):
    """Base of all errors of this package."""


class SecurityError(RpcError):
    """Certificates or tokens that cannot be made or used; the message names the file and the expected content."""
