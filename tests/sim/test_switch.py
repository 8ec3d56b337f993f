"""A simulation's switch answers like the slot model, packet by packet, to any packets of workers."""

from collections import Counter
from operator import itemgetter
from random import Random

from kofn.host.transport.fault_injection import Faults
from kofn.host.wire.packet import EVERYONE, WORD_BYTES, Kind, KofnHeader, Lanes
from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.network import Link, VirtualSwitch
from tests.host.protocol.specification.slot_model import SlotModel

WORKERS, SLOTS = 3, 2
GAMES, PACKETS = 60, 100

Said = list[tuple[int, KofnHeader, bytes]]


def drawn(random: Random, lanes: int) -> KofnHeader:
    """Return a packet that a worker might send, mostly in these lanes; two slots get all packets."""
    return KofnHeader(
        kind=random.choice([Kind.CONTRIBUTE, Kind.CONTRIBUTE, Kind.CONTRIBUTE, Kind.PULL]),
        worker=random.randrange(WORKERS),
        recipient=random.choice([EVERYONE, EVERYONE, EVERYONE, 0, 2]),
        lanes=random.choice([lanes] * 9 + [0]),
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


class Pair:
    """Both switches, which get the same packets."""

    def __init__(self, k: int) -> None:
        self.clock, self.said, self.noted = VirtualClock(), Said(), list[tuple[int, int, bool]]()
        self.model = SlotModel(workers=WORKERS, k=k, slots=SLOTS)
        self.switch = VirtualSwitch(
            self.clock,
            Machine(self.clock, 0),
            workers=WORKERS,
            k=k,
            slots=SLOTS,
            switch_s=1e-6,
            digest=lambda *noted: self.noted.append(noted),
        )
        self.switch.lead([self._link(rank) for rank in range(WORKERS)])
        self.latest = [0] * WORKERS

    def _link(self, rank: int) -> Link:
        faults = Faults((), rank=rank, direction="receive", seed=1)
        return Link(self.clock, None, faults, lambda header, values: self.said.append((rank, header, values)))

    def set_k(self, k: int) -> None:
        self.model.k = k
        self.switch.set_k(k)

    def send(self, header: KofnHeader, values: bytes) -> None:
        self.said.clear()
        self.noted.clear()
        expected = self.model.handle(header, values)
        self.switch.take(header, values)
        self.clock.run()
        assert sorted(self.said, key=itemgetter(0)) == expected, "workers must take turns to be the first"
        assert self.noted == self._digest(header, expected)

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
            pair.send(header, random.randbytes(header.words * WORD_BYTES))
            kinds += Counter((Kind(answer.kind), answer.lanes) for _, answer, _ in pair.said)
            shorts += sum(not values for _, _, values in pair.said)
            if not random.randrange(10):
                pair.set_k(random.randint(1, WORKERS))
    answers = (Kind.RESULT, Kind.LATE, Kind.STALE, Kind.FORMAT_MISMATCH)
    assert all(kinds[kind, lanes] > 10 for kind in answers for lanes in Lanes), kinds
    assert shorts > 100


def test_switch_reports_the_first_counted_contribution() -> None:
    """Like p4src/measure.p4, it reports once for each worker and iteration, whatever the block."""
    pair, noted = Pair(k=2), list[tuple[int, int, bool]]()
    for worker, block, count in ((0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 1, 0), (2, 1, 1), (1, 1, 1), (1, 1, 0)):
        pair.send(KofnHeader(worker=worker, block=block, slot=block, count=count, part=1 - count), bytes(WORD_BYTES))
        noted += pair.noted
    assert noted == [(0, 1, False), (2, 1, False), (1, 1, True)]
