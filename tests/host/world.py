"""Protocol objects, the slot model and a bag of packets between them; whoever drives it decides what happens next.

Nothing happens by itself: no clock, no order, no chance.  Every step goes through a ledger that looks at the values
in the slots, not at the switch's bitmaps, and asserts docs/PROTOCOL.md's "What always holds".
"""

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from host.age import AgeWeight
from host.compress import FixedPoint, to_fixed
from host.history import BlockId, Result
from host.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Packed, Send
from host.lanes import width_of
from host.pages import Pages
from host.protocol import Protocol
from host.residual import Residual
from host.shape import Shape
from host.slot_rules import SlotRules, to_numbers
from host.wire import PARTS, WEIGHT_UNIT, Header, Kind, Lanes, bit_of
from run.late import RULES

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


Key = tuple[int, int]
"""A worker's gradient: the iteration in which it was begun, and which one of the worker's in that."""

NEVER, WITHOUT_AGE = AgeWeight(weight=0.0), AgeWeight()
"""What is late is thrown away, or weighs as much as ever: tests/host/test_books.py has what lies between."""


@lru_cache(maxsize=4096)
def gradient(rank: int, key: Key, elements: int) -> np.ndarray:
    """Distinct for every worker and key, so that a sum tells its addends."""
    return np.random.default_rng((rank, *key)).uniform(-0.5, 0.5, elements).astype(np.float32)


@lru_cache
def codec_in(lanes: int, workers: int, below: int = 0) -> FixedPoint:
    """A codec for lanes of this code, whose own scale is so much below the usual one.

    Narrow lanes are clipped rather than 0: the ledger must see that something was added.
    """
    codec = copy(FixedPoint(workers=workers, gradient_range=1.0))
    codec.limit = (2 ** (width_of(lanes) - 1) - 1) // workers
    codec.exponent = math.floor(math.log2(codec.limit)) + 6 * bool(lanes) - below
    return codec


Part = tuple[int, int]
"""A contribution to a block: whose it is, and which part of what that worker gives to it."""


class Ledger:
    """What the switch added, block by block: an account of its own, made from packets and slot values."""

    def __init__(self, slots: int) -> None:
        self.added: dict[BlockId, dict[Part, np.ndarray]] = {}
        self.weights: dict[BlockId, dict[Part, int]] = {}
        """Of the gradients that each contribution said that it brought."""
        self.counted: dict[BlockId, int] = {}
        """How many of them count among the k."""
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
            self._check_answer(answer, sums, k, switch.workers)
        if answers and answers[0][1].kind == Kind.RESULT:
            self.closed[BlockId(header.iteration, header.block)] = answers[0][1].members
        return answers

    def _enter(self, header, values, epoch, total, new_epoch, new_total) -> None:
        """A slot has changed: by this packet's values, once, into its own open block."""
        part, id = (header.worker, header.part), BlockId(header.iteration, header.block)
        addends = self.added.setdefault(id, {})
        assert header.kind == Kind.CONTRIBUTE, "only contributions are added"
        assert new_epoch[1:] == id, f"{id} was added to the foreign block {new_epoch}"
        assert id not in self.closed, f"{id} is closed: {part} was added to it, or it was opened again"
        assert part not in addends, f"{part} was added twice to {id}"
        form = (header.scale, header.lanes)
        assert self.formats.setdefault(id, form) == form, f"{part} was added to {id} as something else"
        if new_epoch == epoch:
            assert np.array_equal(new_total, total + values), "the sum is not the old sum and the contribution"
        else:
            assert new_epoch > epoch, "a slot went back to an older block"
            old = epoch[0] < new_epoch[0] or epoch[1:] in self.closed or epoch == (0, 0, 0)
            assert old, f"the open block {epoch} was wiped"
            assert not addends, f"{id} was begun again"
            assert np.array_equal(new_total, values), "something of the slot's last block is left"
        addends[part] = values
        self.weights.setdefault(id, {})[part] = header.weight
        self.counted[id] = self.counted.get(id, 0) + header.count

    def forget(self, held: set[BlockId]) -> None:
        """The slots are lost: what nobody has the result of was never summed."""
        for id in [known for known in self.added if known not in held]:
            del self.added[id], self.weights[id], self.counted[id], self.formats[id]
            self.closed.pop(id, None)

    def _check_answer(self, answer: Header, sums: bytes, k: int, workers: int) -> None:
        """Members, count, gradients and values say what was added; a closed block's never change."""
        id = BlockId(answer.iteration, answer.block)
        if answer.kind == Kind.STALE:
            assert id in self.closed, f"{id} is stale, but was never closed"
            return
        addends = self.added[id]
        assert answer.members == members_in(addends), "members"
        assert answer.count == self.counted[id], "count"
        assert answer.weight == sum(self.weights[id].values()), "weight"
        if answer.kind == Kind.REFUSED:
            return
        assert np.array_equal(to_numbers(sums, answer.lanes)[:LANES], sum(addends.values())), "values"
        if answer.kind == Kind.RESULT:
            assert id not in self.closed, f"{id} was closed twice"
            full = len(addends) >= workers
            assert answer.count >= k or full, f"closed by {answer.count} of k = {k}, with {len(addends)} addends"
        else:
            assert self.closed.get(id) == answer.members, f"a late answer for {id}"


def members_in(parts: Iterable[Part]) -> int:
    """Their bitmap."""
    return sum(bit_of(*part) for part in parts)


@dataclass
class Worker:
    """One rank: the real protocol and books, and what the agent keeps beside them."""

    protocol: Protocol
    residual: Residual
    codec: FixedPoint
    lanes: int
    """That it sends in, and `codec` is for."""
    working: int = 1
    """The iteration that the training thread works on; the protocol may be further."""
    batch: int = 0
    computing: bool = True
    beyond: int = 0
    then: str = ""
    """What is done once the protocol is beyond that iteration and not left behind: "give", "hear", or nothing."""
    asking: bool = False
    delivered: int = 0
    complete: int = 0
    own: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """What the ledger says was counted of this worker in the results it has."""
    given: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """The sum of its gradients."""
    thrown: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """What was too late of them, where that is to be thrown away."""
    waiting: list[frozenset[Key]] = field(default_factory=list)
    """Of each block the gradients that are in the books and in no sum that it has."""
    summed: list[frozenset[Key]] = field(default_factory=list)
    """And those that are in one."""
    brought: dict[tuple[int, int], frozenset[Key]] = field(default_factory=dict)
    """What is on its way to the current iteration, by block and part."""


class World:
    """`workers` workers; worker r sends at `scales[r]` below the codec's scale; `rule`: for late gradients.

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
        rule="stash",
        switch=SlotRules,
    ) -> None:
        self.blocks, self.last, self.rule = blocks, last, RULES[rule]
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
                Residual(Pages.in_memory(blocks=blocks, lanes=LANES), rank, codecs, age=self.age),
                codec_in(lanes[rank], workers, scales[rank] if scales else 0),
                lanes[rank],
                own=np.zeros((blocks, LANES), np.int64),
                thrown=np.zeros((blocks, LANES), np.int64),
                given=np.zeros((blocks, LANES), np.int64),
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

    @property
    def age(self) -> AgeWeight:
        """What late gradients weigh."""
        return NEVER if self.rule.discards else WITHOUT_AGE

    def _begin(self, rank: int, iteration: int) -> None:
        """As Agent._begin."""
        worker = self.workers[rank]
        protocol, books = worker.protocol, worker.residual
        books.begin(iteration)
        worker.brought, worker.delivered = {}, 0
        self.follow(rank, protocol.begin(iteration, self.now, self.selection(iteration), self.planned))
        if self._may_merge(worker) and not protocol.over and books.oldest_before(iteration - 1):
            self._contribute_waiting(rank, counts=False)

    # -- what may happen

    def ready(self, rank: int) -> None:
        """The worker's gradient is computed; or given up, where its iteration is over and the rule is such."""
        worker = self.workers[rank]
        worker.computing = False
        if self.rule.gives_up and self._is_late(worker):
            self.given_up += 1
            worker.beyond, worker.then = worker.working, "hear"
        else:
            worker.beyond, worker.then = 0, "give"
        self.advance(rank)

    def _is_late(self, worker: Worker) -> bool:
        return worker.protocol.over or worker.protocol.iteration > worker.working

    def _give(self, rank: int) -> None:
        """As the agent does it when the protocol is where the others are."""
        worker = self.workers[rank]
        current, late = worker.protocol.iteration, worker.protocol.iteration > worker.working
        self._enter(rank, current)
        if late and not self.rule.counts:
            if self._may_merge(worker):
                self._contribute_waiting(rank, counts=False)
        elif worker.batch:
            self._contribute_waiting(rank, counts=True)
        else:
            blocks = np.array(worker.protocol.blocks)
            self._encode(worker, blocks, 0)
            for block in worker.protocol.missing:
                self._contribute(rank, block, worker.codec.exponent, worker.lanes, 0, counts=True)
        if self.rule.repeats and not late and worker.batch < PARTS - 1:
            worker.batch += 1
            worker.computing = True
        else:
            worker.beyond, worker.then = 0 if late and not self.rule.counts else current, "hear"

    def _may_merge(self, worker: Worker) -> bool:
        return self.rule.merges and worker.protocol.k < len(self.workers)

    def _enter(self, rank: int, current: int) -> None:
        """Into the books, and into this account of them."""
        worker = self.workers[rank]
        key = worker.working, worker.batch
        values = gradient(rank, key, self.blocks * LANES)
        worker.residual.add(values, worker.working, batch=worker.batch, current=current)
        fixed = to_fixed(values).reshape(self.blocks, LANES)
        worker.given += fixed
        for block in range(self.blocks):
            if self.rule.discards and (current > worker.working or worker.delivered >> block & 1):
                worker.thrown[block] += fixed[block]
            else:
                worker.waiting[block] |= {key}

    def _encode(self, worker: Worker, blocks: np.ndarray, part: int, scale: int | None = None) -> None:
        """What is not on its way already, as this part."""
        scales = np.full(self.blocks, worker.codec.exponent if scale is None else scale)
        worker.residual.sending(worker.protocol.iteration, blocks, worker.lanes, scales, part)
        for block in blocks.tolist():
            self._bring(worker, block, part)

    def _bring(self, worker: Worker, block: int, part: int) -> None:
        """Note what a part has in it."""
        others = [keys for (of, other), keys in worker.brought.items() if of == block and other != part]
        worker.brought = worker.brought | {(block, part): worker.waiting[block] - frozenset().union(*others)}

    def _contribute_waiting(self, rank: int, *, counts: bool) -> None:
        """As Agent._contribute_waiting and Encoder.encode_part."""
        worker = self.workers[rank]
        protocol, books = worker.protocol, worker.residual
        if (part := books.free_part) is None:
            return
        unsent = books.unsent(protocol.iteration) > 0
        blocks = np.array([block for block in protocol.missing if unsent[block]], int)
        self._encode(worker, blocks, part)
        for block in blocks.tolist():
            self._contribute(rank, block, worker.codec.exponent, worker.lanes, part, counts=counts)

    def _contribute(self, rank: int, block: int, scale: int, lanes: int, part: int, *, counts: bool) -> None:
        """What the books say that is sent."""
        worker = self.workers[rank]
        values = worker.residual.noted(np.array([block]), part)[block]
        ((_, _, weight),) = worker.residual.noted_of([block], part)
        packed = Packed(values, scale, lanes, weight)
        says = {"part": part, "counts": counts, "uses": worker.lanes}
        self.follow(rank, worker.protocol.contribute(block, packed, **says, now=self.now))

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
        """Go on to the next iteration when that is waited for, or something waits for it that is late."""
        worker = self.workers[rank]
        protocol = worker.protocol
        while worker.then or (self.rule.merges and worker.residual.waiting.any()):
            if worker.then and protocol.iteration > worker.beyond and not protocol.over:
                then, worker.then = worker.then, ""
                if then == "give":
                    self._give(rank)
                else:
                    worker.working, worker.batch, worker.computing = protocol.iteration, 0, True
            elif protocol.missing or protocol.iteration >= self.last:
                return
            else:
                self._begin(rank, protocol.iteration + 1)

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
                case EncodeAgain(block=block, part=part, counts=counts, scale=scale, lanes=lanes):
                    where, scales = np.array([block]), np.full(self.blocks, scale)
                    worker.residual.send_again(where, worker.protocol.iteration, lanes, scales, part)
                    self._bring(worker, block, part)
                    self._contribute(rank, block, scale, lanes, part, counts=counts)
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
        assert result.members == self.ledger.closed[id] == members_in(addends)
        assert np.array_equal(to_numbers(result.values, result.lanes)[:LANES], sum(addends.values()))
        worker.residual.settle(result)
        for part in range(PARTS):
            if result.has(rank, part):
                worker.own[block] += worker.codec.decode(addends[rank, part].astype(np.int32), result.scale, 1)
                self._summed(worker, (rank, part), result)
        worker.brought = {key: keys for key, keys in worker.brought.items() if key[0] != block}
        if self.rule.discards and worker.waiting[block]:
            worker.waiting[block] = frozenset()
            worker.thrown[block] = worker.given[block] - worker.own[block]

    def _summed(self, worker: Worker, part: Part, result: Result) -> None:
        """What this part brought is in this result, for the first time."""
        block = result.id.block
        brought = worker.brought[block, part[1]]
        assert self.ledger.weights[result.id][part] == max(WEIGHT_UNIT * len(brought), 1), (
            "the weight of what it brings"
        )
        assert not brought & worker.summed[block], "a gradient is in two sums"
        worker.summed[block] |= brought
        worker.waiting[block] -= brought

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
        pending = [WEIGHT_UNIT * len(gradients) for gradients in worker.waiting]
        assert worker.residual.waiting.tolist() == pending, "the weight of the gradients that are pending"
        waits = worker.then == "hear" and worker.beyond == protocol.iteration
        if not protocol.regrouping and protocol.missing and (protocol.left_behind or waits):
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
        for _ in range(2 + self.every):
            self.settle()
        newest = self.workers[0].complete - self.every  # of later ones there are blocks that have not been sent
        waiting = set().union(*(gradients for worker in self.workers for gradients in worker.waiting))
        if not self.rule.repeats:  # with k = n others may give all that is needed
            assert all(iteration > newest for iteration, _ in waiting), "in no sum"
        held = sum(len(keys) for worker in self.workers for keys in worker.summed)
        return held

    def _fair_round(self, live: list[int], target: int) -> None:
        """Everybody computes, times out, is answered by all peers, and everything arrives."""
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
        while self.bag:
            packet = self.bag.pop(0)
            if packet.to == SWITCH or packet.to in live:
                self.deliver(packet)
