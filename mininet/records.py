"""Records of the processes and interfaces of each network, on disk, so that another process can remove exactly these.

The kernel removes a killed network by itself. The records are the second line of defence, and the way to find a running
network. Each network has one file, STATE/PID.json. A process is known by pid and start time, an interface by name and
index, so that a reused pid or another program's interface of the same name is never touched.
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

import cpu
import interfaces
from errors import NetworkError
from namespaces import Namespace

END_S = 3.0
"""The longest time, in seconds, from the request to end until a process is killed."""

NETWORKS_MAX = 9
"""The most networks that run in one network namespace at a time, each with its own state folder."""

NAME_BYTES = 15
"""Maximum length of an interface's name."""


def state_folder() -> Path:
    return Path(os.environ.get("KOFN_STATE_DIR", "/run/kofn"))


def start_time(pid: int) -> int | None:
    """Return the clock ticks from boot to a process's start; None if the process is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock under which one process at a time reads and adds records."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Record:
    """The processes and interfaces of one network. Each is recorded before it is made."""

    def __init__(self, pid: int, path: Path) -> None:
        """Describe the network of a process in a file."""
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
        """Return the record of this process and its network namespace."""
        record = cls(os.getpid(), state_folder() / f"{os.getpid()}.json")
        root = Namespace.current()
        record.namespace = root.inode
        root.close()
        return record

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the record that another process left; an unreadable record raises NetworkError."""
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
        """Return whether the process that wrote this record still runs."""
        return self.started is not None and start_time(self.pid) == self.started

    def claim_interfaces(self, names: list[str]) -> None:
        """Claim these names, with a suffix that no other network uses, for interfaces in the root namespace.

        The claim is a socket in the kernel's abstract name space: its name is unique in a network namespace, like an
        interface's name, and disappears with this process. NetworkError if there is no such suffix.
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
        """Record the hosts, and the indexes that tell the interfaces from later interfaces of the same name."""
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
        """Replace the file in one step: a reader sees the old or the new record."""
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
        """Record that the network stops, so that a new network waits a moment instead of giving up."""
        self.stopping = True
        self.write()

    def remove(self) -> None:
        """Delete the record: the network owns nothing any more."""
        cpu.remove_groups(self.pid)
        self.path.unlink(missing_ok=True)

    def delete_interfaces(self) -> None:
        """Delete the recorded interfaces that are still there, only in the namespace in which they were made."""
        root = Namespace.current()
        same = root.inode == self.namespace
        root.close()
        if same:
            owned = (name for name, index in self.interfaces.items() if index in (None, interfaces.exists(name)))
            interfaces.delete(owned)

    def clean(self) -> None:
        """End the processes that still live, and delete the remaining interfaces and the limits of processors."""
        end(self.processes)
        self.delete_interfaces()
        self.remove()


def end(processes: dict[int, int | None]) -> None:
    """Ask the processes that still have their recorded start time to end, wait, and kill those that remain."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        living = [pid for pid, started in processes.items() if started is not None and start_time(pid) == started]
        for pid in living:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, number)
        _wait({pid: processes[pid] for pid in living}, END_S + 2)


def _wait(processes: dict[int, int | None], seconds: float) -> None:
    """Wait until none of the processes lives, at most for the given time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(start_time(pid) == started for pid, started in processes.items()):
        time.sleep(0.02)


def all_records() -> list[Record]:
    folder = state_folder()
    return [Record.read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def claim(names: list[str]) -> Record:
    """Make this process's record, with the interfaces that the process will make in the root namespace.

    Dead networks are removed first. NetworkError: another network of this state folder runs.
    """
    with locked():
        refuse_living()
        own = Record.own()
        own.claim_interfaces(names)
        return own


def refuse_living() -> None:
    """Remove what dead networks have left; raise NetworkError if a network runs."""
    if living := clean_dead():
        pid = living[0].pid
        raise NetworkError(f"another kofn network is running (pid {pid}): kill {pid} ends it")


def clean_dead() -> list[Record]:
    """Remove what dead networks have left, and wait for networks that are stopping. Return the records of the networks
    that run."""
    living = []
    for record in all_records():
        if record.stopping:
            _wait({record.pid: record.started}, END_S + 2)
        if record.alive():
            living.append(record)
        else:
            record.clean()
    return living
