"""The records of networks in /run/kofn (or KOFN_STATE_DIR), as mininet/records.py writes them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kofn.run.state import start_time, state_path


class RecordedHost(msgspec.Struct, frozen=True):
    """A host that can be entered: `namespace` is a path for `nsenter --net` on `machine` (empty: this machine; else a
    name for ssh)."""

    ip: str
    mac: str
    management: str
    port: int
    interface: str
    mbps: float | None
    namespace: str
    machine: str = ""


class NetworkRecord(msgspec.Struct, frozen=True):
    """The fields of a network's record that kofn reads."""

    pid: int
    started: int | None
    stopping: bool
    interfaces: dict[str, int | None]
    hosts: dict[str, RecordedHost] = {}
    """Empty until the network is made."""

    @property
    def alive(self) -> bool:
        """Whether the network runs, and is not ending."""
        return self.started is not None and start_time(self.pid) == self.started and not self.stopping


@contextmanager
def recorded(hosts: dict[str, RecordedHost]) -> Iterator[None]:
    """Keep the record of this process's network on other machines within the block, as mininet/boot.py keeps one."""
    path, pid = state_path().with_name(f"{os.getpid()}.json"), os.getpid()
    record = NetworkRecord(pid=pid, started=start_time(pid), stopping=False, interfaces={}, hosts=hosts)
    document = msgspec.to_builtins(record) | {"namespace": 0, "processes": {}}
    path.write_bytes(msgspec.json.encode(document) + b"\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def records() -> list[NetworkRecord]:
    """Return the records of running and dead networks, without unreadable records."""
    return [found for path in sorted(state_path().parent.glob("*.json")) if (found := _read(path)) is not None]


def running_network() -> NetworkRecord | None:
    """Return the record of the running network, complete or not."""
    return next((record for record in records() if record.alive), None)


def _read(path: Path) -> NetworkRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=NetworkRecord)
    except (OSError, ValueError):
        return None
