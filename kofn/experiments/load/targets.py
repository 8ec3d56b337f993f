"""The targets of load: switches and a reflector of frames, each with separate veth pairs.

All targets run in the network namespace that `laboratory` makes, and end with this process.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn.run.switch_identity import bmv2
from kofn_common import wire
from kofn_common.config.job import JobSection
from kofn_common.json_text import json_text
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.program import CompiledProgram
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.topology import TopologyHost
from kofn_switch.identity import BMV2

HERE = Path(__file__).parent
HEADER = Path(wire.__file__).parent
"""The folder of kofn_header.h."""
CLONE_NEWNET = 0x40000000
DEVICE_ID = 9
GENERATION = 1
START_S = 30
EMBEDDED = [sys.executable, "-m", "kofn_switch"]
COMMANDS = {
    "embedded": EMBEDDED,
    "no-gso": [*EMBEDDED, "--gso", "0"],
    "unchecked": EMBEDDED,
    "bmv2": [BMV2],
}
REFLECTORS = ("reflector", "gso-reflector")
GSO = ("embedded", "unchecked", "gso-reflector")
"""The targets whose packets may be coalesced."""
TARGETS = (*COMMANDS, *REFLECTORS)
TIMES = "time for each packet received:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of a turn of the workers, kofn/experiments/load/switch_loop.c."""

    rate: float  # contributions of all workers a second
    lost: int  # contributions without a result
    results: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """A running switch or reflector, and the interfaces of the workers behind it."""

    name: str
    folder: Path
    interfaces: tuple[str, ...]
    pid: int

    @property
    def address(self) -> str:
        """The address where a switch serves P4Runtime."""
        return _address(self.name, self.folder)

    def command(self, *, seconds: float, size: int, window: int, check: bool = False, lanes: int = 0) -> list[str]:
        """Return the workers' command line; a contribution has `size` bytes of values, and `lanes` is the code of its
        lanes."""
        numbers = (seconds, size, window, GENERATION, int(check), lanes, int(self.name in GSO))
        return [str(self.folder / "switch_loop"), *map(str, numbers), *self.interfaces]

    def times(self) -> dict[str, float]:
        """Return the microseconds for each packet received so far: receiving, program, sending. BMv2 has no such
        times."""
        log = self.folder / f"{self.name}.log"
        before = log.read_text().count(TIMES)
        os.kill(self.pid, signal.SIGUSR1)
        while log.read_text().count(TIMES) == before:
            time.sleep(0.01)
        line = log.read_text().rsplit(TIMES, 1)[1].splitlines()[0]
        return {name: float(us) for name, us in re.findall(r"(\w+) ([\d.]+) us", line)}

    def turn(self, *, seconds: float, size: int, window: int, lanes: int = 0) -> Turn:
        """Let the workers run for this time."""
        command = self.command(seconds=seconds, size=size, window=window, lanes=lanes)
        return read_turn(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def read_turn(line: str) -> Turn:
    """Parse the last line that kofn/experiments/load/switch_loop.c prints."""
    rate, lost, results, wrong = line.split()
    return Turn(rate=float(rate), lost=int(lost), results=int(results), wrong=int(wrong))


def missing() -> list[str]:
    """Return the targets that are not installed."""
    return [] if bmv2() else ["bmv2"]


@contextlib.contextmanager
def laboratory() -> Iterator[Path]:
    """Enter a network namespace for the rest of this process; yield a folder with compiled programs. Raise SystemExit
    without root."""
    logging.getLogger("kofn_controller").setLevel(logging.ERROR)  # the controller's link warns until a switch is up
    _new_namespace()
    with tempfile.TemporaryDirectory() as folder:
        _compile_into(Path(folder))
        yield Path(folder)


def _compile_into(folder: Path) -> None:
    """Compile the workers, the reflector and the flood of frames."""
    for name in ("switch_loop", "reflector", "flood"):
        command = ["cc", "-O2", "-march=native", f"-I{HEADER}", "-o", str(folder / name), str(HERE / f"{name}.c")]
        subprocess.run(command, check=True)


def _new_namespace() -> None:
    """Enter a new namespace with this process and its children."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise SystemExit(f"a network namespace needs root: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def running(name: str, folder: Path, ports: int) -> Iterator[LoadTarget]:
    """Run a target with `ports` ports, set up for a job of `ports` workers with k = n."""
    with (
        links(name, ports) as (inner, outer),
        reflector(name, folder, inner) if name in REFLECTORS else switch(name, folder, inner) as pid,
    ):
        yield LoadTarget(name=name, folder=folder, interfaces=outer, pid=pid)


@contextlib.contextmanager
def links(name: str, ports: int) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the switch's ends and the hosts' ends of a target's links: tN-s1, tN-h1, ... of target number N."""
    number = TARGETS.index(name)
    pairs = [(f"t{number}-s{port}", f"t{number}-h{port}") for port in range(1, ports + 1)]
    for switch_end, host_end in pairs:
        link = f"ip link add {switch_end} mtu 9000 type veth peer name {host_end} mtu 9000"
        for command in (link, f"ip link set {switch_end} up", f"ip link set {host_end} up"):
            subprocess.run(command.split(), check=True)
    inner, outer = zip(*pairs, strict=True)
    yield inner, outer
    for switch_end, _ in pairs:
        subprocess.run(["ip", "link", "del", switch_end], check=True)


@contextlib.contextmanager
def process(command: list[str], **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that ends with the block, and with this process."""
    with subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], **streams) as started:
        try:
            yield started
        finally:
            started.kill()


@contextlib.contextmanager
def reflector(name: str, folder: Path, interfaces: Sequence[str]) -> Iterator[int]:
    log, command = folder / f"{name}.log", [str(folder / "reflector"), str(int(name in GSO)), *interfaces]
    with log.open("wb") as out, process(command, stdout=out) as started:
        while b"ready\n" not in log.read_bytes():
            if started.poll() is not None:
                raise SystemExit("the reflector ended; its message is above")
            time.sleep(0.01)
        yield started.pid


@contextlib.contextmanager
def switch(name: str, folder: Path, interfaces: Sequence[str]) -> Iterator[int]:
    """Run a switch with the job's entries, as `kofn run` starts it; yield its process id."""
    address, log = _address(name, folder), folder / f"{name}.log"
    ports = [word for port, interface in enumerate(interfaces, 1) for word in ("-i", f"{port}@{interface}")]
    switch_flags = ["--no-p4", *ports, "--device-id", str(DEVICE_ID)]
    command = [*COMMANDS[name], *switch_flags, "--", "--grpc-server-addr", address, "--cpu-port", "255"]
    with log.open("ab") as out, process(command, stdout=out, stderr=out) as started:
        try:
            asyncio.run(install(address, program(name, folder), len(interfaces)))
        except TimeoutError:
            raise SystemExit(f"{name} was not ready within {START_S} s; its output:\n{log.read_text()}") from None
        yield started.pid


def _address(name: str, folder: Path) -> str:
    return f"unix:{folder}/{name}.sock"


def program(name: str, folder: Path) -> CompiledProgram:
    """Return the program that a target runs."""
    if name != "unchecked":
        return CompiledProgram()
    document = json.loads(CompiledProgram().blob.read_bytes())
    document["checksums"] = [entry for entry in document["checksums"] if entry["target"] != ["kofn", "checksum"]]
    blob = folder / "unchecked.json"
    blob.write_text(json_text(document))
    return CompiledProgram(blob=blob)


def layout(workers: int) -> SlotLayout:
    """Return the layout of a job whose hosts are behind ports 1, 2, ..."""
    hosts = tuple(
        TopologyHost(name=f"h{port}", rank=port - 1, mac=0x080000000000 + port, ip=0x0A000000 + port, port=port)
        for port in range(1, workers + 1)
    )
    return SlotLayout(job=JobSection(workers=workers), hosts=hosts)


async def install(address: str, program: CompiledProgram, workers: int) -> None:
    """Install pipeline and entries through P4Runtime, as the controller does. Raise TimeoutError."""
    slots = Slots(layout=layout(workers), k=workers)
    link = SwitchLink(address=address, device_id=DEVICE_ID, plane=KofnPlane(program), jobs=[slots])
    task = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(START_S):
            await link.ready.wait()
            await slots.admit(GENERATION, slots.k)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
