"""A switch as a leaf and as a root answers any packets like the models, bit by bit, with few slots and changing k."""

import asyncio
from collections.abc import Callable
from typing import Any

import finsy as fy
import numpy as np
import pytest
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether

from kofn_common.wire.packet import (
    EVERYONE,
    HEADER_BYTES,
    MEMBERS_BITS,
    MEMBERS_BYTES,
    Kind,
    KofnHeader,
    headers_of,
    members_of,
    sum_of,
)
from kofn_common.wire.sizes import WEIGHT_MAX
from kofn_controller.errors import InspectionError
from kofn_controller.p4runtime.occupancy import read_slots
from kofn_switch.identity import BMV2
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import GENERATION, frame, host_mac
from tests.host.protocol.specification.leaf_model import ROOT, LeafModel, Packet
from tests.host.protocol.specification.leaf_scripts import SCRIPTS, Script, answered
from tests.host.protocol.specification.root_model import RootModel

pytestmark = pytest.mark.root

LEAF_JOB, ROOT_JOB = 2, 3
RACKS, RACK = 16, 1
"""A result of 16 racks is 512 bytes longer than the packet that closes it, which is as much as BMv2 lets it grow."""

WORKERS = LEAVES = 3
UPLINK = HOSTS
SLOTS = 2
SHIFT = 1
PACKETS = 1500


def body(packet: Packet) -> bytes:
    """Return the bytes behind the header."""
    return b"".join(bitmap.to_bytes(MEMBERS_BYTES) for bitmap in packet.bitmaps) + packet.values


def parse(port: int, received: bytes) -> Packet:
    """Return the packet in a frame, whose receiver is the port; its checksum must be right."""
    data = bytes(Ether(received)[UDP].payload)
    (header,) = headers_of(data[:HEADER_BYTES])
    at = HEADER_BYTES + MEMBERS_BYTES * header.bitmaps
    bitmaps = tuple(int.from_bytes(data[i : i + MEMBERS_BYTES]) for i in range(HEADER_BYTES, at, MEMBERS_BYTES))
    packet = Packet(port, header._replace(checksum=0), bitmaps, data[at:])
    assert len(data) == at + 256 * header.words
    assert sum_of(data) == 0
    return packet


def entry(table: str, match: dict[str, int], action: str, **parameters: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(table, match=fy.P4TableMatch(match), action=fy.P4TableAction(action, **parameters))


def job_entry(job: int, generation: int, k: int) -> fy.P4TableEntry:
    slots = {"k": k, "group": job, "mask": SLOTS - 1, "generation": generation, "racks": RACKS}
    match = {"hdr.kofn.job": job}
    if job == ROOT_JOB:
        return entry("ingress.admission.jobs", match, "ingress.admission.set_job", base=1024, room=65535, **slots)
    everyone = (1 << WORKERS) - 1
    rack = {"rack": RACK, "uplink": UPLINK, "everyone": everyone, "shift": SHIFT}
    return entry("ingress.admission.jobs", match, "ingress.admission.set_leaf", base=2048, **slots, **rack)


def entries(job: int) -> list[fy.P4TableEntry | fy.P4MulticastGroupEntry]:
    """Return a job's entries besides its own: workers or leaves at ports 1 to 3, for a leaf the root at port 4."""
    found: list[fy.P4TableEntry | fy.P4MulticastGroupEntry] = [
        fy.P4MulticastGroupEntry(job, replicas=list(range(1, HOSTS))),
    ]
    for port in range(1, HOSTS + 1):
        if job == ROOT_JOB and port == HOSTS:
            continue
        rank = RACK if port == UPLINK else port - 1
        member = {"standard_metadata.ingress_port": port, "hdr.kofn.job": job, "hdr.kofn.worker": rank}
        host = {"standard_metadata.egress_port": port, "hdr.kofn.job": job}
        address = {"mac": int(host_mac(port).replace(":", ""), 16), "ip": 0x0A000000 + port}
        if job == ROOT_JOB:
            found.append(
                entry("ingress.admission.members", member, "ingress.admission.admit_leaf", rack=rank, most=WORKERS * 4)
            )
        elif port == UPLINK:
            found.append(entry("ingress.admission.members", member, "ingress.admission.admit_root"))
        else:
            found.append(entry("ingress.admission.members", member, "ingress.admission.admit_host"))
        if job == ROOT_JOB or port == UPLINK:
            found.append(entry("egress.deliver.hosts", host, "egress.deliver.to_switch", rack=rank, **address))
        else:
            found.append(
                entry("egress.deliver.hosts", host, "egress.deliver.to_host", rack=RACK, worker=rank, **address)
            )
    for recipient in range(RACKS << 8):
        if recipient & 255 < WORKERS:
            match = {"hdr.kofn.job": job, "hdr.kofn.recipient": recipient}
            found.append(entry("ingress.admission.recipients", match, "ingress.admission.accept_recipient"))
    return found


class Beside:
    """A switch beside a model of it, and a source of random packets for both.

    `ports`: the port of each receiver of the model's packets; others have none.
    """

    def __init__(self, plane: DataPlane, job: int, seed: int, ports: dict[int, int]) -> None:
        self.plane, self.job, self.ports, self.random = plane, job, ports, np.random.default_rng(seed)
        self.k = 5
        self._write(plane.switch_link.insert([*entries(job), job_entry(job, GENERATION, self.k)]))

    def vary_k(self) -> int:
        """Change k now and then; return it."""
        if self.random.random() < 0.02:
            self.k = int(self.random.integers(1, 8))
            self._write(self.plane.switch_link.modify([job_entry(self.job, GENERATION, self.k)]))
        return self.k

    def usually(self, value: int, *others: int, chance: float = 0.05) -> int:
        return int(self.random.choice(others)) if self.random.random() < chance else value

    def header(self, number: int, worker: int) -> KofnHeader:
        """Return the header of packet `number` by this worker, most of which meet in one block."""
        recipients = (256 * rack + rank for rack in range(LEAVES) for rank in range(WORKERS))
        return KofnHeader(
            kind=self.usually(Kind.CONTRIBUTE, Kind.PULL, chance=0.1),
            job=self.job,
            worker=worker,
            recipient=self.usually(EVERYONE, *recipients),
            words=self.usually(1, 2, chance=0.02),
            k=self.usually(0, WORKERS + 5, chance=0.03),
            generation=GENERATION,
            iteration=1 + number // 25 + self.usually(0, 1, 2, chance=0.02),
            block=self.usually(1, 0, 2),
            slot=self.usually(0, 1),
            scale=self.usually(0, -1, chance=0.05),
            part=self.usually(0, 1),
            weight=1 + int(self.random.integers(WEIGHT_MAX)),
        )

    def values(self, words: int) -> bytes:
        return self.random.bytes(256 * words)

    def compare(self, port: int, packet: Packet, expected: list[Packet]) -> None:
        """Send a packet from a port: the switch must send what the model does."""
        received = self.plane.lab.exchange(port, frame(port, packet.header, body(packet)))
        assert all(len(frames) == 1 for frames in received.values())
        real = {to: parse(to, frames[0]) for to, frames in received.items()}
        model = {self.ports[one.to]: one for one in expected if one.to in self.ports}
        assert real.keys() == model.keys(), packet.header
        for to, one in model.items():
            assert real[to].header == one.header, packet.header
            assert real[to].bitmaps == one.bitmaps
            if one.header.kind in (Kind.RESULT, Kind.LATE, Kind.CONTRIBUTE):
                assert real[to].values == one.values

    def _write(self, writing: Any) -> None:
        self.plane.loop.run(writing)


def test_leaf_answers_like_the_model(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    beside = Beside(plane, LEAF_JOB, 1, {ROOT: UPLINK, **{rank: rank + 1 for rank in range(WORKERS)}})
    model = LeafModel(rack=RACK, workers=WORKERS, k=beside.k, slots=SLOTS, shift=SHIFT)
    model.generation = GENERATION
    ups: list[KofnHeader] = []
    for number in range(PACKETS):
        model.k = beside.vary_k()
        if beside.random.random() < 0.7 or not ups:
            worker = int(beside.random.integers(WORKERS))
            header = beside.header(number, worker)
            if header.kind == Kind.CONTRIBUTE:
                header = header._replace(count=int(beside.random.integers(2)))
            packet = Packet(worker, header, (), beside.values(header.words))
            expected = model.below(header, packet.values)
            ups += [one.header for one in expected if one.to == ROOT]
            beside.compare(worker + 1, packet, expected)
        else:
            about = ups[int(beside.random.integers(max(len(ups) - 4, 0), len(ups)))]
            packet = from_root(beside, about)
            beside.compare(UPLINK, packet, model.above(packet))
    assert plane.count().keys() >= {
        *("ADDED", "SENT", "PASSED", "ASKED", "HEARD", "IGNORED"),
        *("CLOSED", "LATE", "STALE", "FORMAT_MISMATCH"),
    }
    with pytest.raises(InspectionError, match="must be the root of its tree, got a leaf"):
        asyncio.run(read_slots(plane.switch.address, 0))


@pytest.mark.parametrize("script", SCRIPTS)
def test_leaf_follows_a_script(plane: DataPlane, script: Callable[[KofnHeader], Script]) -> None:
    plane.install(k=HOSTS)
    beside = Beside(plane, LEAF_JOB, 3, {ROOT: UPLINK, **{rank: rank + 1 for rank in range(WORKERS)}})
    model = LeafModel(rack=RACK, workers=WORKERS, k=beside.k, slots=SLOTS, shift=SHIFT)
    model.generation = GENERATION
    for header, wanted in script(KofnHeader(job=LEAF_JOB, generation=GENERATION)):
        packet, expected = answered(model, header)
        assert [(one.to, one.header.kind) for one in expected] == wanted
        beside.compare(UPLINK if packet.to == ROOT else packet.to + 1, packet, expected)


def from_root(beside: Beside, about: KofnHeader) -> Packet:
    """Return a packet that a root may send about this request."""
    kind = Kind(beside.usually(Kind.ADDED, Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH, chance=0.4))
    own = about.members if beside.random.random() < 0.7 else 0
    others = int(beside.random.integers(1 << WORKERS)) if beside.random.random() < 0.2 else 0
    header = about._replace(
        kind=kind,
        worker=RACK,
        rack=RACK,
        members=own | others,
        count=int(beside.random.integers(5)),
        k=beside.k,
        scale=beside.usually(about.scale, -1, chance=0.1),
    )
    if kind not in (Kind.RESULT, Kind.LATE):
        words = 0 if kind == Kind.ADDED else header.words
        return Packet(ROOT, header._replace(words=words), (), bytes(256 * words))
    words = header.words if header.recipient == EVERYONE or header.recipient >> 8 == RACK else 0
    bitmaps = tuple(int(beside.random.integers(1, 8)) for _ in range(RACKS))
    return Packet(ROOT, header._replace(bitmaps=RACKS, words=words), bitmaps, beside.values(words))


def test_root_answers_like_the_model(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    beside = Beside(plane, ROOT_JOB, 2, {rack: rack + 1 for rack in range(LEAVES)})
    model = RootModel(racks=RACKS, k=beside.k, slots=SLOTS)
    model.generation = GENERATION
    for number in range(PACKETS):
        model.k = beside.vary_k()
        rack = int(beside.random.integers(LEAVES))
        counted = int(beside.random.integers(1, 1 << WORKERS))
        members = counted | int(beside.random.integers(2)) << 64  # sometimes with a part that does not count
        header = beside.header(number, rack)._replace(members=members, part=0, count=counted.bit_count())
        if header.kind == Kind.PULL:
            header = header._replace(count=1)
        packet = Packet(rack, header, (), beside.values(header.words))
        beside.compare(rack + 1, packet, model.handle(header, packet.values))
    assert plane.count().keys() >= {
        *("OPENED", "ADDED", "DUPLICATE", "OVERLAP"),
        *("CLOSED", "LATE", "STALE", "FORMAT_MISMATCH", "NOT_READY"),
    }
    if plane.switch.command[0] == BMV2:
        return
    places = [MEMBERS_BITS * rack + rank for rack in range(RACKS) for rank in range(WORKERS)]
    (shown,) = asyncio.run(read_slots(plane.switch.address, 0, ROOT_JOB))
    assert shown.workers == tuple(range(RACKS * WORKERS))
    assert [(one.closed, list(one.present)) for one in shown.slots] == [
        (slot.done, members_of(slot.members, places)) for slot in model.slots
    ]
