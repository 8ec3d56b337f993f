"""One machine of a laboratory: boot.py at the other end of ssh or srun, with files, clocks and heartbeats.

    runner                                               this machine
      {"do": "put", ...} the run's files        --->
      {"do": "make", ...}                       --->      its part of the network
      {"do": "clock"}, every second             --->
                                                <---      {"event": "clock", ...}
                                                <---      {"event": "file", ...}: what processes here write

The run's files on this machine are in one folder, which is removed at the end. What processes write there is sent while
it grows. A network between machines that vanishes ends no stdin, so each end waits SILENCE_S for a line of the other.
"""

import base64
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import interfaces
import records
import topology
from errors import NetworkError
from network import Network, NetworkPlan
from parts import NetworkPart
from processes import Children
from server import COMMANDS, OUT, BootServer, Commands, Stop, emit, watch_signals
from way import RELAYED

FIRST_COMMANDS: Commands = {
    "folders": ({"paths": list}, {}),
    "remove": ({"paths": list}, {}),
    "put": ({"path": str, "data": str}, {"mode": int, "more": bool}),
    "route": ({"to": list}, {}),
    "make": ({"topology": dict, "management": str, "mtu": int, "part": dict}, {"gso": bool}),
    "clock": ({}, {}),
    "tell": ({"argv": list}, {}),
}
"""The commands that a machine of a laboratory has besides those of a network."""

SILENCE_S = 5.0
"""The longest time without a line from the other end."""

COLLECT_S = 0.2
"""The interval between two looks at the files."""

CHUNK_BYTES = 1 << 17
"""The most bytes of a file in one line."""

GROWING = (".jsonl", ".log", ".pcap")
"""The ends of the names of files to which processes only append."""

UNSENT = (".ledger",)
"""The ends of the names of files that only processes on this machine need."""

SMALL_BYTES = 1 << 16
"""A smaller file may be a mapped one, whose time of change tells nothing; it is compared by its content."""

FULL_BYTES = 1 << 20
"""With fewer free bytes on the disk of the run's folder, a process could not even write its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The size of a file, and whatever else changes when its content changes in another way than by growing."""

    size: int
    content: object

    def appended_to(self, known: "FileState") -> bool:
        """Return whether the file has only grown since then."""
        return self.content == known.content and self.size > known.size


def file_state(path: Path) -> FileState:
    """Return the state of a file; a file of GROWING is another one if its inode is."""
    found = path.stat()
    if path.suffix in GROWING:
        return FileState(size=found.st_size, content=found.st_ino)
    if found.st_size < SMALL_BYTES:
        return FileState(size=found.st_size, content=path.read_bytes())
    return FileState(size=found.st_size, content=(found.st_ino, found.st_mtime_ns))


class RunFiles:
    """The run's folder on this machine: files that the runner has put, and files for the runner."""

    def __init__(self, cache: Path) -> None:
        """Make the folder below `cache`, and remove folders of runs that died here."""
        cache.mkdir(parents=True, exist_ok=True)
        for left in cache.iterdir():
            _remove_unless_locked(left)
        self.path = Path(tempfile.mkdtemp(prefix="run-", dir=cache))  # mode 0700
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._sent: dict[Path, FileState] = {}

    def inside(self, name: str) -> Path:
        """Return a path of the folder. NetworkError if it is outside."""
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path.resolve()):
            raise NetworkError(f"a path must stay in the run's folder, got {name!r}")
        return path

    def put(self, name: str, data: bytes, mode: int, *, more: bool) -> None:
        """Append data to a file of the folder; the file is complete without `more`."""
        path = self.inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
        with os.fdopen(descriptor, "ab") as file:
            file.write(data)
        if not more:
            self._sent[path] = file_state(path)

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield what processes here have written and removed since the last call, as events."""
        there = [path for path in sorted(self.path.resolve().rglob("*")) if path.is_file()]
        for path in there:
            with suppress(OSError):  # a file that has just been renamed or removed
                if path.suffix not in UNSENT:
                    yield from self._changed(path)
        for path in self._sent.keys() - {*there}:
            del self._sent[path]
            yield {"event": "gone", "path": str(path.relative_to(self.path.resolve()))}

    def _changed(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the pieces of a changed file: the appended bytes, or else the whole file."""
        state, known = file_state(path), self._sent.get(path)
        if state == known:
            return
        appended = known is not None and state.appended_to(known) and path.suffix in GROWING
        offset = known.size if known is not None and appended else 0
        name, more = str(path.relative_to(self.path.resolve())), True
        with path.open("rb") as file:
            file.seek(offset)
            while more:
                data = file.read(min(CHUNK_BYTES, state.size - offset))
                more = bool(data) and offset + len(data) < state.size
                piece = {"offset": offset, "data": base64.b64encode(data).decode(), "more": more}
                yield {"event": "file", "path": name, "whole": not appended, **piece}
                offset += len(data)
        self._sent[path] = replace(state, size=offset)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_unless_locked(path: Path) -> None:
    """Remove the folder of a run that died: a living run holds the folder's lock."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


class MachineServer(BootServer):
    """Obeys a runner on another machine: it takes the run's files and this machine's part of the network first."""

    commands = COMMANDS | FIRST_COMMANDS

    def __init__(self, files: RunFiles, stack: ExitStack) -> None:
        """Begin without a network; `stack` then owns the network."""
        super().__init__()
        self._files, self._stack = files, stack
        self._heard = self._looked = time.monotonic()

    def _idle(self) -> float:
        if time.monotonic() - self._heard > SILENCE_S:
            print(f"boot.py: nothing was heard from the runner for {SILENCE_S:g} s", file=sys.stderr)
            raise Stop
        if time.monotonic() - self._looked >= COLLECT_S:
            self._collect()
        return COLLECT_S

    def _reap(self) -> None:
        self._collect()  # first, so that the runner has the last lines of a process when it hears of its end
        super()._reap()

    def _commands(self, descriptor: int) -> None:
        self._heard = time.monotonic()
        super()._commands(descriptor)

    def _obey(self, command: dict[str, Any]) -> None:
        match command:
            case {"do": "folders", "paths": paths}:
                for path in paths:
                    self._files.inside(path).mkdir(parents=True, exist_ok=True)
            case {"do": "remove", "paths": paths}:
                for path in paths:
                    shutil.rmtree(self._files.inside(path), ignore_errors=True)
            case {"do": "put", "path": path, "data": data}:
                more = command.get("more", False)
                self._files.put(path, base64.b64decode(data), command.get("mode", 0o600), more=more)
            case {"do": "route", "to": addresses}:
                emit("route", mtu={address: interfaces.route_mtu(address) for address in addresses})
            case {"do": "make"}:
                self._make(command)
            case {"do": "clock"}:
                emit("clock", real=time.time(), monotonic=time.monotonic())
            case {"do": "tell", "argv": argv}:
                _tell(argv)
            case _:
                super()._obey(command)

    def _make(self, command: dict[str, Any]) -> None:
        plan = NetworkPlan.checked(
            topology.parse(command["topology"]),
            driver="netns",
            management=command["management"],
            mtu=command["mtu"],
            coalesced=command.get("gso", False),
            part=NetworkPart(**command["part"]),
        )
        network = self._stack.enter_context(Network(plan))
        self.take(network, Children(network.record, None))
        emit("ready", **network.describe())

    def _collect(self) -> None:
        """Send what processes have written. NetworkError: the disk is full."""
        self._looked = time.monotonic()
        if shutil.disk_usage(self._files.path).free < FULL_BYTES:
            raise NetworkError(f"the disk of {self._files.path} is full: free some of it")
        for event in self._files.news():
            emit(**event)

    def end(self) -> None:
        """End the children, and send what they have written last."""
        super().end()
        with suppress(NetworkError):  # the disk is full, which was told
            self._collect()


def _tell(argv: list[str]) -> None:
    """Run a short command, and tell its exit code and what it printed."""
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=SILENCE_S - 1, check=False)
        emit("told", code=done.returncode, said=done.stdout + done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        emit("told", code=1, said=str(error))


def _keep_checkout(stack: ExitStack) -> None:
    """Keep `kofn lab setup` from removing this checkout until `stack` ends (kofn/run/lab/setup.py)."""
    with suppress(FileNotFoundError):  # a checkout that it has not put here
        stamp = stack.enter_context((Path(__file__).resolve().parent.parent / ".complete").open())
        fcntl.flock(stamp, fcntl.LOCK_SH)


def serve_runner(cache: Path) -> None:
    """Obey a runner until it ends, or is not heard of; then remove everything that was made for it.

    First remove what networks and runs that died here have left.
    """
    signals = watch_signals()
    records.clean_dead()
    with OUT.waits(SILENCE_S), ExitStack() as stack:
        _keep_checkout(stack)
        files = RunFiles(cache)
        stack.callback(files.remove)
        server = MachineServer(files, stack)
        try:
            emit(
                "here",
                user=os.geteuid(),
                relayed=RELAYED in os.environ,
                kernel=os.uname().release,
                cores=len(os.sched_getaffinity(0)),
                folder=str(files.path),
                checkout=str(Path(__file__).resolve().parent.parent),
                python=os.environ["KOFN_LAB_PYTHON"],
            )
            server.serve(signals)
        except Stop:
            return
        finally:
            server.end()
