"""A switch as a leaf and as a root answers any packets like the models, bit by bit, with few slots and changing k."""

from collections import Counter
from collections.abc import Iterable

import finsy as fy
import numpy as np
import pytest
from scapy.compat import raw
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from kofn.host.wire.packet import EVERYONE, HEADER_BYTES, MEMBERS_BYTES, PORT, WEIGHT_MAX, Kind, KofnHeader, encode_header
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import SERVICE_IP, SERVICE_MAC, host_mac
from tests.host.protocol.specification.leaf_model import ROOT, LeafModel, Packet
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


def checksummed(packet: Packet) -> bytes:
    """Return a datagram."""
    body = b"".join(bitmap.to_bytes(MEMBERS_BYTES) for bitmap in packet.bitmaps) + packet.values
    head = encode_header(packet.header._replace(checksum=0))
    total = sum(np.frombuffer(head + body, ">u2").tolist())
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return encode_header(packet.header._replace(checksum=0xFFFF - total)) + body


def frame(port: int, packet: Packet) -> bytes:
    return raw(
        Ether(dst=SERVICE_MAC, src=host_mac(port))
        / IP(src=f"10.0.0.{port}", dst=SERVICE_IP)
        / UDP(sport=PORT, dport=PORT, chksum=0)
        / Raw(checksummed(packet))
    )


def parse(port: int, received: bytes) -> Packet:
    """Return the packet in a frame, whose receiver is the port; its checksum must be right."""
    data = bytes(Ether(received)[UDP].payload)
    header = next(iter(headers(data)))
    at = HEADER_BYTES + MEMBERS_BYTES * header.bitmaps
    bitmaps = tuple(
        int.from_bytes(data[i : i + MEMBERS_BYTES]) for i in range(HEADER_BYTES, at, MEMBERS_BYTES)
    )
    packet = Packet(port, header._replace(checksum=0), bitmaps, data[at:])
    assert len(data) == at + 256 * header.words
    assert checksummed(packet) == data
    return packet


def headers(data: bytes) -> Iterable[KofnHeader]:
    from kofn.host.wire.packet import headers_of

    return headers_of(data[:HEADER_BYTES])


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


def entries(job: int) -> list[object]:
    """Return a job's entries besides its own: workers or leaves at ports 1 to 3, for a leaf the root at port 4."""
    found: list[object] = [
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
            found.append(entry("ingress.admission.members", member, "ingress.admission.admit_leaf", rack=rank, most=WORKERS * 4))
        elif port == UPLINK:
            found.append(entry("ingress.admission.members", member, "ingress.admission.admit_root"))
        else:
            found.append(entry("ingress.admission.members", member, "ingress.admission.admit_host"))
        if job == ROOT_JOB or port == UPLINK:
            found.append(entry("egress.deliver.hosts", host, "egress.deliver.to_switch", rack=rank, **address))
        else:
            found.append(entry("egress.deliver.hosts", host, "egress.deliver.to_host", rack=RACK, worker=rank, **address))
    for recipient in range(RACKS << 8):
        if recipient & 255 < WORKERS:
            match = {"hdr.kofn.job": job, "hdr.kofn.recipient": recipient}
            found.append(entry("ingress.admission.recipients", match, "ingress.admission.accept_recipient"))
    return found


class Beside:
    """A model beside a switch."""

    def __init__(self, plane: DataPlane, job: int, seed: int, k: int) -> None:
        self.plane, self.job, self.random = plane, job, np.random.default_rng(seed)
        self.generation = 10
        self.k = k
        self.kinds: Counter[str] = Counter()
        self.plane.loop.run(plane._link._switch.insert([*entries(job), job_entry(job, self.generation, k)]))

    def put(self) -> None:
        self.plane.loop.run(self.plane._link._switch.modify([job_entry(self.job, self.generation, self.k)]))

    def usually(self, value: int, *others: int, chance: float = 0.05) -> int:
        return int(self.random.choice(others)) if self.random.random() < chance else value

    def compare(self, port: int, packet: Packet, expected: list[Packet], ports: dict[int, int]) -> None:
        received = self.plane.lab.exchange(port, frame(port, packet))
        assert all(len(frames) == 1 for frames in received.values())
        real = {to: parse(to, frames[0]) for to, frames in received.items()}
        model = {ports[one.to]: one._replace(to=ports[one.to]) for one in expected if one.to in ports}
        assert real.keys() == model.keys(), (packet.header, [r.header for r in real.values()], [m.header for m in model.values()])
        for to, one in model.items():
            found = real[to]
            assert found.header == one.header, (packet.header, found.header, one.header)
            assert found.bitmaps == one.bitmaps
            if one.header.kind in (Kind.RESULT, Kind.LATE, Kind.CONTRIBUTE):
                assert found.values == one.values, (packet.header, one.header)
            self.kinds[f"{Kind(packet.header.kind).name} {Kind(one.header.kind).name}"] += 1
        self.kinds[f"{Kind(packet.header.kind).name} {len(model)}"] += 1

    def header(self, number: int, worker: int) -> KofnHeader:
        kind = self.usually(Kind.CONTRIBUTE, Kind.PULL, chance=0.1)
        return KofnHeader(
            kind=kind,
            job=self.job,
            worker=worker,
            recipient=self.usually(EVERYONE, *(256 * rack + rank for rack in range(LEAVES) for rank in range(WORKERS))),
            words=self.usually(1, 2, chance=0.02),
            k=self.usually(0, 1, 2, chance=0.03),
            generation=self.generation,
            iteration=1 + number // 25 + self.usually(0, 1, 2, chance=0.02),
            block=self.usually(1, 0, 2),
            slot=self.usually(0, 1),
            scale=self.usually(0, -1, chance=0.05),
            part=self.usually(0, 1),
            weight=1 + int(self.random.integers(WEIGHT_MAX)),
        )


def test_leaf_answers_like_the_model(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    beside = Beside(plane, LEAF_JOB, seed=1, k=5)
    model = LeafModel(rack=RACK, workers=WORKERS, k=5, slots=SLOTS, shift=SHIFT)
    model.generation = beside.generation
    ports = {ROOT: UPLINK, **{rank: rank + 1 for rank in range(WORKERS)}}
    number = 0
    ups: list[KofnHeader] = []
    for number in range(PACKETS):
        if beside.random.random() < 0.02:
            beside.k = model.k = int(beside.random.integers(1, 8))
            beside.put()
        if beside.random.random() < 0.7 or not ups:
            worker = int(beside.random.integers(WORKERS))
            header = beside.header(number, worker)
            if header.kind == Kind.CONTRIBUTE:
                header = header._replace(count=int(beside.random.integers(2)))
            packet = Packet(worker, header, (), beside.random.bytes(256 * header.words))
            expected = model.below(header, packet.values)
            ups += [one.header for one in expected if one.to == ROOT]
            beside.compare(worker + 1, packet, expected, ports)
        else:
            about = ups[int(beside.random.integers(max(len(ups) - 4, 0), len(ups)))]
            packet = from_root(beside, about)
            beside.compare(UPLINK, packet, model.above(packet), ports)
    print(dict(beside.kinds), dict(plane.count()))
    assert {"ADDED", "SENT", "PASSED", "ASKED", "HEARD", "IGNORED", "CLOSED", "LATE", "STALE"} <= plane.count().keys()


def from_root(beside: Beside, about: KofnHeader) -> Packet:
    """Return what a root may answer."""
    kind = Kind(beside.usually(Kind.ADDED, Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH, chance=0.4))
    some = int(beside.random.integers(1 << WORKERS))
    members = (about.members if beside.random.random() < 0.7 else 0) | (some if beside.random.random() < 0.2 else 0)
    header = about._replace(
        kind=kind,
        worker=RACK,
        rack=RACK,
        members=members,
        count=int(beside.random.integers(5)),
        k=beside.k,
        scale=beside.usually(about.scale, -1, chance=0.1),
    )
    if kind in (Kind.RESULT, Kind.LATE):
        bitmaps = tuple(int(beside.random.integers(1, 8)) for _ in range(RACKS))
        words = 0 if header.recipient not in (EVERYONE,) and header.recipient >> 8 != RACK else header.words
        return Packet(ROOT, header._replace(bitmaps=RACKS, words=words), bitmaps, beside.random.bytes(256 * words))
    words = 0 if kind == Kind.ADDED else header.words
    return Packet(ROOT, header._replace(words=words), (), bytes(256 * words))


def test_root_answers_like_the_model(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    beside = Beside(plane, ROOT_JOB, seed=2, k=6)
    model = RootModel(racks=RACKS, k=6, slots=SLOTS)
    model.generation = beside.generation
    ports = {rack: rack + 1 for rack in range(LEAVES)}
    for number in range(PACKETS):
        if beside.random.random() < 0.02:
            beside.k = model.k = int(beside.random.integers(1, 8))
            beside.put()
        rack = int(beside.random.integers(LEAVES))
        members = int(beside.random.integers(1, 1 << WORKERS)) | (int(beside.random.integers(2)) << 64)
        header = beside.header(number, rack)._replace(members=members, part=0)
        counted = (members & (1 << WORKERS) - 1).bit_count()
        header = header._replace(count=counted, weight=1 + int(beside.random.integers(counted * WEIGHT_MAX + 1)))
        if header.kind == Kind.PULL:
            header = header._replace(count=1)
        packet = Packet(rack, header, (), beside.random.bytes(256 * header.words))
        beside.compare(rack + 1, packet, model.handle(header, packet.values), ports)
    print(dict(beside.kinds), dict(plane.count()))
    assert {"OPENED", "ADDED", "DUPLICATE", "OVERLAP", "CLOSED", "LATE", "STALE", "FORMAT_MISMATCH", "NOT_READY"} <= plane.count().keys()
