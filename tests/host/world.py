"""Protocol objects, the slot model and a bag of packets between them; whoever drives it decides what happens next.

Nothing happens by itself: no clock, no order, no chance.  Every step goes through a ledger that looks at the values
in the slots, not at the switch's bitmaps, and asserts docs/PROTOCOL.md's "What always holds".
"""

import math
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from host.compress import FixedPoint, to_fixed
from host.history import BlockId, Result
from host.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Send
from host.lanes import width_of
from host.pages import Pages
from host.protocol import Protocol
from host.residual import Residual
from host.shape import Shape
from host.slot_rules import SlotRules, to_numbers, to_values
from host.wire import Header, Kind, Lanes
from tests.host.lab import sent_gradients

SWITCH = -1
LANES = 4
"""The first of a block's elements are enough."""
WORDS = 8
"""At 32 bits a lane; 1 at 4."""
KEEP = 1 << 20
"""Iterations: nobody here takes a peer's replica when sums are gone."""


class Packet(NamedTuple):
    """On its way to the switch or to a rank."""

    to: int
    header: Header
    values: bytes


@lru_cache(maxsize=4096)
def gradient(rank: int, iteration: int, elements: int) -> np.ndarray:
    """Distinct for every worker and iteration, so that a sum tells its addends."""
    return np.random.default_rng((rank, iteration)).uniform(-0.5, 0.5, elements).astype(np.float32)


@lru_cache
def codec_in(lanes: int, workers: int, below: int = 0) -> FixedPoint:
    """A codec for lanes of this code, whose own scale is so much below the usual one.

    Narrow lanes are clipped rather than 0: the ledger must see that something was added.
    """
    codec = copy(FixedPoint(workers=workers, gradient_range=1.0))
    codec.limit = (2 ** (width_of(lanes) - 1) - 1) // workers
    codec.exponent = math.floor(math.log2(codec.limit)) + 6 * bool(lanes) - below
    return codec


class Ledger:
    """What the switch added, block by block: an account of its own, made from packets and slot values."""

    def __init__(self, slots: int) -> None:
        self.added: dict[BlockId, dict[int, np.ndarray]] = {}
        self.numbers: dict[BlockId, dict[int, int]] = {}
        """How many gradients each member said that it brought."""
        self.formats: dict[BlockId, tuple[int, int]] = {}
        """Scale and lanes of the first contribution to each block."""
        self.closed: dict[BlockId, int] = {}
        self.slots = [((0, 0, 0), np.zeros(LANES, np.int64)) for _ in range(slots)]

    def handle(self, switch: SlotRules, header: Header, values: bytes) -> list[tuple[int, Header, bytes]]:
        """Pass a packet to the switch and account for what it did."""
        k = header.k or switch.k
        answers = switch.handle(header, values)
        for index, slot in enumerate(switch.slots):
            epoch, total = self.slots[index]
            new_epoch, new_total = slot.epoch, slot.values[:LANES]
            if new_epoch != epoch or not np.array_equal(new_total, total):
                assert index == header.slot % len(switch.slots), "a foreign slot was touched"
                self._enter(header, to_numbers(values, header.lanes), epoch, total, new_epoch, new_total)
                self.slots[index] = (new_epoch, new_total.copy())
        for _, answer, sums in answers:
            self._check_answer(answer, sums, k)
        if answers and answers[0][1].kind == Kind.RESULT:
            self.closed[BlockId(header.iteration, header.block)] = answers[0][1].members
        return answers

    def _enter(self, header, values, epoch, total, new_epoch, new_total) -> None:
        """A slot has changed: by this packet's values, once, into its own open block."""
        rank, id = header.worker, BlockId(header.iteration, header.block)
        addends = self.added.setdefault(id, {})
        assert header.kind == Kind.CONTRIBUTE, "only contributions are added"
        assert new_epoch[1:] == id, f"{id} was added to the foreign block {new_epoch}"
        assert id not in self.closed, f"{id} is closed: worker {rank} was added to it, or it was opened again"
        assert rank not in addends, f"worker {rank} was counted twice in {id}"
        form = (header.scale, header.lanes)
        assert self.formats.setdefault(id, form) == form, f"worker {rank} was added to {id} as something else"
        if new_epoch == epoch:
            assert np.array_equal(new_total, total + values), "the sum is not the old sum and the contribution"
        else:
            assert new_epoch > epoch, "a slot went back to an older block"
            old = epoch[0] < new_epoch[0] or epoch[1:] in self.closed or epoch == (0, 0, 0)
            assert old, f"the open block {epoch} was wiped"
            assert not addends, f"{id} was begun again"
            assert np.array_equal(new_total, values), "something of the slot's last block is left"
        addends[rank] = values
        self.numbers.setdefault(id, {})[rank] = header.gradients

    def forget(self, held: set[BlockId]) -> None:
        """The slots are lost: what nobody has the result of was never summed."""
        for id in [known for known in self.added if known not in held]:
            del self.added[id], self.numbers[id], self.formats[id]
            self.closed.pop(id, None)

    def _check_answer(self, answer: Header, sums: bytes, k: int) -> None:
        """Members, count, gradients and values say what was added; a closed block's never change."""
        id = BlockId(answer.iteration, answer.block)
        if answer.kind == Kind.STALE:
            assert id in self.closed, f"{id} is stale, but was never closed"
            return
        addends = self.added[id]
        assert answer.members == sum(1 << rank for rank in addends), "members"
        assert answer.count == len(addends), "count"
        assert answer.gradients == sum(self.numbers[id].values()), "gradients"
        if answer.kind == Kind.REFUSED:
            return
        assert np.array_equal(to_numbers(sums, answer.lanes)[:LANES], sum(addends.values())), "values"
        if answer.kind == Kind.RESULT:
            assert id not in self.closed, f"{id} was closed twice"
            assert answer.count >= k, f"closed by {answer.count} of k = {k}"
        else:
            assert self.closed.get(id) == answer.members, f"a late answer for {id}"


@dataclass
class Worker:
    """One rank: the real protocol and books, and what the agent keeps beside them."""

    protocol: Protocol
    residual: Residual
    codec: FixedPoint
    lanes: int
    """That it sends in, and `codec` is for."""
    computed: int = 0
    asking: bool = False
    delivered: int = 0
    complete: int = 0
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """What the ledger says was counted of this worker in the results it has."""
    entered: int = 0
    """The latest iteration whose gradient was handed over."""
    thrown: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """What was too late of its gradients, where that is to be thrown away."""
    waiting: list[frozenset[int]] = field(default_factory=list)
    """Of each block the iterations whose gradients are in the books and in no sum that it has."""
    summed: list[frozenset[int]] = field(default_factory=list)
    """And those that are in one."""


class World:
    """`workers` workers; worker r sends at `scales[r]` below the codec's scale; `late`: as policy.late.

    It sends in lanes of code `lanes[r]`, where `planned` is planned; one block in `every` is sent in an iteration.
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
        late="finish",
        switch=SlotRules,
    ) -> None:
        self.blocks, self.last, self.late = blocks, last, late
        self.planned, self.every = planned, every
        self.hints = self.given_up = 0
        self.switch = switch(workers=workers, k=k, slots=slots)
        for slot in self.switch.slots:
            slot.values = slot.values[:LANES]
        self.ledger = Ledger(slots)
        lanes = lanes or (planned,) * workers
        shape = Shape(blocks=blocks, words=WORDS, widest=32)
        self.bag: list[Packet] = []
        self.results: dict[BlockId, Result] = {}
        self.now = 0.0
        self.generation = 0
        self.uninformed: frozenset[int] = frozenset()  # of the regroup that is going on
        self.resuming: frozenset[int] = frozenset()
        codecs = {code: codec_in(code, workers) for code in Lanes}
        self.workers = [
            Worker(
                Protocol(job=1, rank=rank, shape=shape, slots=slots, window=window, rto_s=0.05, keep=KEEP),
                Residual(Pages.in_memory(blocks=blocks, lanes=LANES), rank, codecs, drop=late == "drop"),
                codec_in(lanes[rank], workers, scales[rank] if scales else 0),
                lanes[rank],
                own=np.zeros((blocks, LANES), np.int64),
                thrown=np.zeros((blocks, LANES), np.int64),
                waiting=[frozenset()] * blocks,
                summed=[frozenset()] * blocks,
            )
            for rank in range(workers)
        ]
        for rank in range(workers):
            self._begin(rank, 1)

    def selection(self, iteration: int) -> tuple[int, ...]:
        """Each block is sent once in any `every` iterations."""
        chosen = (block for block in range(self.blocks) if (block - iteration) % self.every == 0)
        return tuple(chosen) or (iteration % self.blocks,)

    def _begin(self, rank: int, iteration: int) -> None:
        protocol = self.workers[rank].protocol
        self.follow(rank, protocol.begin(iteration, self.now, self.selection(iteration), self.planned))

    # -- what may happen

    def ready(self, rank: int) -> None:
        """The worker's gradient is computed and handed over; or given up, where its iteration is over."""
        worker = self.workers[rank]
        worker.computed = worker.protocol.iteration
        if self.late == "abort" and worker.protocol.over:
            self.given_up += 1
            self.advance(rank)
            return
        worker.entered = worker.computed
        worker.residual.add(gradient(rank, worker.computed, self.blocks * LANES), worker.computed)
        worker.waiting = [before | {worker.computed} for before in worker.waiting]
        for block in range(self.blocks):
            if worker.delivered >> block & 1:
                self._too_late(worker, rank, block)
        scale = np.full(self.blocks, worker.codec.exponent)
        worker.residual.sending(worker.computed, np.array(worker.protocol.blocks), worker.lanes, scale)
        for block in worker.protocol.missing:
            self._contribute(rank, block, worker.codec.exponent, worker.lanes)
        self.advance(rank)

    def _contribute(self, rank: int, block: int, scale: int, lanes: int) -> None:
        """What the books say that is sent."""
        worker = self.workers[rank]
        values = to_values(worker.residual.sent[block].astype(np.int64), lanes)
        says = {"gradients": sent_gradients(worker.residual, block), "uses": worker.lanes}
        self.follow(rank, worker.protocol.contribute(block, values, scale=scale, lanes=lanes, **says, now=self.now))

    def deliver(self, packet: Packet) -> None:
        """A packet (already taken from the bag) arrives."""
        if packet.to == SWITCH:
            for rank, answer, sums in self.ledger.handle(self.switch, packet.header, packet.values):
                self.bag.append(Packet(rank, answer, sums))
            return
        worker = self.workers[packet.to]
        self.follow(packet.to, worker.protocol.packet_in(packet.header, packet.values, self.now))
        self.advance(packet.to)

    def deliver_together(self, rank: int, packets: list[Packet]) -> None:
        """A worker takes packets (already taken from the bag) at once."""
        taken = [(packet.header, packet.values) for packet in packets]
        self.follow(rank, self.workers[rank].protocol.packets_in(taken, self.now))
        self.advance(rank)

    def time_out(self, rank: int) -> None:
        """Time passes until the worker's earliest deadline."""
        protocol = self.workers[rank].protocol
        if protocol.deadline is not None:
            self.now = max(self.now, protocol.deadline)
            self.follow(rank, protocol.timer(self.now))

    def answer(self, rank: int, peer: int) -> None:
        """A peer answers with what it holds."""
        worker = self.workers[rank]
        worker.asking = False
        first = worker.protocol.iteration
        for result in list(self.workers[peer].protocol.results(first, first + 16)):
            self.follow(rank, worker.protocol.result_in(result, self.now))
        self.advance(rank)

    def restart_switch(self) -> None:
        """The switch loses its slots; it admits nobody until every worker has regrouped."""
        self.generation += 1
        self.switch.generation = -1
        self.uninformed, self.resuming = frozenset(range(len(self.workers))), frozenset()

    def regroup(self, rank: int) -> None:
        """A worker hears of it; the last one makes the switch admit them again."""
        self.workers[rank].protocol.regroup(self.generation)
        self.uninformed -= {rank}
        if not self.uninformed:
            self.ledger.forget({result.id for w in self.workers for result in w.protocol.results(0, self.last)})
            self.switch.generation = self.generation
            self.resuming = frozenset(range(len(self.workers)))

    def resume(self, rank: int) -> None:
        """A worker takes what all the others have and goes on."""
        worker = self.workers[rank]
        self.resuming -= {rank}
        for peer in self.workers:
            for result in list(peer.protocol.results(worker.protocol.iteration, self.last)):
                self.follow(rank, worker.protocol.result_in(result, self.now))
        self.follow(rank, worker.protocol.resume(self.now))
        self.advance(rank)

    # -- what the agent does

    def advance(self, rank: int) -> None:
        """The next iteration begins when this one is complete and its gradient was computed, or others are ahead."""
        worker = self.workers[rank]
        protocol = worker.protocol
        while not protocol.missing and worker.computed >= protocol.iteration and protocol.iteration < self.last:
            worker.delivered = 0
            self._begin(rank, protocol.iteration + 1)
            if protocol.left_behind:
                worker.computed = protocol.iteration  # fast-forward: nothing is computed

    def follow(self, rank: int, instructions: list[Instruction]) -> None:
        """Do what the protocol says."""
        worker = self.workers[rank]
        for instruction in instructions:
            match instruction:
                case Send(header=header, values=values):
                    assert (header.worker, header.iteration) == (rank, worker.protocol.iteration)
                    self.bag.append(Packet(SWITCH, header, values))
                case Deliver(result=result, hint=hint):
                    self._hinted(hint)
                    self._delivered(worker, rank, result)
                case Complete(iteration=iteration):
                    assert iteration == worker.complete + 1, "iterations complete one by one, each once"
                    sent = sum(1 << block for block in self.selection(iteration))
                    assert worker.delivered == sent, "complete without every block's result"
                    worker.complete = iteration
                case EncodeAgain(block=block, scale=scale, lanes=lanes):
                    scales = np.full(self.blocks, scale)
                    worker.residual.send_again(np.array([block]), worker.protocol.iteration, lanes, scales)
                    self._contribute(rank, block, scale, lanes)
                case AskPeers(id=id):
                    assert id in self.ledger.closed, "peers are asked for what is closed"
                    worker.asking = True

    def _hinted(self, hint: int | None) -> None:
        """What is told of lanes is that somebody uses them, and narrower than planned."""
        assert hint is None or (hint > self.planned and hint in [worker.lanes for worker in self.workers]), "a hint"
        self.hints += hint is not None

    def _delivered(self, worker: Worker, rank: int, result: Result) -> None:
        """The worker applies a result: the same as all others, and counts what the ledger says is its own."""
        id, block = result.id, result.id.block
        assert not worker.delivered >> block & 1, f"{id} was delivered twice"
        assert id.iteration == worker.protocol.iteration, "results are applied in iteration order"
        worker.delivered |= 1 << block
        same = result._replace(k=0)  # k is the one in force when the answer was sent, not when the block closed
        assert self.results.setdefault(id, same) == same, f"replicas differ in {id}"
        addends = self.ledger.added[id]
        assert result.members == self.ledger.closed[id] == sum(1 << member for member in addends)
        assert np.array_equal(to_numbers(result.values, result.lanes)[:LANES], sum(addends.values()))
        worker.residual.settle(result)
        if result.has(rank):
            worker.own[block] += worker.codec.decode(addends[rank].astype(np.int32), result.scale, 1)
            self._summed(worker, rank, result)
        elif worker.entered == id.iteration:
            self._too_late(worker, rank, block)

    def _summed(self, worker: Worker, rank: int, result: Result) -> None:
        """All gradients that the worker has are in this result, each for the first time."""
        block = result.id.block
        brought = worker.waiting[block]
        assert self.ledger.numbers[result.id][rank] == len(brought), "as many gradients as were entered since the last"
        assert not brought & worker.summed[block], "a gradient is in two sums"
        worker.summed[block] |= brought
        worker.waiting[block] = frozenset()

    def _too_late(self, worker: Worker, rank: int, block: int) -> None:
        """The gradient that was handed over last is not in this block's result."""
        if self.late == "drop":
            newest = to_fixed(gradient(rank, worker.entered, self.blocks * LANES)).reshape(self.blocks, LANES)
            worker.thrown[block] += newest[block]
            worker.waiting[block] -= {worker.entered}

    # -- what always holds

    def check(self) -> None:
        """Between any two steps."""
        for rank in range(len(self.workers)):
            self.check_one(rank)

    def check_one(self, rank: int) -> None:
        """One worker's books, and that it waits for nothing that cannot come."""
        if rank == SWITCH:
            return
        worker = self.workers[rank]
        books, protocol = worker.residual.books(), worker.protocol
        assert books.conserved, "counted + pending + discarded = gradients"
        assert np.array_equal(books.discarded, worker.thrown.ravel()), "what was too late is discarded, nothing else"
        assert np.array_equal(books.counted, worker.own.ravel()), "counted is what the switch added"
        pending = [len(gradients) for gradients in worker.waiting]
        assert worker.residual.pending_gradients.tolist() == pending, "how many gradients are pending"
        if (
            not protocol.regrouping
            and protocol.missing
            and (protocol.left_behind or worker.computed == protocol.iteration)
        ):
            assert protocol.deadline is not None, "open blocks, and nothing that would ever be sent again"

    def settle(self, stalled: frozenset[int] = frozenset()) -> int:
        """Lose nothing and be fair until every block that the others have begun has ended there; rounds taken.

        The stalled never compute, send or receive again; they still answer as peers.
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
        """All blocks once more with everyone in them: every gradient kept is in exactly one sum; how many are."""
        self.switch.k = len(self.workers)
        for _ in range(1 + self.every):
            self.settle()
        newest = self.workers[0].complete - self.every  # of later ones there are blocks that have not been sent
        waiting = set().union(*(gradients for worker in self.workers for gradients in worker.waiting))
        assert all(iteration > newest for iteration in waiting), "in no sum"
        held = sum(result.gradients for result in self.results.values())
        assert held == sum(len(gradients) for worker in self.workers for gradients in worker.summed), "nor in two"
        return held

    def _fair_round(self, live: list[int], target: int) -> None:
        """Everybody computes, times out, is answered by all peers, and everything arrives."""
        for rank in tuple(self.uninformed):
            self.regroup(rank)
        for rank in tuple(self.resuming):
            self.resume(rank)
        for rank in live:
            worker = self.workers[rank]
            if worker.computed < worker.protocol.iteration <= target:
                self.ready(rank)
            self.time_out(rank)
            if worker.asking:
                for peer in range(len(self.workers)):
                    self.answer(rank, peer)
        while self.bag:
            packet = self.bag.pop(0)
            if packet.to == SWITCH or packet.to in live:
                self.deliver(packet)
