"""Where workers on any hosts get what their job needs: configuration, controller, switch, certificate and token.

With KOFN_RENDEZVOUS, KOFN_RENDEZVOUS_KEY and a rank in its environment a worker finds the rest, also when torchrun
starts it again.  scripts/hand_out.py is the other side.  A torch.distributed TCPStore holds what is handed out,
encrypted by the key.
"""

import atexit
import shutil
import socket
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec
import torch.distributed as dist
from cryptography.fernet import Fernet, InvalidToken

from kofn.torch.errors import TorchError

RENDEZVOUS, KEY = "KOFN_RENDEZVOUS", "KOFN_RENDEZVOUS_KEY"

LIMIT_S = 60.0
"""For a worker to reach the rendezvous, and to be answered."""


class Handout(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker gets; `environment`: as kofn.torch.place has it; `certificates`: files of KOFN_CERTS, by name."""

    config: str
    environment: dict[str, str]
    certificates: dict[str, bytes]


def serve(port: int, key: str, handouts: Mapping[int, Handout]) -> dist.TCPStore:
    """Hold these, by rank, at every address of this machine, as long as the store lives; TorchError for the port."""
    try:
        store = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise TorchError(f"port {port} cannot be had: {error}") from error
    for rank, handout in handouts.items():
        store.set(_name(rank), Fernet(key).encrypt(msgspec.json.encode(handout)))
    return store


def fetch(rank: int, environment: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, str]:
    """The environment of this rank, with the files that it names in a new folder; what it has already stays.

    TorchError where no rendezvous answers within the limit, or has nothing for this rank and key.
    """
    address, limit = environment[RENDEZVOUS], timedelta(seconds=limit_s)
    try:
        sealed = dist.TCPStore(*split(address), is_master=False, timeout=limit).get(_name(rank))
    except RuntimeError as error:
        raise TorchError(f"{RENDEZVOUS} is {address}: nothing for rank {rank} there in {limit_s:g} s") from error
    try:
        handout = msgspec.json.decode(Fernet(environment.get(KEY, "")).decrypt(sealed), type=Handout)
    except (InvalidToken, ValueError) as error:
        raise TorchError(f"{KEY} is not the one that the rendezvous at {address} has printed") from error
    given = {**_unpacked(handout), "KOFN_RANK": str(rank), "KOFN_METRICS": f"worker-{rank}.jsonl"}
    given["KOFN_ADDRESS"] = _own_address(given["KOFN_CONTROLLER"])
    return given | dict(environment)


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
    """Of this host, on the network where the controller is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(split(controller))
        address: str = probe.getsockname()[0]
    return address


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise TorchError(f"{address!r} is no address: HOST:PORT is allowed")
    return host, int(port)


def _name(rank: int) -> str:
    return f"kofn/worker/{rank}"
