"""Switches for the tests: simple_switch_grpc where it is installed, and the embedded one."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ports import own_port
from tests.targets import switch_command


@dataclass(kw_only=True)
class SwitchProcess:
    """A switch at a fixed P4Runtime address, which may be killed and restarted."""

    command: Sequence[str]
    port: int
    log: Path
    device_id: int = 0
    interfaces: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        ports = [part for interface in self.interfaces for part in ("-i", interface)]
        flags = ["--", "--grpc-server-addr", self.address, "--cpu-port", "255"]
        argv = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            *self.command,
            "--no-p4",
            *ports,
            "--device-id",
            str(self.device_id),
            *flags,
        ]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running(target: str, folder: Path, interfaces: Sequence[str] = (), device_id: int = 0) -> Iterator[SwitchProcess]:
    with own_port() as port:
        switch = SwitchProcess(
            command=switch_command(target),
            port=port,
            log=folder / f"switch-{device_id}.log",
            device_id=device_id,
            interfaces=interfaces,
        )
        switch.start()
        try:
            yield switch
        finally:
            switch.kill()
