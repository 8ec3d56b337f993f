"""The rendezvous, where workers on any hosts get configuration, controller, switch, certificate and token of their job.

A worker with KOFN_RENDEZVOUS, KOFN_RENDEZVOUS_KEY and a rank in its environment gets all other settings here, also
after a restart by torchrun.  The worker sends a line with its rank, and gets a Handout as JSON, encrypted with the key.
hand_out.py serves the workers.
"""

import atexit
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from kofn_common.numerals import is_numeral
from kofn_host.errors import PlaceError

RENDEZVOUS, KEY = "KOFN_RENDEZVOUS", "KOFN_RENDEZVOUS_KEY"

LIMIT_S, AGAIN_S = 60.0, 0.2
"""The limit for an answer of the rendezvous, and the pause between two requests."""

LINE_BYTES = 32
"""The most bytes of a request."""


class Handout(msgspec.Struct, frozen=True, kw_only=True):
    """Data for one worker; `environment`: for JobPlace.find(), `certificates`: the files of KOFN_CERTS, by name."""

    config: str
    environment: dict[str, str]
    certificates: dict[str, bytes]


class Rendezvous(ThreadingTCPServer):
    """A server of handouts, by rank; OSError if the address is unavailable.  serve_forever() runs it."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, address: tuple[str, int], key: str, handouts: Mapping[int, Handout]) -> None:
        self.sealed = {rank: Fernet(key).encrypt(msgspec.json.encode(handout)) for rank, handout in handouts.items()}
        super().__init__(address, _Asked)


class _Asked(StreamRequestHandler):
    timeout = LIMIT_S

    def handle(self) -> None:
        assert isinstance(self.server, Rendezvous)
        rank = self.rfile.readline(LINE_BYTES).strip()
        if rank.isdigit():
            self.wfile.write(self.server.sealed.get(int(rank), b""))


def fetch(rank: int, environment: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, str]:
    """Return the environment of this rank, whose files are in a new folder; variables of `environment` stay as set.

    PlaceError if no rendezvous answers within the limit, or if it has no data for this rank and key.
    """
    address, deadline = environment[RENDEZVOUS], time.monotonic() + limit_s
    while not (sealed := _asked(split(address), rank, limit_s)):
        if time.monotonic() > deadline:
            raise PlaceError(f"{RENDEZVOUS} is {address}: nothing for rank {rank} there in {limit_s:g} s")
        time.sleep(AGAIN_S)
    try:
        handout = msgspec.json.decode(Fernet(environment.get(KEY, "")).decrypt(sealed), type=Handout)
    except (InvalidToken, ValueError) as error:
        raise PlaceError(f"{KEY} is not the one that the rendezvous at {address} has printed") from error
    given = {**_unpacked(handout), "KOFN_RANK": str(rank), "KOFN_METRICS": f"worker-{rank}.jsonl"}
    given["KOFN_ADDRESS"] = _own_address(given["KOFN_CONTROLLER"])
    return given | dict(environment)


def _asked(address: tuple[str, int], rank: int, limit_s: float) -> bytes:
    """Return the encrypted data for a rank; empty if no rendezvous answers."""
    try:
        with socket.create_connection(address, limit_s) as line:
            line.sendall(f"{rank}\n".encode())
            return line.makefile("rb").read()
    except OSError:
        return b""


def _unpacked(handout: Handout) -> dict[str, str]:
    folder = Path(tempfile.mkdtemp(prefix="kofn-job-"))  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "job.toml").write_text(handout.config)
    for name, content in handout.certificates.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    certs = {"KOFN_CERTS": str(folder)} if handout.certificates else {}
    return {**handout.environment, **certs, "KOFN_CONFIG": str(folder / "job.toml")}


def _own_address(controller: str) -> str:
    """Return this host's address on the controller's network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(split(controller))
        address: str = probe.getsockname()[0]
    return address


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not is_numeral(port) or int(port) > 65535:
        raise PlaceError(f"an address must be HOST:PORT, with a port up to 65535, got {address!r}")
    return host, int(port)
