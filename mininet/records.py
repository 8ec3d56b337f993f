"""Records on disk of the possessions of running networks, so that another process can remove exactly these.

The kernel removes a killed network by itself; records are a second safeguard, and the way to find a running network.
There is one file per network, STATE/PID.json.  Processes are identified by pid and start time, interfaces by name and
index, so that neither a reused pid nor a foreign interface of the same name is touched.
"""

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import interfaces
from errors import NetworkError
from namespaces import Namespace

END_S = 3.0
"""The time that a process has to end before it is killed."""

NETWORKS_MAX = 9
"""The most networks in one network namespace, with a state folder each."""

NAME_BYTES = 15
"""The longest name of an interface."""


def state_folder() -> Path:
    return Path(os.environ.get("KOFN_STATE_DIR", "/run/kofn"))


def start_time(pid: int) -> int | None:
    """Return the clock ticks from boot to a process's start; None if it does not live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@contextmanager
def locked() -> Iterator[None]:
    """Lock the records: one process at a time reads and adds them."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Record:
    """A network's possessions, recorded before each one is made."""

    def __init__(self, pid: int, path: Path) -> None:
        """Begin the record of a process's network in a file."""
        self.pid = pid
        self.path = path
        self.started = start_time(pid)
        self.namespace = 0
        self.stopping = False
        self.processes: dict[int, int | None] = {}
        self.interfaces: dict[str, int | None] = {}
        self.hosts: dict[str, Any] = {}
        self.suffix = ""
        self._claim: socket.socket | None = None

    @classmethod
    def own(cls) -> Self:
        """Return a new record of this process and its namespace."""
        record = cls(os.getpid(), state_folder() / f"{os.getpid()}.json")
        root = Namespace.current()
        record.namespace = root.inode
        root.close()
        return record

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return another process's record; NetworkError if it is unreadable."""
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            record = cls(int(content["pid"]), path)
            record.started, record.namespace = content["started"], content["namespace"]
            record.stopping = content["stopping"]
            record.processes = {int(pid): started for pid, started in content["processes"].items()}
            record.interfaces = dict(content["interfaces"])
            record.hosts = dict(content.get("hosts", {}))
        except (OSError, ValueError, KeyError) as error:
            raise NetworkError(f"{path} is not a record of kofn ({error}): look at it, then delete it") from error
        return record

    def alive(self) -> bool:
        """Return whether the process that wrote this still runs."""
        return self.started is not None and start_time(self.pid) == self.started

    def claim_interfaces(self, names: list[str]) -> None:
        """Reserve these interfaces of the root namespace, with a suffix that no other network uses.

        A socket in the kernel's abstract space is as unique in a network namespace as an interface's name, and ends
        with this process.  NetworkError if there is no free suffix.
        """
        for suffix in ("", *(f"_{number}" for number in range(2, NETWORKS_MAX + 1))):
            wanted = [name + suffix for name in names]
            if any(interfaces.exists(name) is not None or len(name) > NAME_BYTES for name in wanted):
                continue
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0kofn-network{suffix}")
            except OSError:
                claim.close()
                continue
            self._claim, self.suffix, self.interfaces = claim, suffix, dict.fromkeys(wanted)
            self.write()
            return
        raise NetworkError(
            f"interfaces {names[0]} to {names[0]}_{NETWORKS_MAX} exist already, or are longer than {NAME_BYTES} bytes: "
            "see `ip link`, then delete or rename some, or give the topology's switch another name"
        )

    def network_made(self, hosts: dict[str, Any]) -> None:
        """Record the hosts, and the interfaces' indexes, which distinguish them from later ones of the same name."""
        self.interfaces = {name: interfaces.exists(name) for name in self.interfaces}
        self.hosts = hosts
        self.write()

    def add_process(self, pid: int) -> None:
        self.processes[pid] = start_time(pid)
        self.write()

    def drop_process(self, pid: int) -> None:
        self.processes.pop(pid, None)
        self.write()

    def write(self) -> None:
        """Replace the file atomically: a reader sees the old or the new one."""
        content = {
            "pid": self.pid,
            "started": self.started,
            "namespace": self.namespace,
            "stopping": self.stopping,
            "processes": self.processes,
            "interfaces": self.interfaces,
            "hosts": self.hosts,
        }
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(content) + "\n")
        new.replace(self.path)

    def stop_begins(self) -> None:
        """Record that this network stops: the next one then waits a moment instead of giving up."""
        self.stopping = True
        self.write()

    def remove(self) -> None:
        """Remove the record: the network owns nothing any more."""
        self.path.unlink(missing_ok=True)

    def delete_interfaces(self) -> None:
        """Delete the remaining recorded interfaces, only in the namespace in which they were made."""
        root = Namespace.current()
        same = root.inode == self.namespace
        root.close()
        if same:
            owned = (name for name, index in self.interfaces.items() if index in (None, interfaces.exists(name)))
            interfaces.delete(owned)

    def clean(self) -> None:
        """End the remaining processes, and delete the remaining interfaces and the record."""
        end(self.processes)
        self.delete_interfaces()
        self.remove()


def end(processes: dict[int, int | None]) -> None:
    """Ask processes to end, wait, kill the remaining ones; only those with the recorded start time."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        living = [pid for pid, started in processes.items() if started is not None and start_time(pid) == started]
        for pid in living:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, number)
        _wait({pid: processes[pid] for pid in living}, END_S + 2)


def _wait(processes: dict[int, int | None], seconds: float) -> None:
    """Wait until none of the processes lives, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(start_time(pid) == started for pid, started in processes.items()):
        time.sleep(0.02)


def all_records() -> list[Record]:
    folder = state_folder()
    return [Record.read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def claim(names: list[str]) -> Record:
    """Make this process's record, with its future interfaces in the root namespace.

    Dead networks are cleaned first.  NetworkError if another network of this state folder runs.
    """
    with locked():
        refuse_living()
        own = Record.own()
        own.claim_interfaces(names)
        return own


def refuse_living() -> None:
    """Remove the remains of dead networks; NetworkError if a network runs."""
    if living := clean_dead():
        pid = living[0].pid
        raise NetworkError(f"another kofn network is running (pid {pid}): kill {pid} ends it")


def clean_dead() -> list[Record]:
    """Remove the remains of dead networks, and wait for stopping ones; return the records of running ones."""
    living = []
    for record in all_records():
        if record.stopping:
            _wait({record.pid: record.started}, END_S + 2)
        if record.alive():
            living.append(record)
        else:
            record.clean()
    return living
