"""`kofn doctor` as a process on a separate machine: a network namespace, and a topology that may have a fault."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KOFN = "from kofn.cli.main import main; main()"
PATIENCE_S = 60.0
SCRIPT = 'ip link set lo up; {before}; "$@"; code=$?; ip -brief link > "$KOFN_STATE_DIR.links"; exit $code'
"""Runs the command and then lists the interfaces, in the machine that ends with this script."""


class Doctor:
    """A started `kofn doctor`; as a context manager it ends it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        path: str = "",
        before: str = ":",
        fault: str = "",
        workers: int = 2,
        racks: int = 1,
    ) -> None:
        """Start it with the PATH `path`; `before` runs in its machine, `fault` in host h1 when that is created (with
        one rack).
        """
        self.state = folder / "state"
        environment = {**os.environ, "KOFN_STATE_DIR": str(self.state), "TMPDIR": str(folder)}
        config = _configuration(folder, fault, workers) if racks == 1 else _tree(folder, workers, racks)
        command = ["env", f"PATH={path}"] if path else []
        command += [sys.executable, "-c", KOFN, "doctor", str(config), *arguments]
        self.process = subprocess.Popen(
            ["unshare", "--net", "bash", "-c", SCRIPT.format(before=before), "bash", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> "Doctor":
        return self

    def __exit__(self, *error: object) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def answer(self, left: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
        """Return exit code and output of --json; check that nothing is left but these interfaces of other programs."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert [each.partition("@")[0] for each in self.left()] == [*left], err
        return self.process.returncode, json.loads(out) if out else {"stderr": err}

    def left(self) -> list[str]:
        """Return the processes and interfaces that should be gone."""
        links = [line.split()[0] for line in Path(f"{self.state}.links").read_text().splitlines()]
        return [*map(str, self.processes()), *(link for link in links if link != "lo")]

    def processes(self) -> list[int]:
        """Return every process that has this machine's state folder in its environment."""
        needle = f"KOFN_STATE_DIR={self.state}\0".encode()
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if needle in _read(entry / "environ")]

    def until_started(self, module: str) -> None:
        """Wait until a process of the network runs this module."""
        deadline = time.monotonic() + PATIENCE_S
        while self._pid("-m", module) is None:
            assert time.monotonic() < deadline and self.process.poll() is None, f"{module} was not started"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        pid = self._pid("-c", KOFN)
        assert pid is not None
        os.kill(pid, signal.SIGINT)

    def _pid(self, *arguments: str) -> int | None:
        """Return the first Python process started with these arguments."""
        wanted = [sys.executable, *arguments]
        commands = ((pid, _read(Path(f"/proc/{pid}/cmdline")).decode().split("\0")) for pid in self.processes())
        return next((pid for pid, command in commands if command[: len(wanted)] == wanted), None)


def _configuration(folder: Path, fault: str, workers: int) -> Path:
    """Write a star whose first host has a fault, and a TOML file that names it."""
    names = [f"h{number}" for number in range(1, workers + 1)]
    hosts = {
        name: {"ip": f"10.0.0.{number}/24", "mac": f"08:00:00:00:00:{number:02x}"}
        for number, name in enumerate(names, start=1)
    }
    hosts["h1"]["commands"] = [fault] if fault else []  # type: ignore[assignment]
    links = [[name, f"s1-p{number}", 0, 100] for number, name in enumerate(names, start=1)]
    (folder / "topology.json").write_text(json.dumps({"hosts": hosts, "switches": {"s1": {}}, "links": links}))
    path = folder / "doctor.toml"
    path.write_text(f'[network]\ntopology = "topology.json"\ndriver = "netns"\n[job]\nworkers = {workers}\n')
    return path


def _tree(folder: Path, workers: int, racks: int) -> Path:
    path = folder / "doctor.toml"
    network = 'driver = "netns"\nlink_mbps = 100\nuplink_mbps = 50'
    path.write_text(f"[network]\n{network}\n[job]\nworkers = {workers}\nracks = {racks}\n")
    return path


def _read(path: Path) -> bytes:
    """Read a file, or nothing if it has just been removed."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
