"""Checks that an authority's certificate, another certificate and its key belong together and are valid today."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import AUTHORITY, REMAKE


def check_certificate(folder: Path, name: str, authority: bytes, certificate: bytes, key: bytes) -> None:
    """Check the PEM of ca.pem, NAME.pem and NAME.key. SecurityError names the file of `folder` that is wrong."""
    issuer, own = _parse(folder / AUTHORITY, authority), _parse(folder / f"{name}.pem", certificate)
    try:
        own.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise SecurityError(f"{folder / name}.pem is not signed by {AUTHORITY} beside it: {REMAKE}") from error
    now = datetime.datetime.now(datetime.UTC)
    for file, found in ((AUTHORITY, issuer), (f"{name}.pem", own)):
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            raise SecurityError(
                f"{folder / file} is valid from {found.not_valid_before_utc:%Y-%m-%d %H:%M} to "
                f"{found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, not now: {REMAKE}"
            )
    try:
        public = serialization.load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError) as error:
        raise SecurityError(f"{folder / name}.key holds no private key in PEM: {REMAKE}") from error
    if public != own.public_key():
        raise SecurityError(f"{folder / name}.key is not the key of {name}.pem beside it: {REMAKE}")


def _parse(path: Path, content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise SecurityError(f"{path} holds no certificate in PEM: {REMAKE}") from error
