"""Owned blocks and sums for one recipient: every interleaving of a few calls, with loss, repetition and late workers.

No slot gets its next block before all workers have the last result, no worker asks a peer, every worker gets what each
owner contributed, and the end is reached from every state.
"""

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_common.wire.packet import WORD_BYTES, Kind, KofnHeader, bit_of
from kofn_host.errors import ProtocolError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Complete, Deliver, Instruction, Packed, Send
from kofn_host.protocol.results import BlockId, Result
from tests.host.protocol.specification.both import Both
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.protocol.test_protocol_exhaustive import NUMBERS, Bag, explore, number_of
from tests.host.world import SWITCH, Packet

OWNED, SUM, FOR_ONE = "owned", "a sum", "a sum for one"

Step = tuple[str, int, Callable[["Calls"], None]]


@dataclass(frozen=True)
class Setting:
    """A small case; `calls`: kind and number of blocks of each; `span`: the workers' value (0: the correct one)."""

    workers: int
    slots: int
    calls: tuple[tuple[str, int], ...]
    losses: int = 0
    duplications: int = 0
    span: int = 0
    window: int = 0
    owners: tuple[int, ...] = ()
    """The owners in turn; none: all workers."""


def values_of(rank: int, iteration: int, block: int) -> bytes:
    """Return values that differ for each contribution, as numbers that can be added."""
    return (np.arange(WORD_BYTES // 4) + 1000 * rank + 100 * iteration + block).astype(">i4").tobytes()


class Calls(Bag):
    """Workers that make these calls one after another, and a bag of packets; every step is the caller's."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.losses, self.duplications = setting.losses, setting.duplications
        layout = BlockLayout(blocks=max(blocks for _, blocks in setting.calls), words=1, widest=32)
        window = setting.window or setting.slots // 2
        options = {"layout": layout, "slots": setting.slots, "window": window, "rto_s": 1.0, "keep": 1}
        self.workers = [Both(job=1, rank=rank, **options) for rank in range(setting.workers)]
        self.firsts = [sum(blocks for _, blocks in setting.calls[:call]) for call in range(len(setting.calls))]
        self.switch = SlotModel(workers=setting.workers, k=setting.workers, slots=setting.slots)
        self.bag: list[Packet] = []
        self.now = 0.0
        turn = setting.owners or tuple(range(setting.workers))
        self.span = setting.span or len(turn)
        self.owners = [turn[block % len(turn)] for block in range(layout.blocks)]

    def clone(self, touched: int) -> Self:
        other = copy(self)
        other.bag, other.workers = list(self.bag), list(self.workers)
        if touched == SWITCH:
            other.switch = copy(self.switch)
            other.switch.slots = [copy(slot) for slot in self.switch.slots]
        else:
            other.workers[touched] = self.workers[touched].clone()
        return other

    # -- possible steps

    def steps(self) -> Iterator[Step]:
        yield from self.network_steps()
        for rank, protocol in enumerate(self.workers):
            if not protocol.missing and protocol.iteration < len(self.setting.calls):
                yield f"begin {rank}", rank, lambda world, r=rank: world.begin(r)
            for request, flight in protocol._in_flight.by_request.items():
                if not self.moves(rank, flight.header):
                    yield f"time out {rank} {request}", rank, lambda world, r=rank, q=request: world.time_out(r, q)

    def moves(self, rank: int, header: KofnHeader) -> bool:
        """Return whether a packet about this request is in the bag."""
        id = (header.iteration, header.block)
        about = (one for one in self.bag if (one.header.iteration, one.header.block) == id)
        return any(rank == (one.header.worker if one.to == SWITCH else one.to) for one in about)

    def begin(self, rank: int) -> None:
        """Begin a worker's next call."""
        protocol = self.workers[rank]
        iteration = protocol.iteration + 1
        kind, blocks = self.setting.calls[iteration - 1]
        self.follow(rank, protocol.begin(iteration, self.now, range(blocks), first=self.firsts[iteration - 1]))
        mine = [*range(blocks)]
        if kind == FOR_ONE:
            protocol.received(self.owners)
        if kind == OWNED:
            self.follow(rank, protocol.owned(self.owners, self.span, self.now))
            mine = [block for block in mine if self.owners[block] == rank]
        ready = [(block, Packed(values_of(rank, iteration, block), 0, 0, 1)) for block in mine]
        self.follow(rank, protocol.contribute_all(ready, now=self.now))

    def time_out(self, rank: int, request: int) -> None:
        self.workers[rank].ring(request, self.now)
        self.follow(rank, self.workers[rank].timer(self.now))

    def deliver(self, packet: Packet) -> None:
        if packet.to != SWITCH:
            self.follow(packet.to, self.workers[packet.to].packet_in(packet.header, packet.values, self.now))
            return
        index = packet.header.slot % self.setting.slots
        before = self.switch.slots[index].block_id
        for rank, header, values in self.switch.handle(packet.header, packet.values):
            stale = header.kind == Kind.STALE and has(self.workers[rank], BlockId(header.iteration, header.block))
            assert stale or header.kind in (Kind.RESULT, Kind.LATE), f"only results are expected, got {header}"
            self.bag.append(Packet(rank, header, values))
        if before[1] and self.switch.slots[index].block_id != before:
            lacking = [rank for rank, one in enumerate(self.workers) if not has(one, BlockId(*before[1:]))]
            assert not lacking, f"the slot of {before} takes another block, but workers {lacking} lack its result"

    def follow(self, rank: int, instructions: list[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Send):
                self.bag.append(Packet(SWITCH, one.header, one.values))
            elif isinstance(one, Deliver):
                for result in one.results:
                    self.check_result(rank, result)
            else:
                assert isinstance(one, Complete), one

    def check_result(self, rank: int, result: Result) -> None:
        iteration, block = result.id
        kind, _ = self.setting.calls[iteration - 1]
        givers = [self.owners[block]] if kind == OWNED else [*range(self.setting.workers)]
        assert result.members == sum(bit_of(giver, 0) for giver in givers)
        if kind == FOR_ONE and self.owners[block] != rank:
            assert result.values == b""
            return
        given = [np.frombuffer(values_of(giver, iteration, block), ">i4") for giver in givers]
        assert np.array_equal(np.frombuffer(result.values, ">i4"), sum(given))

    # -- for explore()

    def check_one(self, touched: int) -> None:
        """Check nothing more: each step checks itself."""

    def tidy(self) -> None:
        """Deliver results that their workers have already; the order does not matter."""
        self.bag = [
            packet for packet in self.bag if packet.to == SWITCH or not has(self.workers[packet.to], id_of(packet))
        ]

    def finished(self) -> bool:
        last = len(self.setting.calls)
        return all(protocol.iteration == last and not protocol.missing for protocol in self.workers)

    def key(self) -> tuple[object, ...]:
        slots = tuple((slot.block_id, slot.members, slot.done) for slot in self.switch.slots)
        bag = tuple(sorted(map(number_of, self.bag)))
        return (*map(worker_key, self.workers), NUMBERS[slots], bag, self.losses, self.duplications)


def has(protocol: Both, id: BlockId) -> bool:
    """Return whether a worker has or had this result."""
    if id.iteration < protocol.iteration:
        return True
    return id.block in protocol._history._whole.get(id.iteration, ())


def id_of(packet: Packet) -> BlockId:
    return BlockId(packet.header.iteration, packet.header.block)


def worker_key(protocol: Both) -> int:
    flights = tuple((request, flight.header.kind) for request, flight in sorted(protocol._in_flight.by_request.items()))
    known = tuple(
        (iteration, *sorted(results))
        for iteration, results in sorted(protocol._history._whole.items())
        if iteration >= protocol.iteration
    )
    return NUMBERS[
        protocol.iteration, tuple(protocol.missing), flights, tuple(sorted(protocol._waiting)), known, protocol._reached
    ]


def two(*calls: tuple[str, int], **given: Any) -> Setting:
    """Return two workers, with so few slots that each has several blocks."""
    return Setting(workers=2, slots=4, calls=calls, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        (two((OWNED, 6)), 1105),
        (two((OWNED, 2), (SUM, 1), losses=1), 795),
        (two((SUM, 1), (OWNED, 2), losses=1), 955),
        (two((FOR_ONE, 2), (OWNED, 2), (FOR_ONE, 1)), 2656),
        *(
            pytest.param(setting, states, marks=pytest.mark.long)
            for setting, states in (
                (two((OWNED, 2), (SUM, 1), (OWNED, 2), losses=1), 4243),
                (two((OWNED, 4), losses=2), 2793),
                (two((OWNED, 6), losses=1), 5273),
                (two((SUM, 1), (OWNED, 2), (SUM, 1), (OWNED, 2)), 3052),
                (two((FOR_ONE, 2), losses=1), 2443),
                (Setting(workers=2, slots=6, window=3, calls=((OWNED, 6),), losses=1, owners=(0, 0, 1)), 5963),
            )
        ),
    ],
)
def test_every_interleaving_ends(setting: Setting, states: int) -> None:
    """Fewer states than given would mean that a part is not explored."""
    explored, steps = explore(Calls(setting))
    print(f"{setting}: {explored} states, {steps} steps")
    assert explored >= states


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("KOFN_NIGHTLY") != "1", reason="minutes: `make explore` runs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        (two((OWNED, 4), losses=1, duplications=1), 10415),
        (two((OWNED, 4), (OWNED, 4), losses=1), 22121),
        (two((OWNED, 4), (SUM, 1), (OWNED, 2), losses=1), 17281),
    ],
)
def test_every_interleaving_of_more_ends(setting: Setting, states: int) -> None:
    test_every_interleaving_ends(setting, states)


TURNS = {2: (0, 1), 3: (0, 1, 2), 4: (2, 2, 2, 0, 1, 3), 5: (4, 3, 2, 1, 0)}
"""Orders of owners by number of workers; one is a broadcast's."""


@pytest.mark.slow
@given(
    st.sampled_from([*TURNS]),
    st.integers(0, 2),
    st.lists(st.tuples(st.sampled_from([OWNED, OWNED, SUM, FOR_ONE]), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(0, 1 << 32),
)
@settings(max_examples=60, deadline=None)
def test_random_interleavings_of_more_workers_end(
    workers: int, spare: int, given: list[tuple[str, int]], seed: int
) -> None:
    """The blocks fill the slots several times. Any packet may be lost or duplicated, and all workers get everything."""
    chance, turn = Random(seed), TURNS[workers]
    slots = 2 * len(turn) + 2 * spare
    calls = tuple((kind, len(turn) * turns if kind == OWNED else 2 * turns) for kind, turns in given)
    setting = Setting(workers, slots, calls, losses=20, duplications=20, window=slots // 2, owners=turn)
    world = Calls(setting)
    for _ in range(20_000):
        if world.finished():
            return
        _, _, step = chance.choice([*world.steps()])
        step(world)
        world.tidy()
    raise AssertionError(f"not ended: {[one.missing for one in world.workers]}")


@pytest.mark.slow
def test_workers_that_assume_fewer_owners_lose_results() -> None:
    """So the exploration would detect a broken rule."""
    with pytest.raises(AssertionError, match=r"takes another block, but workers .* lack"):
        explore(Calls(two((OWNED, 6), losses=1, span=1)))


def test_more_owners_than_slots_permit_are_refused() -> None:
    world = Calls(Setting(workers=2, slots=4, calls=((OWNED, 6),), span=3))
    with pytest.raises(ProtocolError, match="blocks that may each be another worker's must be at most 2"):
        world.begin(0)
