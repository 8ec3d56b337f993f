"""Where workers on any hosts get what their job needs: configuration, controller, switch, certificate and token.

    python -m kofn.torch.rendezvous mine.toml --controller 172.30.255.1:50052 --certs certs --listen 192.0.2.7:29400

It prints two variables, KOFN_RENDEZVOUS and KOFN_RENDEZVOUS_KEY.  With these and a rank in its environment a worker
finds the rest, also when torchrun starts it again.  What is handed out is encrypted by the key; a torch.distributed
TCPStore holds it.
"""

import argparse
import atexit
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec
import torch.distributed as dist
from cryptography.fernet import Fernet, InvalidToken

from kofn.config.errors import ConfigError
from kofn.config.schema import Config
from kofn.rpc.names import AUTHORITY, token_name, worker_name
from kofn.torch.errors import TorchError

RENDEZVOUS, KEY = "KOFN_RENDEZVOUS", "KOFN_RENDEZVOUS_KEY"

LIMIT_S = 60.0
"""For a worker to reach the rendezvous, and to be answered."""


class Handout(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker gets; `environment`: as kofn.torch.place has it; `certificates`: files of KOFN_CERTS, by name."""

    config: str
    environment: dict[str, str]
    certificates: dict[str, bytes]


def serve(address: str, key: str, handouts: Mapping[int, Handout]) -> dist.TCPStore:
    """Hold these, by rank, as long as the store lives; TorchError where the address cannot be had."""
    host, port = _split(address)
    try:
        store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise TorchError(f"{address} cannot be had: {error}") from error
    for rank, handout in handouts.items():
        store.set(_name(rank), Fernet(key).encrypt(msgspec.json.encode(handout)))
    return store


def fetch(rank: int, environment: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, str]:
    """The environment of this rank, with the files that it names in a new folder; what it has already stays.

    TorchError where no rendezvous answers within the limit, or has nothing for this rank and key.
    """
    address, limit = environment[RENDEZVOUS], timedelta(seconds=limit_s)
    try:
        sealed = dist.TCPStore(*_split(address), is_master=False, timeout=limit).get(_name(rank))
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
        probe.connect(_split(controller))
        address: str = probe.getsockname()[0]
    return address


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise TorchError(f"{address!r} is no address: HOST:PORT is allowed")
    return host, int(port)


def _name(rank: int) -> str:
    return f"kofn/worker/{rank}"


# -- the command


def handouts(config: Path, environment: Mapping[str, str], certs: Path | None) -> dict[int, Handout]:
    """Of each of the job's workers; ConfigError for its configuration."""
    job, text = Config.load(config).job, config.read_text()
    return {
        rank: Handout(config=text, environment=dict(environment), certificates=_files(certs, job.id, rank))
        for rank in range(job.workers)
    }


def _files(certs: Path | None, job: int, rank: int) -> dict[str, bytes]:
    name = worker_name(job, rank)
    names = (AUTHORITY, f"{name}.pem", f"{name}.key", token_name(job)) if certs else ()
    return {each: (certs / each).read_bytes() for each in names if certs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kofn.torch.rendezvous", description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="the job's TOML file")
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where workers come")
    parser.add_argument("--service", default="", metavar="IP", help="the switch's address, or the parameter server's")
    parser.add_argument("--certs", type=Path, metavar="FOLDER", help="as `kofn certs` has made it")
    parser.add_argument("--worker", action="append", default=[], metavar="IP", help="each one's on the data network")
    given = parser.parse_args()
    environment = {
        "KOFN_CONTROLLER": given.controller,
        **({"KOFN_SERVICE": given.service} if given.service else {}),
        **({"KOFN_WORKERS": ",".join(given.worker)} if given.worker else {}),
    }
    key = os.environ.get(KEY) or Fernet.generate_key().decode()
    try:
        Fernet(key)
        store = serve(given.listen, key, handouts(given.config, environment, given.certs))
    except (ConfigError, TorchError, OSError, ValueError) as error:
        sys.exit(f"kofn.torch.rendezvous: {error}")
    print(f"{RENDEZVOUS}={given.listen.rpartition(':')[0]}:{store.port}\n{KEY}={key}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
