"""`kofn run` as a process in its own network namespace, and the check that it leaves nothing behind.

The namespace stands for a whole machine, with its own ports and interfaces. Every process of the run inherits the
environment variable KOFN_STATE_DIR, a unique path, by which it is found.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kofn_common.config.objectives import DEFAULT

CONFIG = """
[run]
name = "tiny"
target = {target}
max_iterations = 5000
trial_deadline_s = {deadline_s}
[job]
workers = 2
[model]
compute_ms = 4
[[straggler]]
workers = [1]
mean_ms = 15
"""

NEVER = 1.0
EASY = 0.85

LEADER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, lambda *_: None)
sys.exit(subprocess.call(sys.argv[1:]))
"""
"""A session's leader that waits for its child when the terminal is gone, like make."""

OWN_NETWORK = ["unshare", "--net", "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
"""The prefix of a command line that gets a machine's network to itself."""

KOFN = "from kofn.cli.main import main; main()"

WITHOUT_FIGURES = "import sys; sys.modules['jinja2'] = None; "
"""Makes a run end without a report, as where `kofn[plots]` is not installed: drawing takes a fifth of a short run."""


class RealRun:
    """A started `kofn run`; as a context manager it kills everything at the end."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        target: float = EASY,
        deadline_s: float = 900,
        config: str = CONFIG,
        others: Sequence[str] = (),
        terminal: int | None = None,
        resume: bool = False,
        report: bool = False,
    ) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.out = folder / "out"
        paths = [folder / f"tiny-{number}.toml" for number in range(1 + len(others))]
        for path, text in zip(paths, [config.format(target=target, deadline_s=deadline_s), *others], strict=True):
            path.write_text(text)
        self.stdout, self.stderr = folder / "stdout", folder / "stderr"
        where = ["--resume", str(self.out)] if resume else [*map(str, paths), "--out", str(self.out)]
        code = KOFN if report else WITHOUT_FIGURES + KOFN
        command = [sys.executable, "-c", code, "run", *where, *arguments]
        if terminal is not None:
            command = ["setsid", "--ctty", sys.executable, "-c", LEADER, *command]
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                ["env", "--default-signal=HUP", *OWN_NETWORK, *command],
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=out if terminal is None else terminal,
                stderr=err,
                env=self.environment,
                start_new_session=terminal is None,
            )
        self._namespace: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KOFN_STATE_DIR": str(self.state)}

    def __enter__(self) -> "RealRun":
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it may end with another process that was just killed
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self._namespace is not None:
            os.close(self._namespace)

    def kill_all(self) -> None:
        """Kill every process of the run at once, as a crash of the machine does."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def kofn(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command on the same "machine"."""
        command = [sys.executable, "-c", KOFN, *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)

    def processes(self) -> list[int]:
        """Return all living processes of the run."""
        return processes(self.state)

    def pid(self, *words: str) -> int:
        """Return the one process that has these arguments."""
        wanted = {word.encode() for word in words}
        return next(pid for pid in self.processes() if wanted <= set(_read(Path(f"/proc/{pid}/cmdline")).split(b"\0")))

    def text(self) -> str:
        """Return everything that it has printed."""
        return self.stdout.read_text() + self.stderr.read_text()

    def lines(self, rank: int = 0, name: str = DEFAULT) -> int:
        """Return the number of iterations that a worker has written."""
        return _read(self.out / name / f"worker-{rank}.jsonl").count(b"\n")

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
        """Wait for an action of another process."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s} s:\n{self.text()}"
            assert self.process.poll() is None or condition(), f"the run ended before {what}:\n{self.text()}"
            time.sleep(0.05)

    def until_up(self) -> None:
        """Wait for the network, and remember its namespace for later checks."""
        self.until(lambda: any(self.out.glob("*/logs/switch.log")), "the network")
        self._namespace = os.open(f"/proc/{self.process.pid}/ns/net", os.O_RDONLY)

    def until_training(self) -> None:
        """Wait until the workers have done some iterations."""
        self.until_up()
        self.until(lambda: self.lines() > 3, "training")
        assert len(self.processes()) >= 6, "runner, boot, switch, controller and two workers must run"
        assert {"s1-eth1", "s1-eth2"} <= set(self._interfaces())

    def wait(self, timeout_s: float = 240.0) -> int:
        """Wait for the run's end and return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {timeout_s} s: {self.leftovers()}\n{self.text()}") from None

    def leftovers(self) -> list[str]:
        """Return the processes, interfaces and certificates that should be gone."""
        certificates = [str(path) for path in self.out.glob("certs")]
        processes = [_read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode() for pid in self.processes()]
        return certificates + processes + self._interfaces()

    def _interfaces(self) -> list[str]:
        if self._namespace is None:
            return []
        path = f"/proc/self/fd/{self._namespace}"
        argv = ["nsenter", f"--net={path}", "ip", "-j", "link"]
        links = subprocess.run(argv, capture_output=True, check=True, pass_fds=[self._namespace]).stdout
        return [link["ifname"] for link in json.loads(links) if link["ifname"] != "lo"]


def processes(state: Path) -> list[int]:
    """Return all living processes with this state folder."""
    needle = f"KOFN_STATE_DIR={state}\0".encode()
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if needle in _read(entry / "environ")]


def _read(path: Path) -> bytes:
    """Read a file, or nothing if it has just been removed."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
