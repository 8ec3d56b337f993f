"""A process's credentials, read from a folder of `kofn certs` and checked before use."""

import logging
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kofn_common.extras import remedy
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import AUTHORITY, REMAKE, token_name

_LOG = logging.getLogger(__name__)

TOKEN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The certificate and tokens that one process shows, and the authority that it accepts."""

    name: str
    authority: bytes  # PEM
    certificate: bytes  # PEM
    key: bytes = field(repr=False)  # PEM
    tokens: Mapping[int, str] = field(repr=False)
    """Tokens by job. A server accepts each of them; a client shows the first token, or none."""

    @classmethod
    def load(cls, folder: Path | None, name: str, jobs: Collection[int] = ()) -> Self | None:
        """Load `name`'s certificate and the tokens of these jobs (if `jobs` is empty, of all jobs in the folder).

        Without a folder, return None, which means plaintext. SecurityError names the file, and its expected content.
        """
        if folder is None:
            return None
        authority, certificate = _read(folder / AUTHORITY), _read(folder / f"{name}.pem")
        key = _read_secret(folder / f"{name}.key")
        _check(folder, name, authority, certificate, key)
        known = _jobs_in(folder)
        if unknown := sorted(set(jobs) - set(known)):
            listed = ", ".join(map(str, known))
            raise SecurityError(f"job {unknown[0]}: {folder} has tokens of job{'s' * (len(known) > 1)} {listed}")
        wanted = jobs or known
        tokens = {job: _token(folder / token_name(job)) for job in sorted(wanted)}
        return cls(name=name, authority=authority, certificate=certificate, key=key, tokens=tokens)


def _jobs_in(folder: Path) -> list[int]:
    """Return the jobs that have a token in the folder."""
    found = [re.fullmatch(r"job-(\d+)\.token", path.name) for path in folder.iterdir()]
    if jobs := [int(match[1]) for match in found if match]:
        return jobs
    raise SecurityError(f"{folder} has no job-JOB.token: {REMAKE} (--job JOB:WORKERS)")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError as error:
        raise SecurityError(f"{path} can be read only by its owner (root, for a run): sudo helps") from error
    except OSError as error:
        raise SecurityError(f"{path}: {error.strerror}: {REMAKE}") from error


def _read_secret(path: Path) -> bytes:
    """Return a file's content; warn when others can read it."""
    content = _read(path)
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        _LOG.warning("%s can be read by others (mode %04o): 0600 is expected", path, mode)
    return content


def _token(path: Path) -> str:
    text = _read_secret(path).decode(errors="replace").strip()
    if not TOKEN.fullmatch(text):
        raise SecurityError(f"{path} holds no token: 32 hexadecimal digits are expected; {REMAKE}")
    return text


def _check(folder: Path, name: str, authority: bytes, certificate: bytes, key: bytes) -> None:
    """Check the files, and name the wrong one; without the package cryptography nothing is checked: gRPC's handshake
    then fails, and names no file."""
    try:
        from kofn_common.rpc.certificate_check import check_certificate  # noqa: PLC0415  # needs kofn[certs]
    except ModuleNotFoundError as error:
        _LOG.info("%s.pem is not checked before its use: %s", folder / name, remedy(error))
    else:
        check_certificate(folder, name, authority, certificate, key)
