"""Every interleaving of a small job: three workers, an iteration or two of one or two blocks, and the next one's first.

The search is depth-first over canonical states. A state holds what its future can depend on, without values (they
follow from the members), times and statistics. Every state is checked for "What always holds", and reaches the end. A
request is repeated when it or its answer was lost; any other repetition is a duplicate and has its budget.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import pytest

from kofn_common.wire.packet import Flag, Kind, KofnHeader, bit_of
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_storage import LedgerStorage
from tests.host.mortal import Mortal
from tests.host.protocol.specification.core import PULLS_BEFORE_PEERS
from tests.host.world import SWITCH, Packet, SwitchAccount, Worker

BLOCKS = 2
Key = tuple[object, ...]
ALL = -2
"""Marks a step that touches a switch and all workers; other negative numbers are switches."""
Step = tuple[str, int, Callable[["Small"], None]]


def block_id_of(header: KofnHeader) -> tuple[int, int, int]:
    return header.generation, header.iteration, header.block


class Numbers(dict[object, int]):
    """Numbers every object seen: states are compared as tuples of small numbers."""

    def __missing__(self, thing: object) -> int:
        self[thing] = len(self)
        return self[thing]


NUMBERS = Numbers()


class Bag:
    """Packets in transit, of which a few may still be lost or duplicated."""

    bag: list[Packet]
    losses: int
    duplications: int

    def network_steps(self) -> Iterator[tuple[str, int, Callable[[Any], None]]]:
        for index, (to, header) in enumerate((packet.to, packet.header) for packet in self.bag):
            if (to, header) in ((packet.to, packet.header) for packet in self.bag[:index]):
                continue  # an equal packet has the same steps
            yield f"deliver {to} {header}", to, lambda world, i=index: world.deliver(world.bag.pop(i))
            if self.losses:
                yield f"lose {to} {header}", to, lambda world, i=index: world.lose(i)
            if self.duplications:
                yield f"duplicate {to} {header}", to, lambda world, i=index: world.duplicate(i)

    def lose(self, index: int) -> None:
        self.losses -= 1
        self.bag.pop(index)

    def duplicate(self, index: int) -> None:
        self.duplications -= 1
        self.bag.append(self.bag[index])


def number_of(packet: Packet) -> int:
    """Return a packet's number, without its AGAIN flag: only timers use the flag, and here they ring at any time."""
    header = packet.header
    return NUMBERS[packet.to, header._replace(flags=header.flags & ~Flag.AGAIN) if header.flags else header]


class Small(Bag, Mortal):
    """A world with a budget of faults; the last iteration contributes block 0 only."""

    losses = 0
    duplications = 0
    restarts = 0
    damages = 0
    """Damaged packets that will occupy a slot."""
    deaths: int | None = None
    """Deaths still to come; None: no worker of this world ever dies."""
    changes: tuple[int, ...] = ()

    def clone(self, touched: int) -> "Small":
        """Return a copy in which one worker, or the switch, may change."""
        other = copy(self)
        other.bag, other.results, other.workers = list(self.bag), dict(self.results), list(self.workers)
        if touched < 0:
            other.copy_switches()
        for rank in range(len(self.workers)) if touched == ALL else [touched] * (touched >= 0):
            other.workers[rank] = self._clone_worker(self.workers[rank])
        return other

    def copy_switches(self) -> None:
        """Replace the switch and its account by copies, which may change."""
        self.switch, known = copy(self.switch), self.account
        self.switch.slots = [copy(slot) for slot in self.switch.slots]
        self.account = SwitchAccount.__new__(SwitchAccount)
        self.account.added = {id: dict(addends) for id, addends in known.added.items()}
        self.account.weights = {id: dict(weights) for id, weights in known.weights.items()}
        self.account.aggregated = dict(known.aggregated)
        self.account.formats = dict(known.formats)
        self.account.closed, self.account.slots = dict(known.closed), list(known.slots)
        self.account.occupied = known.occupied

    @staticmethod
    def _clone_worker(worker):
        other = copy(worker)
        other.number = None
        other.protocol = worker.protocol.clone()
        storage = worker.ledger._storage
        copies = {field.name: getattr(storage, field.name).copy() for field in fields(storage)}
        ledger = worker.ledger
        other.ledger = Ledger(LedgerStorage(**copies), ledger.rank, ledger._codecs, place=ledger.place, age=ledger.age)
        other.ledger.attach_protocol(other.protocol.native)
        other.own, other.thrown, other.given = worker.own.copy(), worker.thrown.copy(), worker.given.copy()
        other.waiting, other.summed = list(worker.waiting), list(worker.summed)
        other.late, other.closed = list(worker.late), list(worker.closed)
        return other

    def key(self) -> Key:
        """Return a key that is equal for states with the same future."""
        for worker in self.workers:
            if worker.number is None:
                worker.number = NUMBERS[self._worker_key(worker)]
        regroup = (self.generation, self.uninformed, self.resuming, self.restarts, self.deaths, self.damages)
        closed = tuple(sorted(self.account.closed.items()))
        bag = tuple(sorted(map(number_of, self.bag)))
        switches = self.switches_key()
        ends = (NUMBERS[switches, closed, self.switch.k, self.changes, regroup], self.losses, self.duplications)
        return (*[worker.number for worker in self.workers], *ends, bag)

    def switches_key(self) -> Key:
        return tuple((slot.block_id, slot.members, slot.count, slot.done, slot.format) for slot in self.switch.slots)

    def _worker_key(self, worker) -> Key:
        p = worker.protocol
        flights = sorted(
            (request, flight.header, min(flight.attempts, PULLS_BEFORE_PEERS), flight.asked_peers)
            for request, flight in (*p._in_flight.by_request.items(), *p._in_flight.merged.items())
        )
        known = tuple((result.id, bool(result.values)) for result in p.results(0, self.last + 1))
        course = (worker.working, worker.batch, worker.computing, worker.beyond, worker.then)
        state = (
            p.iteration,
            p.k,
            *course,
            worker.asking,
            worker.asking and worker.stale,
            p.regrouping,
            p.generation,
            *p.missing,
        )
        waiting = sorted((request, ready.scale, ready.lanes) for request, ready in p._waiting.items())
        storage, weights = worker.ledger._storage, worker.ledger.accounts.waiting
        late = np.where(weights > 0, storage.records["late"], 0)
        sent_in = np.moveaxis(storage.sent["iteration"], 1, 0)
        current = np.max(sent_in * (sent_in >= p.iteration), axis=0)
        ledger = (
            *weights.tolist(),
            *late.tolist(),
            *current.ravel().tolist(),
        )
        mortal = () if self.deaths is None else self._what_outlives(worker)
        return (state, *flights, tuple(waiting), tuple(sorted(p._blocks.slot_lanes.items())), known, ledger, mortal)

    @staticmethod
    def _what_outlives(worker) -> Key:
        """Return the part of a worker's state that survives its death."""
        ledger, storage = worker.ledger, worker.ledger._storage
        noted = storage.records["settled"].tolist(), storage.sent[["iteration", "row"]].tolist()
        return worker.dead, worker.protocol.given, worker.protocol.left_behind, ledger.begun, ledger.entered, str(noted)

    def tidy(self) -> None:
        """Deliver answers that tell their worker nothing new, ever, and drop what lies behind the end."""
        self.bag = [packet for packet in self.bag if not self._is_old_news(packet)]

    def _is_old_news(self, packet: Packet) -> bool:
        if packet.to < 0:
            return packet.header.generation < self.generation
        protocol, header = self.workers[packet.to].protocol, packet.header
        if header.generation < protocol.generation:
            assert not protocol.packet_in(header, packet.values, self.now), (
                "packets of an earlier generation are ignored"
            )
            return True
        known = protocol._history._whole.get(header.iteration, ())
        return header.iteration < protocol.iteration or header.block in known

    def send(self, rank, packets) -> None:
        """Send packets as the world does, but none behind the end."""
        super().send(rank, [each for each in packets if (each.header.iteration, each.header.block) <= self.end])

    def finished(self) -> bool:
        """Return whether every worker has all iterations before the last one, and the last one's first block."""
        last, block = self.end
        return all(w.protocol.iteration == last and block not in w.protocol.missing for w in self.workers)

    @property
    def end(self) -> tuple[int, int]:
        """The last iteration and its first block, its only contributed one."""
        return self.last, self.selection(self.last)[0]

    def steps(self) -> Iterator[Step]:
        """Yield every possible step."""
        yield from self.network_steps()
        yield from self.worker_steps()
        for rank in self.uninformed:
            yield f"regroup {rank}", ALL, lambda world, r=rank: world.regroup(r)
        for rank in self.resuming:
            yield f"resume {rank}", rank, lambda world, r=rank: world.resume(r)
        if self.restarts and self.may_restart:
            yield "restart the switch", SWITCH, lambda world: world.crash_switch()
        if self.damages and not self.uninformed:
            for index in range(len(self.switch.slots)):
                yield f"occupy {index}", SWITCH, lambda world, i=index: world.damage(i)
        if self.changes:
            yield "change k", SWITCH, lambda world: world.next_k()
        for rank in range(len(self.workers)):
            if self.deaths and self.may_die(rank):
                yield f"die {rank}", rank, lambda world, r=rank: world.die(r)
            for peer in range(len(self.workers)) if self.may_come_back(rank) else ():
                if peer != rank and not self.workers[peer].dead:
                    yield f"come back {rank} {peer}", rank, lambda world, r=rank, p=peer: world.come_back(r, p)

    def worker_steps(self) -> Iterator[Step]:
        for rank, worker in enumerate(self.workers):
            if worker.computing and (worker.working, worker.batch) < (self.last, 1) and self.may_give(worker):
                yield f"ready {rank}", rank, lambda world, r=rank: world.ready(r)
            for request, flight in worker.protocol._in_flight.by_request.items():
                if block_id_of(flight.header)[1:] <= self.end and self.needs_repetition(rank, flight.header):
                    yield f"time out {rank} {request}", rank, lambda world, r=rank, q=request: world.time_out_one(r, q)
            if worker.asking:
                for peer in range(len(self.workers)):
                    if peer != rank and self.holds(peer, worker.protocol.missing, worker.protocol.iteration):
                        yield f"answer {rank} {peer}", rank, lambda world, r=rank, p=peer: world.answer(r, p)
                if self.finds_ahead(rank):
                    yield f"report ahead {rank}", ALL, lambda world, r=rank: world.report_ahead(r)

    def may_give(self, giver: Worker) -> bool:
        """Return whether the worker may contribute: with recipients only once all have the previous
        iteration's sums.
        """
        return not self.scattered or all(worker.complete >= giver.working - 1 for worker in self.workers)

    def die(self, rank: int) -> None:
        assert self.deaths
        self.deaths -= 1
        super().die(rank)

    def next_k(self) -> None:
        k, *rest = self.changes
        self.changes = tuple(rest)
        self.change_k(k)

    def crash_switch(self) -> None:
        self.restarts -= 1
        self.restart_switch()

    def damage(self, index: int) -> None:
        self.damages -= 1
        self.occupy(index)

    def needs_repetition(self, rank: int, header: KofnHeader) -> bool:
        """Return whether no packet about this request is in transit, and the switch does not just wait for others."""
        block_id, mine = block_id_of(header), bit_of(rank, header.part)
        about = [p for p in self.bag if block_id_of(p.header) == block_id and self._is_about(p, rank, header.part)]
        slot = self.switch.slots[header.slot % len(self.switch.slots)]
        waits = slot.block_id == block_id and not slot.done and slot.members & mine and slot.count < self.switch.k
        return not about and not waits and not self.workers[rank].asking

    @staticmethod
    def _is_about(packet: Packet, rank: int, part: int) -> bool:
        """Return whether a packet is about this request: a result answers all parts of its worker, any other packet one
        part.
        """
        return packet.header.worker == rank and (packet.header.kind == Kind.RESULT or packet.header.part == part)

    def time_out_one(self, rank: int, request: int) -> None:
        self.workers[rank].protocol.ring(request, self.now)
        self.driver(rank).timer(self.now)

    def holds(self, peer: int, blocks: list[int], iteration: int) -> bool:
        """Return whether this peer has a result for the asking worker; without one the state would not change."""
        return any(result.id.block in blocks for result in self.workers[peer].protocol.results(iteration, iteration))


class Explored(Protocol):
    """The interface that explore() needs."""

    def key(self) -> Key: ...
    def steps(self) -> Iterator[tuple[str, int, Callable[[Any], None]]]: ...
    def clone(self, touched: int) -> Self: ...
    def check_one(self, touched: int) -> None: ...
    def tidy(self) -> None: ...
    def finished(self) -> bool: ...


def explore(start: Explored) -> tuple[int, int]:
    """Explore every step and return the numbers of states and steps; check each state, and that
    each reaches the end.
    """
    root = start.key()
    seen, stack, before, ends, steps = {root}, [(root, start)], defaultdict(list), [], 0
    while stack:
        key, world = stack.pop()
        if world.finished():
            ends.append(key)
            continue
        for name, touched, step in world.steps():
            after = world.clone(touched)
            try:
                step(after)
                after.check_one(touched)
                after.tidy()
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}\nin {key}") from error
            steps += 1
            reached = after.key()
            before[reached].append(key)
            if reached not in seen:
                seen.add(reached)
                stack.append((reached, after))
    live = set(ends)
    while ends:
        for key in before[ends.pop()]:
            if key not in live:
                live.add(key)
                ends.append(key)
    assert live == seen, f"{len(seen - live)} of {len(seen)} states never end, such as {next(iter(seen - live))}"
    return len(seen), steps


@dataclass(frozen=True)
class Setting:
    """A small case: k and its later values, permitted faults, workers' scales and lanes, planned lanes, and sent
    blocks.
    """

    k: tuple[int, ...]
    losses: int = 0
    duplications: int = 0
    restarts: int = 0
    damages: int = 0
    deaths: int | None = None
    blocks: int = BLOCKS
    slots: int = 2
    scales: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    planned: int = 0
    every: int = 1
    """One block in `every` is sent in an iteration."""
    last: int = 2
    """The last iteration."""
    workers: int = 3
    rule: str = "stash"
    scattered: bool = False
    """Each block's sum goes to one worker."""


def small(setting: Setting, kind: type[Small] = Small, **more: Any) -> Small:
    world = kind(
        workers=setting.workers,
        k=setting.k[0],
        blocks=setting.blocks,
        slots=setting.slots,
        window=setting.slots // 2,
        last=setting.last,
        scales=setting.scales,
        lanes=setting.lanes,
        planned=setting.planned,
        every=setting.every,
        rule=setting.rule,
        scattered=setting.scattered,
        **more,
    )
    world.changes = setting.k[1:]
    world.losses, world.duplications, world.restarts = setting.losses, setting.duplications, setting.restarts
    world.deaths, world.damages = setting.deaths, setting.damages
    return world


SELECTED = {"merge": 3058, "async": 2892, "abort": 2812, "stash": 2258, "drop": 2076}
"""Number of states by rule, where a block rests in every second iteration and one of two workers is late."""


def selected(rule: str) -> Setting:
    return Setting(k=(1,), workers=2, every=2, last=3, rule=rule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        (Setting(k=(2,), restarts=1, blocks=1, workers=2), 304),
        (Setting(k=(2,), damages=1, blocks=1, workers=2), 844),
        (Setting(k=(2,), blocks=1, rule="merge"), 2480),
        (selected("stash"), SELECTED["stash"]),
        *(
            pytest.param(setting, states, marks=pytest.mark.long)
            for setting, states in (
                (Setting(k=(3,), losses=1, slots=4), 4848),
                (Setting(k=(3,), restarts=1, blocks=1), 2372),
                (Setting(k=(1,), damages=1, blocks=1, workers=2), 3173),
                (Setting(k=(1,), workers=2, every=2, last=3, rule="merge", restarts=1), 15856),
                (Setting(k=(2,), scattered=True), 4046),
                (Setting(k=(3,), deaths=1, blocks=1), 3488),
                (Setting(k=(2,), every=2, lanes=(0, 1, 0)), 5624),
                (Setting(k=(2,), blocks=1, rule="merge", planned=4), 2480),
                (Setting(k=(2,), blocks=1, rule="async"), 1634),
                (Setting(k=(2,), blocks=1, rule="abort"), 1679),
                *((selected(rule), SELECTED[rule]) for rule in ("merge", "async", "abort", "drop")),
            )
        ),
    ],
)
def test_every_interleaving_ends(setting: Setting, states: int) -> None:
    """Fewer states than given would mean that a part is not explored."""
    assert explore(small(setting))[0] >= states


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("KOFN_NIGHTLY") != "1", reason="minutes: `make explore` runs it")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("setting", "states"),
    [
        (Setting(k=(3,), losses=1, duplications=1), 8349),
        (Setting(k=(2,), slots=4), 13844),
        (Setting(k=(1,)), 227288),
        (Setting(k=(2,), losses=1), 61580),
        (Setting(k=(2,)), 7952),
        (Setting(k=(2,), duplications=1), 96218),
        (Setting(k=(2,), losses=1, planned=4), 61580),
        (Setting(k=(3,), losses=1, duplications=1, scales=(0, 3, 0), planned=4), 47558),
        (Setting(k=(3, 2)), 43950),
        (Setting(k=(2, 3)), 18425),
        (Setting(k=(2,), restarts=1), 59821),
        (Setting(k=(3,), losses=1, duplications=1, scales=(0, 3, 0)), 47558),
        (Setting(k=(3,), losses=1, duplications=1, blocks=1, lanes=(0, 1, 0)), 27369),
        (Setting(k=(2,), duplications=1, blocks=1, lanes=(0, 1, 0)), 60066),
        (Setting(k=(2,), blocks=4, every=2), 7952),
        (Setting(k=(2,), rule="merge"), 9026),
        (Setting(k=(2,), blocks=1, losses=1, rule="merge"), 18137),
        (Setting(k=(2,), blocks=1, duplications=1, rule="merge"), 22997),
        (Setting(k=(2,), blocks=1, losses=1, rule="async"), 11741),
        (Setting(k=(3,), losses=1, slots=4, scattered=True), 3393),
        (Setting(k=(2,), losses=1, scattered=True), 27632),
        (Setting(k=(2,), duplications=1, scattered=True), 44888),
        (Setting(k=(3,), deaths=1), 6537),
        (Setting(k=(1,), workers=2, every=2, last=3, rule="batch-sync"), 10197),
        (Setting(k=(2,), every=2, last=3, rule="merge"), 21665),
        (Setting(k=(2,), every=2, last=3, rule="async"), 22730),
        (Setting(k=(2,), every=2, last=3, rule="abort"), 20966),
    ],
)
def test_every_interleaving_of_more_ends(setting: Setting, states: int) -> None:
    explored, steps = explore(small(setting))
    print(f"{setting}: {explored} states, {steps} steps")
    assert explored >= states


@pytest.mark.slow
@pytest.mark.long
def test_sums_for_one_recipient_are_lost_if_workers_go_on_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the exploration would detect a broken rule."""
    monkeypatch.setattr(Small, "may_give", lambda self, giver: True)
    with pytest.raises(AssertionError, match="peers cannot have the sums"):
        explore(small(Setting(k=(2,), scattered=True)))


@pytest.mark.slow
@pytest.mark.long
def test_sums_are_lost_if_they_are_forgotten_before_all_have_given(monkeypatch: pytest.MonkeyPatch) -> None:
    of_all = Small.protocol

    def of_two(world: Small, rank: int) -> Any:
        protocol = of_all(world, rank)
        protocol.await_only(2)
        return protocol

    monkeypatch.setattr(Small, "protocol", of_two)
    with pytest.raises(AssertionError, match="peers have forgotten sums"):
        explore(small(Setting(k=(2,))))


@pytest.mark.slow
def test_sums_for_one_recipient_are_lost_if_blocks_outnumber_slots() -> None:
    with pytest.raises(AssertionError, match="peers cannot have the sums"):
        explore(small(Setting(k=(2,), blocks=4, losses=1, scattered=True)))
