"""Makes a folder of certificates and tokens: one authority, one certificate a process, one token a job.

The authority's key is never written, so it can sign no further certificate. The next run gets a new folder.
"""

import contextlib
import datetime
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import AUTHORITY, CONTROLLER, OPERATOR, SWITCH_HOST, host_name, token_name, worker_name

VALID = datetime.timedelta(days=30)
SKEW = datetime.timedelta(hours=1)  # the most by which clocks of several machines may differ

_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True, kw_only=True)
class _Authority:
    """The authority that signs; its key lives as long as this object."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make_certificates(folder: Path, jobs: Mapping[int, int]) -> list[str]:
    """Make `folder` with all files for these jobs (id -> number of workers), and return their names.

    The folder appears complete or not at all. Raises SecurityError when it holds files already or cannot be written.
    """
    authority = _authority()
    with _appearing(folder) as draft:
        _write(draft / AUTHORITY, _pem(authority.certificate), mode=0o644)
        _issue(draft, authority, CONTROLLER, [_SERVER], host_name(CONTROLLER))
        _issue(draft, authority, OPERATOR, [_CLIENT], host_name(OPERATOR))
        for job, workers in jobs.items():
            _write(draft / token_name(job), f"{secrets.token_hex(16)}\n".encode(), mode=0o600)
            for rank in range(workers):
                name = worker_name(job, rank)
                _issue(draft, authority, name, [_SERVER, _CLIENT], host_name(name))
    return sorted(path.name for path in folder.iterdir())


def make_bundle(folder: Path, machine: str, names: Collection[str], jobs: Collection[int]) -> Path:
    """Make folder/machines/MACHINE: copies of the files that a machine's processes of these names need."""
    bundle = folder / "machines" / machine
    _copy(folder, bundle, names, [token_name(job) for job in jobs])
    return bundle


def make_p4runtime_bundle(folder: Path, bundle: Path, names: Collection[str]) -> None:
    """Copy the server's or the client's files of `make_p4runtime_certificates`."""
    _copy(folder, bundle, names, [])


def _copy(folder: Path, bundle: Path, names: Collection[str], others: Collection[str]) -> None:
    with _appearing(bundle) as draft:
        for file in [AUTHORITY, *others, *(f"{name}.{end}" for name in names for end in ("pem", "key"))]:
            shutil.copy2(folder / file, draft / file)


def make_server_certificate(folder: Path, host: str) -> None:
    """Write ca.pem, server.pem and server.key for a server of this DNS name into an existing folder."""
    _make_server(folder, host)


def make_p4runtime_certificates(folder: Path) -> None:
    """Make files for the switch (ca.pem, server.pem, server.key) and its one client (client.pem, client.key).

    The files have their own authority: the switch accepts no worker's certificate.
    """
    with _appearing(folder) as draft:
        authority = _make_server(draft, SWITCH_HOST)
        _issue(draft, authority, "client", [_CLIENT], host_name(CONTROLLER))


def _make_server(folder: Path, host: str) -> _Authority:
    authority = _authority()
    _write(folder / AUTHORITY, _pem(authority.certificate), mode=0o644)
    _issue(folder, authority, "server", [_SERVER], host)
    return authority


@contextlib.contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` that takes its place at the end, or is removed when an error occurs."""
    try:
        if folder.exists() and any(folder.iterdir()):
            raise SecurityError(f"{folder} must be empty or not exist, got a folder with files")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))  # mode 0700
        try:
            yield draft
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft)
            raise
    except OSError as error:
        raise SecurityError(f"{folder}: cannot be made: {error.strerror}") from error


def _authority() -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kofn authority")])
    certificate = (
        _builder(name, key.public_key())
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(key=key, certificate=certificate)


def _issue(folder: Path, authority: _Authority, name: str, usages: list[x509.ObjectIdentifier], host: str) -> None:
    """Write a key and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.key.public_key()
    certificate = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key.public_key())
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(folder / f"{name}.key", private, mode=0o600)
    _write(folder / f"{name}.pem", _pem(certificate), mode=0o644)


def _builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the usage: an authority signs certificates, all others handshake."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write a new file that other users could not read at any moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
