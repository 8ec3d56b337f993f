"""Identities on the management network: names of certificates, and the callers that show them.

A certificate's name is also the name of its file: `controller`, `operator` (commands), `job-1-worker-3`.
"""

import re
from typing import TypeAlias

CONTROLLER = "controller"
OPERATOR = "operator"
DOMAIN = "kofn"
SWITCH = "switch"
SWITCH_HOST = f"{SWITCH}.{DOMAIN}"
"""The name in the certificate of a switch's P4Runtime server."""
AUTHORITY = "ca.pem"
REMAKE = "`kofn certs DIR` makes a new folder"

Identity: TypeAlias = tuple[str] | tuple[str, int, int]
"""("controller",), ("operator",) or ("worker", job, rank)."""

_WORKER = re.compile(r"job-([1-9]\d{0,2})-worker-(0|[1-9]\d{0,3})")
_WORKER_HOST = re.compile(r"worker-(0|[1-9]\d{0,3})\.job-([1-9]\d{0,2})\." + DOMAIN)


def worker_name(job: int, rank: int) -> str:
    """Return the name of a worker's certificate."""
    return f"job-{job}-worker-{rank}"


def token_name(job: int) -> str:
    """Return the name of the file with a job's token."""
    return f"job-{job}.token"


def host_name(name: str) -> str:
    """Return the DNS name in the certificate: `worker-3.job-1.kofn`. Raise ValueError for other names."""
    if name in (CONTROLLER, OPERATOR, SWITCH):
        return f"{name}.{DOMAIN}"
    if found := _WORKER.fullmatch(name):
        return f"worker-{found[2]}.job-{found[1]}.{DOMAIN}"
    raise ValueError(
        f"{name!r}: {CONTROLLER!r}, {OPERATOR!r}, {SWITCH!r} and 'job-JOB-worker-RANK' are names of certificates"
    )


def identity(host: str) -> Identity | None:
    """Return the identity of a DNS name; None if the name has none."""
    if host in (f"{CONTROLLER}.{DOMAIN}", f"{OPERATOR}.{DOMAIN}"):
        return (host.partition(".")[0],)
    found = _WORKER_HOST.fullmatch(host)
    return ("worker", int(found[2]), int(found[1])) if found else None
