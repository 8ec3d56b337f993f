"""The running run of this machine: a small file in /run/kofn (without root, in the user's runtime folder; or
KOFN_STATE_DIR), locked while its process lives.

The lock tells whether a run is alive. Process id and start time together identify a process, so that a stale file
never causes a signal to another process.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kofn.run.errors import RunError

SYSTEM = "/run/kofn"
"""The folder of root's states."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A run's process and its results."""

    pid: int
    start_time: int  # clock ticks since boot, /proc/PID/stat field 22
    folder: str
    command: str = "run"

    def alive(self) -> bool:
        """Return whether this very process still exists."""
        return start_time(self.pid) == self.start_time

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return whether it came in time."""
        deadline = time.monotonic() + timeout_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()


def state_path() -> Path:
    """Return the place of this user's state: without root, a run is on the machines of a laboratory."""
    own = SYSTEM if os.geteuid() == 0 else _own_folder()
    return Path(os.environ.get("KOFN_STATE_DIR", own)) / "running"


def _own_folder() -> str:
    """Return the folder of states of a user who is not root."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return f"{runtime}/kofn" if runtime else f"{tempfile.gettempdir()}/kofn-{os.geteuid()}"


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if the process does not exist, or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def running() -> Running | None:
    """Return the present run, if any."""
    record = _recorded()
    return record if record and record.alive() else None


def abandoned() -> Path | None:
    """Return the folder of the latest run, if this run was killed before it could clean up."""
    record = _recorded()
    return Path(record.folder) if record and not record.alive() else None


def _recorded() -> Running | None:
    """Return the state file's content, this user's or else root's; an orderly end leaves it empty."""
    system = [Path(SYSTEM) / "running"] if "KOFN_STATE_DIR" not in os.environ else []
    for path in (state_path(), *system):
        with contextlib.suppress(OSError, ValueError):
            return msgspec.json.decode(path.read_bytes(), type=Running)
    return None


@contextlib.contextmanager
def hold(folder: Path, command: str = "run") -> Iterator[None]:
    """Hold this machine's lock for a run, or for `command`, within the block. RunError names another holder."""
    path = state_path()
    try:
        path.parent.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        if os.geteuid() not in (0, path.parent.stat().st_uid):
            raise RunError(f"{path.parent} must belong to you: KOFN_STATE_DIR chooses another folder")
        file = path.open("a+b")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror} (KOFN_STATE_DIR chooses another folder)") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise another_run() from None
        started = start_time(os.getpid()) or 0
        record = Running(pid=os.getpid(), start_time=started, folder=str(folder.resolve()), command=command)
        file.truncate(0)
        file.write(msgspec.json.encode(record))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def another_run() -> RunError:
    """Return the error for starting a run during another run."""
    run = running()
    holder = f"kofn {run.command}, pid {run.pid}, {run.folder}" if run else "just starting"
    remedy = "wait for it, or end it with kofn stop; docs/howto/hosts.md says how two run at once (KOFN_STATE_DIR)"
    return RunError(f"another run is going on ({holder}): {remedy}")
