"""The reasons of failed TLS handshakes: gRPC reports them as UNAVAILABLE, as if no server were there."""

import grpc

_BROKEN_OFF = ("Socket closed", "reset by peer", "Broken pipe")
_WITH_CERTIFICATE = {
    "WRONG_VERSION_NUMBER": "it speaks without TLS, certificates are used here",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is of another authority than the one here",
    "ertificate has expired": "its certificate has expired",
    "Hostname Verification": "its certificate is some other process's",
    "andshake failed": "the TLS handshake failed",
}


def refused_handshake(error: grpc.aio.AioRpcError, *, secure: bool) -> str | None:
    """Return why the TLS handshake with the server failed; None for other errors.

    `secure`: whether this process used certificates.
    """
    details = error.details() or ""
    if error.code() is not grpc.StatusCode.UNAVAILABLE or not details.startswith("failed to connect"):
        return None
    broken_off = any(words in details for words in _BROKEN_OFF)
    if not secure:
        return "it wants a certificate, none is used here" if broken_off else None
    reasons = [reason for words, reason in _WITH_CERTIFICATE.items() if words in details]
    if reasons:
        return reasons[0]
    return "it does not accept the certificate that is used here" if broken_off else None
