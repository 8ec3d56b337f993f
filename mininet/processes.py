"""The processes in the network. Each has its own session, and none can outlive this process."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import cpu
from errors import NetworkError
from namespaces import Namespace, die_with_parent
from records import END_S, Record

LOAD = "load-"
"""The beginning of the name of a competing load; the name of the process follows."""


class Children:
    """The running processes, by the name that the `start` command gave."""

    def __init__(self, record: Record, log_folder: Path | None) -> None:
        """Begin without processes. A child without a `log` writes to a file in the folder; without a folder, to our
        stderr."""
        self._record = record
        self._log_folder = log_folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: set[str] = set()

    def start(
        self,
        name: str,
        namespace: Namespace,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path | None = None,
        cwd: Path | None = None,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run a command inside a namespace.

        `env` is added to our own environment. Output is appended to `log`, except standard output if `stdout` (a
        descriptor or subprocess.PIPE) is given. NetworkError: the name is in use, or the command cannot start.
        """
        if name in self._running:
            raise NetworkError(f"process {name!r} is running already: an id must name one process at a time")
        path = log or (self._log_folder / f"{name}.log" if self._log_folder else None)
        try:
            with _output(path) as output, namespace.entered():
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output if stdout is None else stdout,
                    stderr=output,
                    env={**os.environ, **env},
                    cwd=cwd,
                    bufsize=0,  # select() does not see data in a buffer of Python's
                    start_new_session=True,  # Ctrl-C at the terminal must reach the runner only, which ends us
                    preexec_fn=die_with_parent(),  # noqa: PLW1509  # there is one thread only
                )
        except OSError as error:
            raise NetworkError(f"process {name!r}: {error.filename or argv[0]}: {error.strerror}") from error
        self._running[name] = child
        self._ended.discard(name)
        self._record.add_process(child.pid)
        return child

    def signal(self, name: str, signal_name: str) -> None:
        """Send a signal ("TERM", "KILL", ...) to one process, unless the process has ended already."""
        number = getattr(signal, f"SIG{signal_name.removeprefix('SIG')}", None)
        if not isinstance(number, signal.Signals):
            raise NetworkError(f"signal {signal_name!r} of process {name!r} is unknown: TERM, INT, KILL, ...")
        if name in self._running:
            self._running[name].send_signal(number)
        elif name not in self._ended:
            known = ", ".join(self._running) or "none"
            raise NetworkError(f"process {name!r} was never started: the running ones are {known}")

    def limit(self, name: str, share: float, root: Namespace) -> str:
        """Limit the processor time of a process, as cpu.limit() does; return why that is impossible, or an empty
        text."""
        child, load = self._running.get(name), f"{LOAD}{name}"
        if child is None:
            return f"{name} does not run"
        try:
            argv = cpu.limit(name, child.pid, share)
        except OSError as error:
            return f"no cgroup can be made, and {name} cannot be bound to a processor: {error.strerror}"
        self._end_load(load)
        if argv:
            self.start(load, root, argv, env={})
        return ""

    def _end_load(self, load: str) -> None:
        """End a competing load, if it runs."""
        if load in self._running:
            child = self._running.pop(load)
            child.kill()
            child.wait()
            self._record.drop_process(child.pid)

    def reap(self) -> list[tuple[str, int]]:
        """Return (name, exit code) of the processes that ended since the last call; after a signal the code is < 0.

        A process's competing load ends with the process. NetworkError: such a load ended by itself.
        """
        ended = [(name, child.returncode) for name, child in self._running.items() if child.poll() is not None]
        for name, _ in ended:
            self._record.drop_process(self._running.pop(name).pid)
            self._ended.add(name)
            if name.startswith(LOAD):
                raise NetworkError(f"the load that competes with {name.removeprefix(LOAD)} has ended: see its log")
            self._end_load(f"{LOAD}{name}")
        return ended

    def end(self) -> list[tuple[str, int]]:
        """End all children and their own children: TERM, and KILL after three seconds. Return what reap() returns."""
        ended = []
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._running.values():
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.killpg(child.pid, number)
            deadline = time.monotonic() + END_S
            while self._running and time.monotonic() < deadline:
                ended += self.reap()
                time.sleep(0.01)
        return ended


@contextmanager
def _output(path: Path | None) -> Iterator[int]:
    """Return a descriptor of the log, opened for appending, or of our own standard error."""
    if path is None:
        yield 2
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        yield log.fileno()
