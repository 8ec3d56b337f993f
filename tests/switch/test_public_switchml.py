"""A public SwitchML for BMv2 answers its recorded packets as BMv2 did, to the byte.

KOFN_SWITCHML names a checkout of github.com/chenyuchuting0912/SwitchML. Its folders for 2 to 10 workers, two of them
with retransmission, have a program compiled by p4c-bm, commands, and the packets of each port of a run on BMv2. BMv2
named the files from the interface's view: packets to the switch are in `_out.pcap`, its answers in `_in.pcap`.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader

from kofn_switch.commands.interpreter import answer
from kofn_switch.commands.session import Session
from kofn_switch.engine.engine import Engine

CHECKOUT = Path(os.environ.get("KOFN_SWITCHML") or "/nonesuch")
FOLDERS = sorted(path.parent for path in CHECKOUT.glob("contrast*/**/s1-eth1_in.pcap") if path.stat().st_size)
FOLDERS = [folder for folder in FOLDERS if (folder / "Switch_ML.json").exists()]
ADDED = "Entry has been added"
IPV4_ID, UDP_PORT, BLOCK = slice(18, 20), slice(36, 38), slice(-136, -128)
SML_PORT = b"\x22\xb8"

pytestmark = [
    pytest.mark.skipif(not CHECKOUT.is_dir(), reason="KOFN_SWITCHML names no checkout of chenyuchuting0912/SwitchML"),
    pytest.mark.timeout(30),
]


@dataclass(kw_only=True)
class Recorded:
    """A packet, with the time of its interface in microseconds; `block` has idx and off, and how often they came."""

    port: int
    data: bytes
    time_us: float
    block: tuple[bytes, int] | None


def recorded(folder: Path, way: str) -> Iterator[Recorded]:
    """Yield the packets of all ports, one port after the other."""
    for path in sorted(folder.glob(f"s1-eth*_{way}.pcap")):
        seen = Counter[bytes]()
        port = int(path.name.removeprefix("s1-eth").split("_")[0])
        for data, meta in packets(path):
            number, is_block = data[BLOCK], data[UDP_PORT] == SML_PORT
            seen[number] += is_block
            block = (number, seen[number]) if is_block else None
            yield Recorded(port=port, data=data, time_us=meta.sec * 1e6 + meta.usec, block=block)


def packets(path: Path) -> list[tuple[bytes, RawPcapReader.PacketMetadata]]:
    if not path.stat().st_size:
        return []  # BMv2 writes even the header with the first packet
    with RawPcapReader(str(path)) as reader:
        return list(reader)


def in_order(arrived: Sequence[Recorded], answers: Sequence[Recorded]) -> list[Recorded]:
    """Return the packets in an order that BMv2 may have processed them in.

    The times are those of the interfaces, from which BMv2 read in turn. An answer has the IPv4 id of the packet that
    completed its block, so this packet was the block's last one; a repetition without an answer came before it.
    """
    completing = {one.block: one.data[IPV4_ID] for one in answers}
    answered = {(one.block and one.block[0], one.data[IPV4_ID]) for one in answers}
    last_us = {one.block: one.time_us for one in sorted(arrived, key=attrgetter("time_us"))}
    for one in arrived:
        if one.block is None:
            continue
        number, count = one.block
        if one.data[IPV4_ID] == completing.get(one.block):
            one.time_us = last_us[one.block] + 0.5
        elif one.block not in completing and (number, one.data[IPV4_ID]) not in answered:
            one.time_us = min(one.time_us, last_us.get((number, count - 1), math.inf))
    return sorted(arrived, key=attrgetter("time_us", "port"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(CHECKOUT)))
def test_answers_equal_the_recorded_ones(folder: Path) -> None:
    engine = Engine({})
    engine.load((folder / "Switch_ML.json").read_bytes())
    session = Session(engine)
    for line in (folder / "commands.txt").read_text().splitlines():
        said = answer(session, line)
        assert ADDED in said or not line.startswith("table_add"), f"{line}: {said}"

    expected = list(recorded(folder, "in"))
    sent: dict[int, list[bytes]] = {one.port: [] for one in expected}
    for one in in_order(list(recorded(folder, "out")), expected):
        for port, data in engine.inject(one.port, one.data):
            if port in sent:  # the others have no interface
                sent[port].append(data)
    for port, found in sent.items():
        wanted = sorted(one.data for one in expected if one.port == port)
        assert (len(found), sorted(found) == wanted) == (len(wanted), True), f"port {port}"
