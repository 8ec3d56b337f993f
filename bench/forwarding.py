"""Packets of 64 bytes a second through one entry of an lpm table: the embedded switch and BMv2.  Needs root and cc.

    python -m bench.forwarding [--basic FOLDER] [--rounds 5]

A sender offers packets at one port, at several rates; what arrives behind another port is counted by the kernel.  The
best rate of each switch counts: one that is offered more than it forwards shares its processors with the sender.
Where a switch forwards less than is sent, it is the limit, not the sender.

The program is bench/entries; with --basic the solution of the p4lang tutorials' exercise, from a folder that has its
basic.json and basic.p4.p4info.txtpb or .txt as p4c writes them.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

from bench.entries import P4INFO, PRIMARY, PROGRAM, primary
from bench.tables import whole
from kofn.experiments.load.targets import COMMANDS, START_S, laboratory, links, process
from kofn.run.switch_identity import bmv2

RATES = (40_000, 80_000, 160_000, 320_000, 0)  # offered a second; 0: as many as the sender can
TURN_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class LpmEntry:
    """A program, its entry, and a packet that the entry sends to port 2."""

    document: bytes
    p4info: p4i.P4Info
    table: str
    action: str
    key: bytes
    parameters: tuple[bytes, ...]
    frame: bytes

    def update(self) -> p4r.Update:
        """The entry, a whole address long."""
        preambles = [one.preamble for one in self.p4info.tables] + [one.preamble for one in self.p4info.actions]
        ids = {one.name: one.id for one in preambles}
        match = p4r.FieldMatch(field_id=1, lpm=p4r.FieldMatch.LPM(value=self.key, prefix_len=8 * len(self.key)))
        params = [p4r.Action.Param(param_id=number, value=value) for number, value in enumerate(self.parameters, 1)]
        action = p4r.TableAction(action=p4r.Action(action_id=ids[self.action], params=params))
        row = p4r.TableEntry(table_id=ids[self.table], match=[match], action=action)
        return p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(table_entry=row))


def bare_entry() -> LpmEntry:
    return LpmEntry(
        document=PROGRAM,
        p4info=P4INFO,
        table="Entries.routes",
        action="Entries.send",
        key=bytes((10, 0, 2, 2)),
        parameters=(b"\2",),
        frame=(bytes(12) + b"\0\2" + bytes((10, 0, 1, 1, 10, 0, 2, 2))).ljust(64, b"\0"),
    )


def basic_entry(folder: Path) -> LpmEntry:
    """IPv4: a TTL that goes down, other addresses, a new checksum."""
    p4info = next(iter(sorted(folder.glob("basic*p4info.tx*"))), folder / "basic.p4.p4info.txtpb")
    ip = bytes.fromhex("4500003200000000400064970a0001010a000202")
    return LpmEntry(
        document=(folder / "basic.json").read_bytes(),
        p4info=text_format.Parse(p4info.read_text(), p4i.P4Info()),
        table="MyIngress.ipv4_lpm",
        action="MyIngress.ipv4_forward",
        key=bytes((10, 0, 2, 2)),
        parameters=(bytes.fromhex("080000000222"), b"\2"),
        frame=(bytes.fromhex("080000000100080000000111") + b"\x08\0" + ip).ljust(64, b"\0"),
    )


@contextlib.contextmanager
def switch(name: str, folder: Path, entry: LpmEntry) -> Iterator[None]:
    """Between two links, with the program and its entry."""
    address = f"unix:{folder}/{name}.sock"
    with links(name, 2) as (inner, _):
        ports = [word for port, interface in enumerate(inner, 1) for word in ("-i", f"{port}@{interface}")]
        command = [*COMMANDS[name], "--no-p4", *ports, "--device-id", "1", "--", "--grpc-server-addr", address]
        quiet = subprocess.DEVNULL
        with process(command, stdout=quiet, stderr=quiet), grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(START_S)
            stub = p4r_grpc.P4RuntimeStub(channel)
            with primary(stub, entry.p4info, entry.document):
                stub.Write(p4r.WriteRequest(device_id=1, election_id=PRIMARY, updates=[entry.update()]))
                yield


def arrived(interface: str) -> int:
    """Packets that the kernel counted there."""
    told = subprocess.run(["ip", "-s", "-j", "link", "show", "dev", interface], check=True, capture_output=True)
    return int(json.loads(told.stdout)[0]["stats64"]["rx"]["packets"])


def turn(name: str, folder: Path, frame: bytes, rate: int) -> tuple[float, float]:
    """Packets sent and arrived a second."""
    before = arrived(f"{name}-h2")
    command = [str(folder / "flood"), str(TURN_S), str(rate), f"{name}-h1"]
    sent, seconds = map(float, subprocess.run(command, check=True, input=frame, capture_output=True).stdout.split())
    return sent / seconds, (arrived(f"{name}-h2") - before) / seconds


def best(turns: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians sent and received at the offered rate of which most arrived."""
    return statistics.median(sent for sent, _ in turns), statistics.median(came for _, came in turns)


def main() -> None:
    """Print a line for each switch."""
    kept = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench.forwarding", description=__doc__, formatter_class=kept)
    parser.add_argument("--basic", type=Path, help="a folder with the tutorials' basic, compiled")
    parser.add_argument("--rounds", type=whole(), default=5, help="turns at each rate (default 5)")
    told = parser.parse_args()
    entry = bare_entry() if told.basic is None else basic_entry(told.basic)
    names = ["embedded"] if bmv2() is None else ["embedded", "bmv2"]
    with laboratory() as folder, contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(switch(name, folder, entry))
        found: dict[str, tuple[float, float]] = {}
        for name in names:
            found[name] = max(
                (best([turn(name, folder, entry.frame, rate) for _ in range(told.rounds)]) for rate in RATES),
                key=lambda rates: rates[1],
            )
            sent, came = found[name]
            print(f"{name}: {came:,.0f} packets a second of {sent:,.0f} sent", flush=True)
    if len(found) > 1:
        print(f"embedded/bmv2: {found['embedded'][1] / found['bmv2'][1]:.2f}")


if __name__ == "__main__":
    main()
