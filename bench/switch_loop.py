"""Contributions per second of the embedded switch, of BMv2 and of a bare reflector.  Needs root and cc.

    python bench/switch_loop.py [--target embedded] [--target unchecked] [--rounds 3] [--seconds 2] [--window 64]

Two workers (bench/switch_loop.c) run in a closed loop, k = 2, over the same two veth pairs.  The targets take turns;
each is a process of its own, started as `kofn run` starts it and set up through P4Runtime as the controller does it.
The reflector (bench/reflector.c) moves the same frames unread: the limit that the kernel sets.  "unchecked" is the
embedded switch with the same program, but without the checksum over header and values: embedded/unchecked is its price.
Everything runs in a network namespace of its own that ends with it.
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.entries import Layout
from controller.program import Program
from controller.push import SwitchLink
from controller.slots import Slots
from controller.topology import Host
from run.config import Job

HERE = Path(__file__).parent
CLONE_NEWNET = 0x40000000
SIZES = (1024, 8192)  # bytes of values in a packet, four bytes each
DEVICE_ID = 9
GENERATION = 1
START_S = 30
EMBEDDED = [sys.executable, "-m", "switch"]
COMMANDS = {"embedded": EMBEDDED, "unchecked": EMBEDDED, "bmv2": ["simple_switch_grpc"]}
TARGETS = ("embedded", "unchecked", "bmv2", "reflector")
LAYOUT = Layout(
    job=Job(workers=2),
    hosts=tuple(
        Host(name=f"h{port}", rank=port - 1, mac=0x080000000000 + port, ip=0x0A000000 + port, port=port)
        for port in (1, 2)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One turn of one target with one packet size."""

    target: str
    size: int
    rate: float  # contributions of both workers a second
    lost: int  # contributions without a result


def make_links() -> None:
    """A namespace with the pairs s1-h1 and s2-h2."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise SystemExit(f"a network namespace needs root: {os.strerror(ctypes.get_errno())}")
    for worker in (1, 2):
        pair = f"ip link add s{worker} mtu 9000 type veth peer name h{worker} mtu 9000"
        for command in (pair, f"ip link set s{worker} up", f"ip link set h{worker} up"):
            subprocess.run(command.split(), check=True)


@contextlib.contextmanager
def process(command: list[str], **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with the block, and with this one."""
    with subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], **streams) as started:
        try:
            yield started
        finally:
            started.kill()


@contextlib.contextmanager
def reflector(folder: Path) -> Iterator[None]:
    """The reflector on s1 and s2."""
    with process([str(folder / "reflector"), "s1", "s2"], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        if started.stdout.readline() != b"ready\n":
            raise SystemExit("the reflector ended; what it said is above")
        yield


@contextlib.contextmanager
def switch(target: str, folder: Path) -> Iterator[None]:
    """A switch with ports s1 and s2 and the job's entries."""
    address, log = f"unix:{folder}/{target}.sock", folder / f"{target}.log"
    ports = ["-i", "1@s1", "-i", "2@s2", "--device-id", str(DEVICE_ID)]
    command = [*COMMANDS[target], "--no-p4", *ports, "--", "--grpc-server-addr", address, "--cpu-port", "255"]
    with log.open("ab") as out, process(command, stdout=out, stderr=out):
        try:
            asyncio.run(install(address, program(target, folder)))
        except TimeoutError:
            raise SystemExit(f"{target} was not ready within {START_S} s; it said:\n{log.read_text()}") from None
        yield


def program(target: str, folder: Path) -> Program:
    """The program that a target runs."""
    if target != "unchecked":
        return Program()
    document = json.loads(Program().blob.read_bytes())
    document["checksums"] = [one for one in document["checksums"] if one["target"] != ["kofn", "checksum"]]
    blob = folder / "unchecked.json"
    blob.write_text(json.dumps(document))
    return Program(blob=blob)


async def install(address: str, program: Program) -> None:
    """Pipeline and entries through P4Runtime, as the controller does it; raises TimeoutError."""
    slots = Slots(layout=LAYOUT, k=2)
    link = SwitchLink(address=address, device_id=DEVICE_ID, program=program, jobs=[slots])
    task = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(START_S):
            await link.ready.wait()
            await slots.admit(GENERATION, slots.k)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def measure(target: str, folder: Path, options: argparse.Namespace) -> Iterator[Measured]:
    """One turn of a target: every packet size."""
    with reflector(folder) if target == "reflector" else switch(target, folder):
        for size in SIZES:
            numbers = map(str, (options.seconds, size, options.window, GENERATION))
            command = [str(folder / "switch_loop"), *numbers, "h1", "h2"]
            rate, lost = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
            yield Measured(target=target, size=size, rate=float(rate), lost=int(lost))


def table(turns: Sequence[Measured], targets: Sequence[str]) -> Iterator[str]:
    """A row for each packet size: medians, and the embedded switch's ratios to the others."""
    others = [target for target in targets if target != "embedded"] if "embedded" in targets else []
    columns = [*targets, *(f"embedded/{other}" for other in others)]
    yield " | ".join(["values".rjust(6), *(f"{column:>18}" for column in columns)])
    for size in SIZES:
        rates = {
            target: statistics.median(turn.rate for turn in turns if (turn.target, turn.size) == (target, size))
            for target in targets
        }
        cells = [f"{rates[target]:,.0f}/s" for target in targets]
        cells += [f"{rates['embedded'] / rates[other]:.2f}" for other in others]
        yield " | ".join([f"{size // 4:6}", *(f"{cell:>18}" for cell in cells)])
    for target in targets:
        lost = sum(turn.lost for turn in turns if turn.target == target)
        if lost:
            yield f"{target}: {lost} contributions had no result; a slot stands still once it lost one"


def compile_into(folder: Path) -> None:
    """The workers and the reflector."""
    for name in ("switch_loop", "reflector"):
        subprocess.run(["cc", "-O2", "-o", str(folder / name), str(HERE / f"{name}.c")], check=True)


def parse() -> argparse.Namespace:
    """The command line."""
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kept)
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="repeat for several (default: all there are)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each target; medians are printed (default 3)")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement (default 2)")
    parser.add_argument("--window", type=int, default=64, help="blocks in flight of each worker (default 64)")
    options = parser.parse_args()
    if min(options.rounds, options.seconds, options.window) < 1 or options.window > LAYOUT.job.slots // 2:
        parser.error(f"--rounds, --seconds and --window are at least 1, --window at most {LAYOUT.job.slots // 2}")
    missing = [] if shutil.which("simple_switch_grpc") else ["bmv2"]
    if missing and "bmv2" in (options.target or ()):
        parser.error("--target bmv2 needs simple_switch_grpc on the PATH")
    options.target = options.target or [target for target in TARGETS if target not in missing]
    return options


def show(progress: str) -> None:
    """One line on a terminal, that the next one replaces."""
    if sys.stderr.isatty():
        print(progress, end="\033[K\r", file=sys.stderr, flush=True)


def main() -> None:
    """Print one table."""
    options = parse()
    logging.getLogger("controller").setLevel(logging.ERROR)  # it warns until a switch is up
    make_links()
    turns: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        compile_into(Path(name))
        for number in range(options.rounds):
            for target in options.target:
                show(f"round {number + 1} of {options.rounds}: {target}")
                turns += measure(target, Path(name), options)
    show("")
    print(f"contributions of two workers a second, window {options.window}, median of {options.rounds}:")
    print(*table(turns, options.target), sep="\n")


if __name__ == "__main__":
    main()
