"""Machines that share only an IP network: three with switch and controller on one, two workers on each of the others.

Each has its own network and mount namespaces, and its own certificates in an otherwise empty folder.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from kofn_common.rpc.certificates import make_certificates

JOB = """
run = {target = 0.9, max_iterations = 400}
model = {learning_rate = 0.1, compute_ms = 2.0}
job = {workers = 4}
policy = {objective = "progress"}
"""

SWITCH = "192.0.2.1"
CONTROLLER = f"{SWITCH}:50052"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@dataclass
class Machine:
    """A machine; it sees only `folder` of the test's files, mounted over the folder of all machines."""

    address: str
    folder: Path
    network: str
    running: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        out: Path | None = None,
        program: str = "kofn",
        environment: Mapping[str, str] = {},
    ) -> "subprocess.Popen[bytes]":
        """Start `PROGRAM ARGUMENTS`; its errors go to the log, its output to `out`."""
        script = 'mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"'
        place = ["ip", "netns", "exec", self.network, "unshare", "--mount", "bash", "-ec", script, "machine"]
        home = self.folder.parent
        argv = [*place, str(self.folder), str(home), str(Path(sys.executable).with_name(program)), *arguments]
        found = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
        found |= {"TMPDIR": str(home), "KOFN_STATE_DIR": str(home / "state")}
        with (self.folder / "log").open("ab") as log, (out or self.folder / "log").open("ab") as printed:
            self.running.append(
                subprocess.Popen(argv, stdout=printed, stderr=log, env={**os.environ, **found, **environment})
            )
        return self.running[-1]

    def words(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    with behind_a_bridge(tmp_path, 3) as made:
        yield made


@contextmanager
def behind_a_bridge(tmp_path: Path, count: int) -> Iterator[list[Machine]]:
    """Yield machines, as if behind an ordinary switch."""
    tag = f"kofn-{os.getpid()}"
    ip("netns", "add", f"{tag}-lan")
    ip("-n", f"{tag}-lan", "link", "add", "lan", "mtu", "1500", "type", "bridge")
    ip("-n", f"{tag}-lan", "link", "set", "lan", "up")
    made = []
    try:
        for number in range(1, count + 1):
            network, folder = f"{tag}-{number}", tmp_path / f"machine-{number}"
            folder.mkdir()
            ip("netns", "add", network)
            made.append(Machine(f"192.0.2.{number}", folder, network))
            ip("-n", network, "link", "set", "lo", "up")
            ip(
                "-n",
                network,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                f"p{number}",
                "netns",
                f"{tag}-lan",
            )
            ip("-n", f"{tag}-lan", "link", "set", f"p{number}", "master", "lan", "up")
            ip("-n", network, "address", "add", f"192.0.2.{number}/24", "dev", "eth0")
            ip("-n", network, "link", "set", "eth0", "up")
        yield made
    finally:
        for machine in made:
            for process in machine.running:
                process.kill()
                process.wait()
            ip("netns", "delete", machine.network)
        ip("netns", "delete", f"{tag}-lan")


CONTROL, FIRST, LAST = ["controller"], ["job-1-worker-0", "job-1-worker-1"], ["job-1-worker-2", "job-1-worker-3"]
"""Certificates of the controller's machine, and of the workers' machines."""


def share_out(
    tmp_path: Path,
    machines: list[Machine],
    own: Sequence[Sequence[str]] = (CONTROL, FIRST, LAST),
    job: str = JOB,
) -> None:
    """Give the job's file to all machines, and each its own certificates."""
    certs = tmp_path / "certs"
    make_certificates(certs, {1: 4})
    for machine, names in zip(machines, own, strict=True):
        (machine.folder / "job.toml").write_text(job)
        (machine.folder / "certs").mkdir()
        for name in ["ca.pem", "job-1.token", *(f"{each}.{kind}" for each in names for kind in ("pem", "key"))]:
            shutil.copy(certs / name, machine.folder / "certs" / name)


def worker(machine: Machine, rank: int, switch: str = SWITCH) -> "subprocess.Popen[bytes]":
    place = ("--rank", str(rank), "--switch", switch, "--controller", CONTROLLER)
    return machine.start("worker", "job.toml", *place, "--certs", "certs", "--metrics", f"worker-{rank}.jsonl")


def accuracy(machine: Machine, rank: int) -> float:
    return max(msgspec.json.decode(line)["accuracy"] or 0.0 for line in lines(machine, rank))


def lines(machine: Machine, rank: int) -> list[bytes]:
    """Return the lines of a worker's iterations."""
    found = (machine.folder / f"worker-{rank}.jsonl").read_bytes().splitlines()
    return [line for line in found if b'"params"' in line]
