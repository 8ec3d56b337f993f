"""Errors of this package: one base class; the message says which file or address, what was expected, what to do."""


class RpcError(Exception):
    """Base of all errors of this package."""


class SecurityError(RpcError):
    """Certificates or tokens that cannot be made or used; the message names the file and what was expected."""
