"""A simulation's switch answers like its model, packet by packet, to any packets: alone, as a leaf, and as a root."""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from random import Random

import pytest

from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.network import Link, VirtualSwitch
from kofn_common.wire.packet import EVERYONE, MEMBERS_BYTES, WORD_BYTES, Kind, KofnHeader, Lanes, bit_of
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX, WEIGHT_MAX
from kofn_host.protocol.leaf import NativeLeaf
from kofn_host.protocol.slots import NativeSlots
from kofn_host.transport.fault_injection import Faults
from tests.host.protocol.specification.leaf_model import ROOT, LeafModel, Packet
from tests.host.protocol.specification.leaf_scripts import SCRIPTS, Script, answered
from tests.host.protocol.specification.root_model import RootModel
from tests.host.protocol.specification.slot_model import SlotModel

WORKERS, SLOTS = 3, 2
RACKS, RACK = 3, 1
GAMES, PACKETS = 60, 100

Said = list[tuple[int, KofnHeader, bytes]]


def drawn(random: Random, lanes: int, codes: Sequence[int] = (0,)) -> KofnHeader:
    """Return a packet that a worker might send, mostly in these lanes; two slots get all packets."""
    return KofnHeader(
        kind=random.choice([Kind.CONTRIBUTE, Kind.CONTRIBUTE, Kind.CONTRIBUTE, Kind.PULL]),
        worker=random.randrange(WORKERS),
        recipient=random.choice([EVERYONE, EVERYONE, EVERYONE, 0, 2, 256 * RACK + 1]),
        lanes=random.choice([lanes] * 9 + [*codes]),
        flags=random.randrange(5),
        words=random.choice([1] * 9 + [2, 6]),
        k=random.choice([0, 0, 0, 1, 2]),
        generation=random.choice([0] * 9 + [1]),
        iteration=random.choice([2] * 9 + [1]) + random.randrange(3),
        block=random.randrange(2),
        slot=random.randrange(SLOTS + 1),
        scale=random.choice([0] * 9 + [-1]),
        count=random.choice([0, 1, 1]),
        part=random.choice([0, 0, 1, 3]),
        weight=random.randrange(2**20),
    )


class Switch:
    """A simulation's switch, and what it says to each neighbour; ROOT is a leaf's root."""

    def __init__(self, slots: NativeSlots | NativeLeaf, neighbours: int) -> None:
        self.clock, self.said, self.noted = VirtualClock(), Said(), list[tuple[int, int, bool]]()
        self.switch = VirtualSwitch(
            Machine(self.clock, 0),
            slots,
            neighbours=neighbours,
            packet_s=1e-6,
            digest=lambda *noted: self.noted.append(noted),
        )
        self.switch.lead([self._link(rank) for rank in range(neighbours)], self._link(ROOT))

    def _link(self, rank: int) -> Link:
        faults = Faults((), rank=0, direction="receive", seed=1)
        return Link(self.clock, None, faults, lambda header, values: self.said.append((rank, header, values)))

    def send(self, header: KofnHeader, body: bytes) -> Said:
        """Return the answers, by neighbour."""
        self.said.clear()
        self.noted.clear()
        self.switch.take(header, body)
        self.clock.run()
        return sorted(self.said, key=itemgetter(0))


class Pair:
    """A switch alone and its model, which get the same packets."""

    def __init__(self, k: int) -> None:
        self.model = SlotModel(workers=WORKERS, k=k, slots=SLOTS)
        self.slots = NativeSlots.open(workers=WORKERS, k=k, slots=SLOTS)
        self.switch = Switch(self.slots, WORKERS)
        self.latest = [0] * WORKERS

    def send(self, header: KofnHeader, values: bytes) -> Said:
        expected = self.model.handle(header, values)
        assert self.switch.send(header, values) == expected, "workers must take turns to be the first"
        assert self.switch.noted == self._digest(header, expected)
        return expected

    def _digest(self, header: KofnHeader, answers: Said) -> list[tuple[int, int, bool]]:
        """Return the digest of a packet: of a worker's first counted contribution in an iteration."""
        if header.kind != Kind.CONTRIBUTE or not header.count or header.iteration <= self.latest[header.worker]:
            return []
        self.latest[header.worker] = header.iteration
        late = any(answer.kind in (Kind.LATE, Kind.STALE) for _, answer, _ in answers)
        return [(header.worker, header.iteration, late)]


def test_answers_equal_the_slot_models() -> None:
    random, kinds, shorts = Random(1), Counter[tuple[int, int]](), 0
    for game in range(GAMES):
        pair = Pair(k=random.randint(1, WORKERS))
        for _ in range(PACKETS):
            header = drawn(random, game % len(Lanes))
            said = pair.send(header, random.randbytes(header.words * WORD_BYTES))
            kinds += Counter((Kind(answer.kind), answer.lanes) for _, answer, _ in said)
            shorts += sum(not values for _, _, values in said)
            if not random.randrange(10):
                pair.model.k = pair.slots.k = random.randint(1, WORKERS)
    answers = (Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH)
    assert all(kinds[kind, lanes] > 10 for kind in answers for lanes in Lanes), kinds
    assert shorts > 100


def test_switch_reports_the_first_counted_contribution() -> None:
    """Like p4src/measure.p4, it reports once for each worker and iteration, whatever the block."""
    pair, noted = Pair(k=2), list[tuple[int, int, bool]]()
    for worker, block, count in ((0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 1, 0), (2, 1, 1), (1, 1, 1), (1, 1, 0)):
        pair.send(KofnHeader(worker=worker, block=block, slot=block, count=count, part=1 - count), bytes(WORD_BYTES))
        noted += pair.switch.noted
    assert noted == [(0, 1, False), (2, 1, False), (1, 1, True)]


# -- trees

SUMS = (Lanes.BITS_32, Lanes.BITS_16, Lanes.BITS_8, Lanes.BITS_4)


def said_by(packets: list[Packet]) -> Said:
    """Return a model's packets as a Switch says them."""
    return sorted(
        ((packet.to, packet.header, body(packet)) for packet in packets),
        key=itemgetter(0),
    )


def body(packet: Packet) -> bytes:
    """Return the bytes behind a packet's header."""
    return b"".join(bitmap.to_bytes(MEMBERS_BYTES) for bitmap in packet.bitmaps) + packet.values


def from_root(random: Random, about: KofnHeader) -> Packet:
    """Return a packet that the root might send after this one of the leaf."""
    kind = random.choice([Kind.ADDED] * 6 + [Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH])
    others = random.getrandbits(PARTS * RACK_WORKERS_MAX) & random.choice(
        [0, bit_of(0, 0) | bit_of(1, 0) | bit_of(2, 1)]
    )
    header = about._replace(
        kind=kind,
        members=about.members & random.choice([-1, -1, -1, 0, bit_of(0, 0)]) | others,
        count=random.randrange(8),
        k=random.randrange(1, 8),
        weight=random.randrange(2**32),
        scale=random.choice([about.scale] * 9 + [0]),
        lanes=random.choice([about.lanes] * 19 + [*SUMS]),
    )
    if kind in (Kind.ADDED, Kind.STALE, Kind.FORMAT_MISMATCH):
        words = 0 if kind == Kind.ADDED else about.words
        return Packet(ROOT, header._replace(words=words), (), bytes(words * WORD_BYTES))
    words = random.choice([about.words] * 4 + [0])
    bitmaps = tuple(random.getrandbits(PARTS * RACK_WORKERS_MAX) for _ in range(RACKS))
    return Packet(ROOT, header._replace(words=words, bitmaps=RACKS), bitmaps, random.randbytes(words * WORD_BYTES))


def test_leaf_answers_like_its_model() -> None:
    random, ups, downs = Random(2), Counter[Kind](), Counter[Kind]()
    for game in range(GAMES):
        model = LeafModel(rack=RACK, workers=WORKERS, k=5, slots=SLOTS, shift=game % 3)
        leaf = NativeLeaf.open(rack=RACK, workers=WORKERS, slots=SLOTS)
        leaf.k, leaf.shift = model.k, model.shift
        switch, sent = Switch(leaf, WORKERS), list[KofnHeader]()
        for _ in range(2 * PACKETS):
            if random.random() < 0.7 or not sent:
                header = drawn(random, game % len(SUMS), SUMS)
                packet = Packet(header.worker, header, (), random.randbytes(header.words * WORD_BYTES))
                expected = model.below(header, packet.values)
            else:
                packet = from_root(random, random.choice(sent[-4:]))
                expected = model.above(packet)
            assert switch.send(packet.header, body(packet)) == said_by(expected), packet.header
            sent += [one.header for one in expected if one.to == ROOT]
            ups += Counter(Kind(one.header.kind) for one in expected if one.to == ROOT)
            downs += Counter(Kind(one.header.kind) for one in expected if one.to != ROOT)
            if not random.randrange(20):
                model.k = leaf.k = random.randint(1, 8)
                model.shift = leaf.shift = random.randrange(4)
                model.generation = leaf.generation = random.choice([0, 0, 0, 1])
    assert min(ups[Kind.CONTRIBUTE], ups[Kind.PULL]) > 100, ups
    assert min(downs[kind] for kind in (Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH)) > 50, downs


@pytest.mark.parametrize("script", SCRIPTS)
def test_leaf_follows_a_script(script: Callable[[KofnHeader], Script]) -> None:
    model = LeafModel(rack=RACK, workers=WORKERS, k=8, slots=SLOTS, shift=1)
    leaf = NativeLeaf.open(rack=RACK, workers=WORKERS, slots=SLOTS)
    leaf.k, leaf.shift = model.k, model.shift
    switch = Switch(leaf, WORKERS)
    for header, wanted in script(KofnHeader()):
        packet, expected = answered(model, header)
        assert [(one.to, one.header.kind) for one in expected] == wanted
        assert switch.send(packet.header, packet.values) == said_by(expected)


def increment(random: Random, header: KofnHeader) -> KofnHeader:
    """Return a leaf's packet: some contributions of its rack."""
    members = sum(bit_of(rank, part) for rank in range(WORKERS) for part in (0, 3) if random.random() < 0.3)
    count = random.randrange(WORKERS + 1)
    return header._replace(members=members or 1, count=count, part=0, weight=random.randrange(WORKERS * WEIGHT_MAX))


def test_root_answers_like_its_model() -> None:
    random, kinds, shorts = Random(3), Counter[Kind](), 0
    for game in range(GAMES):
        model = RootModel(racks=RACKS, k=5, slots=SLOTS)
        slots = NativeSlots.open(workers=RACKS * WORKERS, k=5, slots=SLOTS, racks=RACKS)
        switch = Switch(slots, RACKS)
        for _ in range(PACKETS):
            header = increment(random, drawn(random, game % len(SUMS), SUMS))
            values = random.randbytes(header.words * WORD_BYTES)
            expected = model.handle(header, values)
            assert switch.send(header, values) == said_by(expected), header
            kinds += Counter(Kind(one.header.kind) for one in expected)
            shorts += sum(not one.values and one.header.bitmaps > 0 for one in expected)
            if not random.randrange(20):
                model.k = slots.k = random.randint(1, RACKS * WORKERS)
                model.generation = slots.generation = random.choice([0, 0, 0, 1])
    answers = (Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH, Kind.ADDED)
    assert min(kinds[kind] for kind in answers) > 100, kinds
    assert shorts > 100
