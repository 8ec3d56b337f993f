"""Real switches for the tests: simple_switch_grpc where it is installed, the embedded one."""

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TARGETS = ["embedded", pytest.param("bmv2", marks=pytest.mark.bmv2)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(target: str) -> list[str]:
    """The command line's beginning; skips the test where there is no such switch."""
    if target == "bmv2":
        path = shutil.which("simple_switch_grpc")
        if path is None:
            pytest.skip("simple_switch_grpc is not on the PATH")
        return [path]
    if importlib.util.find_spec("switch.__main__") is None:
        pytest.skip("the embedded switch has no command line yet")
    return [sys.executable, "-m", "switch"]


@dataclass(kw_only=True)
class SwitchProcess:
    """A switch at a fixed P4Runtime address, that may be killed and started again."""

    command: Sequence[str]
    port: int
    log: Path
    interfaces: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        ports = [part for interface in self.interfaces for part in ("-i", interface)]
        flags = ["--", "--grpc-server-addr", self.address, "--cpu-port", "255"]
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *self.command, "--no-p4", *ports, "--device-id", "0", *flags]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running(target: str, folder: Path, interfaces: Sequence[str] = ()) -> Iterator[SwitchProcess]:
    switch = SwitchProcess(command=program(target), port=free_port(), log=folder / "switch.log", interfaces=interfaces)
    switch.start()
    try:
        yield switch
    finally:
        switch.kill()
