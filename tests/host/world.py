"""Protocol objects, the slot model and a bag of packets between them; the caller decides every step.

Nothing happens by itself: no clock, no order, no randomness. Every step is accounted for from the values in the slots,
not from the switch's bitmaps, and must obey "What always holds" of docs/explanation/protocol.md.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kofn_common.config.late_rules import RULES
from kofn_common.wire.packet import EVERYONE, WORD_BYTES, Kind, KofnHeader, Lanes, bit_of
from kofn_common.wire.sizes import PARTS, WEIGHT_UNIT
from kofn_host.agent.driver import Driver
from kofn_host.compression.age_weight import AgeWeight
from kofn_host.compression.codec import Codec
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.codecs.onebit import OneBit
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import checksums
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.kernels.lanes import CODES, VOTES, unpack_sums, width_of
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import AskPeers, Packed, Send
from kofn_host.protocol.results import BlockId, BlockResults, Result
from tests.host.lab import add, to_fixed
from tests.host.protocol.specification.both import Both as Protocol
from tests.host.protocol.specification.slot_model import SlotModel, to_numbers

SWITCH = -1
WRONG = 1 << 20
"""The block of a damaged packet, which no worker sends."""

LANES = 8
"""The number of a block's elements that are compared."""
WORDS = 8
"""Words of a block at 32 bits a lane; one word at 4 bits, and of votes."""
KEEP = 1 << 20
"""In iterations: sums stay, so that no worker here must take a peer's replica."""


class Packet(NamedTuple):
    """A packet in transit to the switch or to a rank."""

    to: int
    header: KofnHeader
    values: bytes


Key = tuple[int, int]
"""A worker's gradient: the iteration in which it was begun, and its number in that iteration."""

NEVER, WITHOUT_AGE = AgeWeight(weight=0.0), AgeWeight()
"""Late gradients have no weight, or their whole weight; tests/host/compression/test_ledger.py tests weights between."""


@lru_cache(maxsize=4096)
def gradient(rank: int, key: Key, elements: int) -> np.ndarray:
    """Return a gradient that is distinct for every worker and key, so that a sum tells its addends."""
    return np.random.default_rng((rank, *key)).uniform(-0.5, 0.5, elements).astype(np.float32)


class Vote(OneBit):
    exponent = 10
    """The codec's own scale."""


@lru_cache
def codec_in(lanes: int, workers: int, below: int = 0) -> FixedPoint | Vote:
    """Return a codec for lanes of this code whose own scale is `below` less than the usual one.

    Narrow lanes are clipped rather than 0: the account must see that a value was added.
    """
    if lanes == Lanes.VOTES:
        vote = Vote()
        vote.exponent -= below
        return vote
    codec = copy(FixedPoint(workers=workers, gradient_range=1.0))
    codec.width = width_of(lanes)
    codec.limit = (2 ** (codec.width - 1) - 1) // workers
    codec.exponent = math.floor(math.log2(codec.limit)) + 6 * bool(lanes) - below
    return codec


def sums_in(values: bytes, lanes: int) -> np.ndarray:
    """Return the first sums of an answer; of votes their counts."""
    if lanes == Lanes.VOTES:
        return unpack_sums(values, VOTES, LANES)[0]
    return to_numbers(values, lanes)[:LANES]


Part = tuple[int, int]
"""A contribution to a block: its worker and its part."""


class SwitchAccount:
    """The switch's sums, block by block: a separate account, made from packets and slot values."""

    def __init__(self, slots: int) -> None:
        self.added: dict[BlockId, dict[Part, np.ndarray]] = {}
        self.weights: dict[BlockId, dict[Part, int]] = {}
        """The weight that each contribution states."""
        self.aggregated: dict[BlockId, int] = {}
        """The number of counted contributions."""
        self.formats: dict[BlockId, tuple[int, int]] = {}
        """Scale and lanes of the first contribution to each block."""
        self.closed: dict[BlockId, int] = {}
        self.slots = [((0, 0, 0), 0, np.zeros(LANES, np.int64)) for _ in range(slots)]
        """Block, members and values of each slot."""
        self.occupied = False
        """Whether a damaged packet has ever occupied a slot."""

    def handle(self, switch: SlotModel, header: KofnHeader, values: bytes) -> list[tuple[int, KofnHeader, bytes]]:
        """Hand a packet to the switch and account for the result."""
        k = header.k or switch.k
        answers = switch.handle(header, values)
        for index, slot in enumerate(switch.slots):
            block_id, members, total = self.slots[index]
            new_id, new_total = slot.block_id, slot.values[:LANES]
            # votes may all be 0: then only the members change
            if (new_id, slot.members) != (block_id, members) or not np.array_equal(new_total, total):
                assert index == header.slot % len(switch.slots), "a packet changed another slot"
                self._enter(header, to_numbers(values, header.lanes), block_id, total, new_id, new_total)
                self.slots[index] = (new_id, slot.members, new_total.copy())
        for _, answer, sums in answers:
            self._check_answer(answer, sums, k, switch.workers)
        if answers and answers[0][1].kind == Kind.RESULT:
            self.closed[BlockId(header.iteration, header.block)] = answers[0][1].members
        return answers

    def _enter(self, header, values, block_id, total, new_id, new_total) -> None:
        """Account for a changed slot: this packet's values were added, once, to its own open block."""
        part, id = (header.worker, header.part), BlockId(header.iteration, header.block)
        addends = self.added.setdefault(id, {})
        assert header.kind == Kind.CONTRIBUTE, "only contributions may be added"
        assert new_id[1:] == id, f"{id} was added to another block, {new_id}"
        assert id not in self.closed, f"{part} was added to {id}, which is closed"
        assert part not in addends, f"{part} was added twice to {id}"
        form = (header.scale, header.lanes)
        assert self.formats.setdefault(id, form) == form, f"{part} was added to {id} in another format"
        if new_id == block_id:
            assert np.array_equal(new_total, total + values), "the new sum is not the old one plus the contribution"
        else:
            assert new_id > block_id, "a slot returned to an older block"
            old = (
                block_id[2] == WRONG or block_id[0] < new_id[0] or block_id[1:] in self.closed or block_id == (0, 0, 0)
            )
            assert old, f"the open block {block_id} was overwritten"
            assert not addends, f"{id} was opened twice"
            assert np.array_equal(new_total, values), "a new sum has values of the slot's last block"
        addends[part] = values
        self.weights.setdefault(id, {})[part] = header.weight
        self.aggregated[id] = self.aggregated.get(id, 0) + header.count

    def forget(self, held: set[BlockId]) -> None:
        """Lose the slots: blocks without a known result were never summed."""
        for id in [known for known in self.added if known not in held]:
            del self.added[id], self.weights[id], self.aggregated[id], self.formats[id]
            self.closed.pop(id, None)

    def _check_answer(self, answer: KofnHeader, sums: bytes, k: int, workers: int) -> None:
        """Check that members, count, weight and values describe the sum, and that a closed block never changes."""
        id = BlockId(answer.iteration, answer.block)
        if answer.kind == Kind.STALE:
            assert id in self.closed or self.occupied, f"{id} is answered as STALE, but was never closed"
            return
        addends = self.added[id]
        assert answer.members == members_in(addends), "the answer has wrong members"
        assert answer.count == self.aggregated[id], "the answer has a wrong count"
        assert answer.weight == sum(self.weights[id].values()), "the answer has a wrong weight"
        if answer.kind == Kind.FORMAT_MISMATCH:
            return
        if answer.recipient not in (EVERYONE, answer.worker):
            assert not sums, "a worker got the sum of another recipient"
        else:
            assert np.array_equal(sums_in(sums, answer.lanes), sum(addends.values())), "the answer has wrong values"
        if answer.kind == Kind.RESULT:
            assert id not in self.closed, f"{id} was closed twice"
            full = len(addends) >= workers
            assert answer.count >= k or full, f"closed by {answer.count} of k = {k}, with {len(addends)} addends"
        else:
            assert self.closed.get(id) == answer.members, f"a wrong LATE answer for {id}"


def members_in(parts: Iterable[Part]) -> int:
    """Return the bitmap of these parts."""
    return sum(bit_of(*part) for part in parts)


@dataclass
class Worker:
    """One rank: the real protocol and ledger, and the agent's further state."""

    protocol: Protocol
    ledger: Ledger
    codec: FixedPoint | Vote
    lanes: int
    """The code of the lanes in which it sends; `codec` has these lanes."""
    working: int = 1
    """The iteration of the training thread; the protocol may be further."""
    batch: int = 0
    computing: bool = True
    beyond: int = 0
    then: str = ""
    """Action once the protocol is beyond that iteration and not left behind: "give", "hear", or "" for none."""
    asking: bool = False
    stale: tuple[BlockId, ...] = ()
    """The blocks whose slots had later blocks when it asked."""
    delivered: int = 0
    complete: int = 0
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The worker's aggregated values in the results that it has."""
    given: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The sum of its gradients."""
    thrown: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Late values that the rule discards."""
    waiting: list[frozenset[Key]] = field(default_factory=list)
    """By block: the gradients in the ledger that are in none of its known sums."""
    summed: list[frozenset[Key]] = field(default_factory=list)
    """By block: the gradients that are in one of its known sums."""
    late: list[frozenset[Key]] = field(default_factory=list)
    """By block: the waiting gradients that have missed a sum."""
    closed: list[int] = field(default_factory=list)
    """By block: the latest iteration whose sum the worker knows to be closed."""
    number: int | None = None
    """The number of its state among all states seen."""
    brought: dict[tuple[int, int], frozenset[Key]] = field(default_factory=dict)
    """The gradients in transit to its newest iteration, by block and part."""
    begins: int = 0
    """The iteration that its protocol begins, or is in."""
    dead: bool = False
    took: dict[int, tuple[np.ndarray, frozenset[Key]]] = field(default_factory=dict)
    """By block: the additions of its latest result to `own` and `summed`."""


@dataclass(frozen=True, slots=True)
class At:
    """A rank as a driver sees it: the ledger in place of an encoder, the bag in place of a network."""

    world: "World"
    rank: int
    queued: ClassVar[int] = 0
    slice_blocks: ClassVar[int] = 1

    @property
    def worker(self) -> Worker:
        return self.world.workers[self.rank]

    # -- the encoder's interface

    @property
    def plan(self) -> SimpleNamespace:
        iteration = self.worker.begins
        sent = sum(len(self.world.selection(before)) for before in range(1, iteration))
        return SimpleNamespace(lanes=self.world.planned, first=sent)

    @property
    def current_lanes(self) -> int:
        return self.worker.lanes

    @property
    def blocks(self) -> tuple[int, ...]:
        return self.world.selection(self.worker.begins)

    @property
    def late(self) -> bool:
        return bool(self.worker.ledger.accounts.missed(1).any())

    def begin(self, iteration: int) -> None:
        if iteration > self.worker.ledger.begun:
            self.worker.brought = {}
        self.worker.begins = iteration
        self.worker.ledger.begin(iteration)
        self.worker.delivered = 0

    def enter_rest(self) -> None:
        """Do nothing: the whole gradient is entered."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Yield all planned blocks at once; the driver passes over those that are closed by now."""
        self._encode(iteration, np.array(self.worker.protocol.blocks), 0)
        yield self.worker.protocol.missing

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        ledger = self.worker.ledger
        if (part := ledger.sent.free) is None or self.world.racks > 1:
            return 0, []
        waits = ledger.accounts.missed(missed)
        blocks = [block for block in sorted(open) if waits[block]]
        for block in blocks if missed else ():
            assert self.worker.late[block], "a block is merged in which the gradient is not late"
        self._encode(iteration, np.array(blocks, int), part)
        return part, blocks

    def _encode(self, iteration: int, blocks: np.ndarray, part: int) -> None:
        """Encode the values that are not in transit as this part."""
        worker = self.worker
        scales = np.full(self.world.blocks, worker.codec.exponent)
        worker.ledger.sending(iteration, blocks, worker.lanes, scales, part)
        for block in blocks.tolist():
            self._bring(block, part)

    def _bring(self, block: int, part: int) -> None:
        """Note the gradients that a part carries."""
        worker = self.worker
        others = [keys for (of, other), keys in worker.brought.items() if of == block and other != part]
        worker.brought = worker.brought | {(block, part): worker.waiting[block] - frozenset().union(*others)}

    def all_packed(self, blocks: list[int], part: int = 0) -> list[tuple[int, Packed]]:
        """Return the contributions that the ledger has noted."""
        ledger = self.worker.ledger
        return list(ledger.noted(blocks, part))

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> None:
        scales = np.full(self.world.blocks, scale)
        self.worker.ledger.send_again(np.array([block]), iteration, lanes, scales, part)
        self._bring(block, part)

    def settle(self, results: BlockResults, hints: np.ndarray, times: np.ndarray) -> None:
        assert (times == self.world.now).all()
        for result, hint in zip(results, hints.tolist(), strict=True):
            self.world.hinted(hint)
            self.world.delivered(self.worker, self.rank, result)

    narrows: ClassVar[bool] = False

    # -- the rest of the interface

    def send(self, packets: Sequence[Send]) -> None:
        self.world.send(self.rank, packets)

    def delivered(self, results: BlockResults) -> None:
        """Do nothing: results are settled before."""

    def completed(self) -> None:
        self.world.completed(self.worker)

    def ask_peers(self, asked: Sequence[AskPeers]) -> None:
        assert not self.world.scattered, "peers cannot have the sums of a reduce-scatter"
        here = {BlockId(self.worker.protocol.iteration, block) for block in self.worker.protocol.missing}
        account = self.world.account
        assert here & account.closed.keys() or account.occupied, "peers must be asked for closed blocks only"
        self.worker.asking, self.worker.stale = True, tuple(ask.id for ask in asked if ask.stale_in is not None)

    def during(self, part: str) -> nullcontext[None]:
        return nullcontext()


class World:
    """`workers` workers; worker r sends at `scales[r]` below the codec's scale; `rule`: for late gradients.

    Worker r sends in lanes of code `lanes[r]`, where `planned` is planned; one block in `every` is sent in an
    iteration. `scattered`: each block's sum goes to one worker, and none contributes to an iteration before all have
    the previous one.
    """

    def __init__(
        self,
        *,
        workers,
        k,
        blocks,
        slots,
        window,
        scales=(),
        lanes=(),
        planned=0,
        every=1,
        last=1 << 30,
        rule="stash",
        scattered=False,
        racks=1,
        switch=SlotModel,
    ) -> None:
        self.scattered, self.racks = scattered, racks
        self.blocks, self.last, self.rule = blocks, last, RULES[rule]
        self.planned, self.every = planned, every
        self.hints = self.given_up = 0
        self.switch = switch(workers=workers, k=k, slots=slots)
        for slot in self.switch.slots:
            slot.values = slot.values[:LANES]
        self.account = SwitchAccount(slots)
        votes = planned == Lanes.VOTES
        lanes = (planned,) * workers if votes or not lanes else lanes
        words, widest = (1, VOTES) if votes else (WORDS, 32)
        shape = BlockLayout(blocks=blocks, words=words, widest=widest, planes=workers.bit_length())
        self._options = {"layout": shape, "slots": slots, "window": window, "workers": workers, "racks": racks}
        self.bag: list[Packet] = []
        self.results: dict[BlockId, Result] = {}
        self.now = 0.0
        self.generation = 0
        self.uninformed: frozenset[int] = frozenset()  # workers that have not heard of the present regroup
        self.resuming: frozenset[int] = frozenset()
        codecs: dict[int, Codec] = {code: codec_in(code, workers) for code in CODES}
        self.workers = [
            Worker(
                self.protocol(rank),
                Ledger(
                    LedgerStorage.in_memory(blocks=blocks, lanes=LANES),
                    rank,
                    codecs,
                    place=self.place(rank),
                    age=self.age,
                ),
                codec_in(lanes[rank], workers, scales[rank] if scales else 0),
                lanes[rank],
                own=np.zeros((blocks, LANES), np.int64),
                thrown=np.zeros((blocks, LANES), np.int64),
                given=np.zeros((blocks, LANES), np.int64),
                waiting=[frozenset()] * blocks,
                summed=[frozenset()] * blocks,
                late=[frozenset()] * blocks,
                closed=[0] * blocks,
            )
            for rank in range(workers)
        ]
        for rank, worker in enumerate(self.workers):
            worker.ledger.attach_protocol(worker.protocol.native)
            self.driver(rank).begin(1, self.now)

    def protocol(self, rank: int) -> Protocol:
        """Return the protocol of a starting worker."""
        return Protocol(job=1, rank=rank, rto_s=0.05, keep=KEEP, **self._options)

    def place(self, rank: int) -> int:
        """Return the bit of a worker's part 0 among the members of a result."""
        return rank

    def selection(self, iteration: int) -> tuple[int, ...]:
        """Return the sent blocks; each block is sent once in any `every` iterations."""
        chosen = (block for block in range(self.blocks) if (block - iteration) % self.every == 0)
        return tuple(chosen) or (iteration % self.blocks,)

    @property
    def recipients(self) -> np.ndarray:
        return np.arange(self.blocks) % len(self.workers)

    def comes_to(self, rank: int, block: int) -> bool:
        """Return whether a worker gets a block's sum, and not only its members."""
        return not self.scattered or self.recipients[block] == rank

    @property
    def age(self) -> AgeWeight:
        """The weight of late gradients."""
        return NEVER if self.rule.discards else WITHOUT_AGE

    def driver(self, rank: int) -> Driver:
        """Return a rank's driver; between two events only its protocol and its ledger keep state."""
        at: Any = At(self, rank)  # implements the part of Sender that is used here
        protocol: Any = self.workers[rank].protocol  # the specification and the native core
        recipients = self.recipients if self.scattered else None
        driver = Driver(protocol, at, at, workers=len(self.workers), recipients=recipients)
        driver.rule = self.rule
        return driver

    # -- possible steps

    def ready(self, rank: int) -> None:
        """Finish a worker's gradient, or give it up if its iteration is over and the rule gives up."""
        worker = self.workers[rank]
        worker.computing = False
        if self.rule.gives_up and worker.protocol.is_over(worker.working):
            self.given_up += 1
            worker.beyond, worker.then = worker.working, "hear"
        else:
            worker.beyond, worker.then = 0, "give"
        self.advance(rank)

    def _give(self, rank: int) -> None:
        """Contribute the gradient, as the agent does once the protocol is where the others are."""
        worker = self.workers[rank]
        current, late = worker.protocol.iteration, worker.protocol.iteration > worker.working
        self._enter(rank, current)
        counts = self.driver(rank).contribute(worker.working, worker.batch, self.now, whole=True)
        if self.rule.repeats and not late and worker.batch < PARTS - 1:
            worker.batch += 1
            worker.computing = True
        else:
            worker.beyond, worker.then = current if counts else 0, "hear"

    def _enter(self, rank: int, current: int) -> None:
        """Enter the gradient into the ledger and into this account."""
        worker = self.workers[rank]
        key = worker.working, worker.batch
        values = gradient(rank, key, self.blocks * LANES)
        add(worker.ledger, values, worker.working, batch=worker.batch, current=current)
        fixed = to_fixed(values).reshape(self.blocks, LANES)
        worker.given += fixed
        for block in range(self.blocks):
            late = worker.closed[block] >= worker.working
            if self.rule.discards and late:
                worker.thrown[block] += fixed[block]
                continue
            worker.waiting[block] |= {key}
            if late:
                worker.late[block] |= {key}

    def deliver(self, packet: Packet) -> None:
        """Deliver a packet that was taken from the bag."""
        if packet.to == SWITCH:
            for rank, answer, sums in self.account.handle(self.switch, packet.header, packet.values):
                self.bag.append(Packet(rank, answer, sums))
            return
        self.deliver_together(packet.to, [packet])

    def deliver_together(self, rank: int, packets: list[Packet]) -> None:
        """Deliver packets that were taken from the bag to a worker together."""
        taken = [(packet.header, packet.values) for packet in packets]
        self.driver(rank).follow(self.workers[rank].protocol.packets_in(taken, self.now), self.now)
        self.advance(rank)

    def time_out(self, rank: int) -> None:
        """Let time pass until the worker's earliest deadline."""
        protocol = self.workers[rank].protocol
        if protocol.deadline is not None:
            self.now = max(self.now, protocol.deadline)
            self.driver(rank).timer(self.now)

    def answer(self, rank: int, peer: int) -> None:
        """Let a peer answer with its results."""
        worker = self.workers[rank]
        worker.asking = False
        first = worker.protocol.iteration
        self.driver(rank).results_in(list(self.workers[peer].protocol.results(first, first + 16)), self.now)
        self.advance(rank)

    def worker_of(self, packet: Packet) -> int | None:
        """Return the worker that has sent a packet, or gets it; None: neither end is a worker."""
        return packet.header.worker if packet.to == SWITCH else packet.to

    def change_k(self, k: int) -> None:
        self.switch.k = k

    def restart_switch(self) -> None:
        """Lose the switch's slots; it admits no generation until every worker has regrouped."""
        self.generation += 1
        self.switch.generation = -1
        self.uninformed, self.resuming = frozenset(range(len(self.workers))), frozenset()

    def occupy(self, index: int) -> None:
        """Let a damaged packet that passes all checks occupy a slot; its answers are lost."""
        index %= len(self.switch.slots)
        _, iteration, _ = self.switch.slots[index].block_id
        header = KofnHeader(
            job=1, words=1, generation=self.generation, iteration=iteration + 1, block=WRONG, slot=index
        )
        self.switch.handle(header, bytes(WORD_BYTES))
        slot, self.account.occupied = self.switch.slots[index], True
        assert slot.block_id[2] == WRONG
        self.account.slots[index] = slot.block_id, slot.members, slot.values[:LANES].copy()

    def finds_ahead(self, rank: int) -> bool:
        """Return whether the slot of a block that this worker still misses has a later block, though no worker has the
        block's result."""
        protocol, held = self.workers[rank].protocol, self.held()
        missing = {BlockId(protocol.iteration, block) for block in protocol.missing}
        return any(id in missing and id not in held for id in self.workers[rank].stale)

    def report_ahead(self, rank: int) -> None:
        """Let a worker report such a block."""
        self.workers[rank].asking = False
        if not self.uninformed:
            self.restart_switch()

    def regroup(self, rank: int) -> None:
        """Tell a worker of the regroup; after the last one the switch admits the new generation."""
        self.workers[rank].protocol.regroup(self.generation)
        self.uninformed -= {rank}
        if not self.uninformed:
            self.forget(self.held())
            self.switch.generation = self.generation
            self.resuming = frozenset(range(len(self.workers)))

    def forget(self, held: set[BlockId]) -> None:
        """Forget all results but these: the other blocks may be summed again."""
        self.account.forget(held)
        self.results = {id: result for id, result in self.results.items() if id in held}

    def held(self) -> set[BlockId]:
        """The blocks whose results a worker has."""
        return {result.id for worker in self.workers for result in worker.protocol.results(0, self.last)}

    def resume(self, rank: int) -> None:
        """Give a worker all results of the others and let it resume."""
        worker = self.workers[rank]
        self.resuming -= {rank}
        driver = self.driver(rank)
        for peer in self.workers:
            driver.results_in(list(peer.protocol.results(worker.protocol.iteration, self.last)), self.now)
        driver.resume(self.now)
        self.advance(rank)

    # -- the agent's part

    def advance(self, rank: int) -> None:
        """Begin the next iteration if the worker waits for that, or for an iteration in which to
        use a late gradient.
        """
        worker = self.workers[rank]
        protocol = worker.protocol
        while worker.then or (self.rule.merges and worker.ledger.accounts.missed(1).any()):
            if worker.then and protocol.iteration > worker.beyond and not protocol.over:
                then, worker.then = worker.then, ""
                if then == "give":
                    self._give(rank)
                else:
                    worker.working, worker.batch, worker.computing = protocol.iteration, 0, True
            elif protocol.missing or protocol.iteration >= self.last:
                return
            else:
                self.driver(rank).begin(protocol.iteration + 1, self.now)

    def send(self, rank: int, packets: Sequence[Send]) -> None:
        """Put packets into the bag."""
        for header, values, _ in packets:
            assert (header.worker, header.iteration) == (rank, self.workers[rank].protocol.iteration)
            self.bag.append(Packet(SWITCH, header, values))

    def completed(self, worker: Worker) -> None:
        """Note that all results of the protocol's iteration are there."""
        iteration = worker.protocol.iteration
        assert iteration == worker.complete + 1, "iterations must be completed in order, each once"
        sent = sum(1 << block for block in self.selection(iteration))
        assert worker.delivered == sent, "a completed iteration must have all results"
        worker.complete = iteration

    def hinted(self, hint: int) -> None:
        """Check that a worker uses the lanes of a hint, and that they are narrower than planned."""
        assert hint < 0 or (hint > self.planned and hint in [worker.lanes for worker in self.workers]), (
            "a hint must be the lanes of a worker, and narrower than planned"
        )
        self.hints += hint >= 0

    def delivered(self, worker: Worker, rank: int, result: Result) -> None:
        """Check a result at a worker: it equals all others' copies, and the ledger counts the worker's own parts."""
        id, block = result.id, result.id.block
        assert not worker.delivered >> block & 1, f"{id} was delivered twice"
        assert id.iteration == worker.protocol.iteration, "results must be applied in the order of iterations"
        worker.delivered |= 1 << block
        # k is the one in force when the answer was sent, not when the block closed
        same = result._replace(k=0, values=b"") if self.scattered else result._replace(k=0)
        assert self.results.setdefault(id, same) == same, f"replicas differ in {id}"
        addends = self.account.added[id]
        assert result.members == self.account.closed[id]
        assert result.members == members_in((self.place(worker), part) for worker, part in addends)
        if self.comes_to(rank, block):
            assert np.array_equal(sums_in(result.values, result.lanes), sum(addends.values()))
        else:
            assert not result.values, f"{id} has values, but another recipient"
        self.settle_result(worker, rank, result)

    def settle_result(self, worker: Worker, rank: int, result: Result) -> None:
        """Settle a result in the ledger and in this account."""
        block = result.id.block
        worker.ledger.settle_results(result)
        self.count(worker, rank, result)
        worker.closed[block] = max(worker.closed[block], result.id.iteration)
        if self.rule.discards and worker.waiting[block]:
            worker.waiting[block] = frozenset()
            worker.thrown[block] = worker.given[block] - worker.own[block]
        worker.late[block] = worker.waiting[block]

    def count(self, worker: Worker, rank: int, result: Result) -> None:
        """Count a worker's parts in a result."""
        block, addends = result.id.block, self.account.added[result.id]
        for part in range(PARTS):
            if result.has(self.place(rank), part):
                worker.own[block] += worker.codec.decode(addends[rank, part].astype(np.int32), result.scale, 1)
                self._summed(worker, (rank, part), result)
        worker.brought = {key: keys for key, keys in worker.brought.items() if key[0] != block}

    def _summed(self, worker: Worker, part: Part, result: Result) -> None:
        """Check that a part's gradients are in a sum for the first time, and note it."""
        block = result.id.block
        brought = worker.brought[block, part[1]]
        assert self.account.weights[result.id][part] == max(WEIGHT_UNIT * len(brought), 1), (
            "a part must have the weight of its gradients"
        )
        assert not brought & worker.summed[block], "a gradient is in two sums"
        worker.summed[block] |= brought
        worker.waiting[block] -= brought

    # -- checks after every step

    def check(self) -> None:
        """Check every worker."""
        for rank in range(len(self.workers)):
            self.check_one(rank)

    def check_one(self, rank: int) -> None:
        """Check one worker's ledger, and that an open block has a pending timer."""
        if rank < 0:
            return  # a switch
        worker = self.workers[rank]
        totals, protocol = worker.ledger.accounts.totals(), worker.protocol
        assert totals.conserved, "aggregated + pending + discarded must be the gradients"
        assert np.array_equal(totals.discarded, checksums(worker.thrown)), (
            "late gradients, and nothing else, must be discarded"
        )
        assert np.array_equal(totals.aggregated, checksums(worker.own)), (
            "aggregated gradients must be those that the switch added"
        )
        pending = [WEIGHT_UNIT * len(gradients) for gradients in worker.waiting]
        assert worker.ledger.accounts.waiting.tolist() == pending, "pending gradients have a wrong weight"
        away = [
            frozenset().union(
                *(keys for (of, _), keys in worker.brought.items() if of == block and closed < worker.begins)
            )
            for block, closed in enumerate(worker.closed)
        ]
        late = [bool(keys - brought) for keys, brought in zip(worker.late, away, strict=True)]
        assert worker.ledger.accounts.missed(1).tolist() == late, (
            "a gradient is late in the blocks whose sums closed without it"
        )
        waits = worker.then == "hear" and worker.beyond == protocol.iteration
        if not protocol.regrouping and protocol.missing and (protocol.left_behind or waits):
            assert protocol.deadline is not None, "open blocks must have a retransmission deadline"

    def settle(self, stalled: frozenset[int] = frozenset()) -> int:
        """Lose no packet and be fair until all blocks begun by the others have ended; return the number of rounds.

        The stalled workers never compute, send or receive again; they still answer as peers.
        """
        live = [rank for rank in range(len(self.workers)) if rank not in stalled]
        workers = [self.workers[rank] for rank in live]
        target = max(worker.protocol.iteration for worker in workers)
        bound = 10 + 4 * self.blocks * (target + 1 - min(worker.complete for worker in workers))
        for round_ in range(bound):
            if all(worker.complete >= target for worker in workers):
                return round_
            self._fair_round(live, target)
            self.check()
        raise AssertionError(f"not ended in {bound} rounds: {[worker.protocol.missing for worker in workers]}")

    def flush(self) -> int:
        """Sum all blocks once more with all workers. Check that every kept gradient is in exactly one sum; return their
        number.
        """
        self.change_k(len(self.workers))
        for _ in range(2 + self.every):
            self.settle()
        newest = self.workers[0].complete - self.every  # later iterations have not sent all blocks
        waiting = set().union(*(gradients for worker in self.workers for gradients in worker.waiting))
        if not self.rule.repeats:  # with k = n others may complete the sum
            assert all(iteration > newest for iteration, _ in waiting), "a gradient was in no sum"
        held = sum(len(keys) for worker in self.workers for keys in worker.summed)
        return held

    def _fair_round(self, live: list[int], target: int) -> None:
        """Let all workers compute, time out and get all peers' answers, and deliver every packet."""
        for rank in tuple(self.uninformed):
            self.regroup(rank)
        for rank in tuple(self.resuming):
            self.resume(rank)
        for rank in live:
            worker = self.workers[rank]
            if worker.computing and worker.protocol.iteration <= target:
                self.ready(rank)
            self.time_out(rank)
            if worker.asking:
                for peer in range(len(self.workers)):
                    self.answer(rank, peer)
                if self.finds_ahead(rank):
                    self.report_ahead(rank)
        while self.bag:
            packet = self.bag.pop(0)
            if packet.to <= SWITCH or packet.to in live:
                self.deliver(packet)
