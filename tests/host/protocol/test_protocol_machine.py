"""The protocol as a state machine: hypothesis decides what is delivered, lost, repeated or late, and changes k.

After every step "What always holds" of docs/explanation/protocol.md is checked. At the end no packet is lost, and every
block must end. `make explore` makes many more steps and reports their number.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kofn_common.config.late_rules import RULES
from tests.host.mortal import Mortal
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.world import SWITCH

STEPS: Counter[str] = Counter()
"""Number of steps of each kind in all examples: a rule that never runs is noticed."""

choice = st.integers(0, 255)
choices = st.lists(choice, min_size=1, max_size=8)


class ProtocolMachine(RuleBasedStateMachine):
    """n workers, a switch with few slots, and a network that may do anything to packets."""

    switch: type[SlotModel] = SlotModel

    @initialize(
        workers=st.integers(2, 4),
        blocks=st.integers(1, 6),
        slots=st.sampled_from([2, 4, 8]),
        k=choice,
        window=choice,
        stalled=st.permutations(range(4)),
        scales=st.lists(st.sampled_from([0, 0, 3]), min_size=4, max_size=4),
        lanes=st.just([]) | st.lists(st.sampled_from([0, 0, 1, 3]), min_size=4, max_size=4),
        planned=st.sampled_from([0, 0, 1, 4]),
        every=st.sampled_from([1, 1, 2, 3]),
        rule=st.sampled_from([*RULES]),
        mortal=st.integers(0, 3).map(lambda one: not one),
    )
    def begin(self, workers, blocks, slots, k, window, stalled, scales, lanes, planned, every, rule, mortal):
        self.workers, self.stalled = workers, [rank for rank in stalled if rank < workers]
        self.mortal, k, rule = mortal, *((workers - 1, "stash") if mortal else (k, rule))
        self.world = Mortal(
            workers=workers,
            k=1 + k % workers,
            blocks=blocks,
            slots=slots,
            window=2 ** (window % (slots.bit_length() - 1)),
            scales=scales,
            lanes=lanes,
            planned=planned,
            every=every,
            rule=rule,
            switch=self.switch,
        )

    def packet(self, which):
        return self.world.bag[which % len(self.world.bag)]

    @precondition(lambda self: self.world.bag)
    @rule(which=choice)
    def deliver(self, which):
        STEPS["delivered"] += 1
        self.world.deliver(self.world.bag.pop(which % len(self.world.bag)))

    @precondition(lambda self: self.world.bag)
    @rule(which=st.lists(choice, min_size=1, max_size=12))
    def deliver_some(self, which):
        for each in which:
            if self.world.bag:
                self.deliver(each)

    @precondition(lambda self: self._have_several)
    @rule(which=choice)
    def deliver_together(self, which):
        """Deliver all packets for one worker at once, as if it found them in its socket."""
        rank = self._have_several[which % len(self._have_several)]
        together = [packet for packet in self.world.bag if packet.to == rank]
        self.world.bag = [packet for packet in self.world.bag if packet.to != rank]
        STEPS["delivered together"] += 1
        self.world.deliver_together(rank, together)

    @property
    def _have_several(self):
        count = Counter(packet.to for packet in self.world.bag)
        return [rank for rank in range(self.workers) if count[rank] > 1]

    @precondition(lambda self: self.world.bag)
    @rule(which=choice)
    def lose(self, which):
        STEPS["lost"] += 1
        self.world.bag.pop(which % len(self.world.bag))

    @precondition(lambda self: self.world.bag)
    @rule(rank=choice)
    def lose_all_to_one(self, rank):
        STEPS["cut off"] += 1
        self.world.bag = [packet for packet in self.world.bag if packet.to != rank % self.workers]

    @precondition(lambda self: 0 < len(self.world.bag) < 60)
    @rule(which=choice)
    def duplicate(self, which):
        STEPS["duplicated"] += 1
        self.world.bag.append(self.packet(which))

    @rule(rank=choice, levels=st.sampled_from([None, (0, 0, 0, 0, 0, 0), (0, 1, 2, 0, 1, 2), (2, 2, 1, 1, 0, 0)]))
    def ready(self, rank, levels=None):
        rank %= self.workers
        worker = self.world.workers[rank]
        if levels is not None:
            worker.protocol.in_pieces(levels)
        if worker.computing:
            STEPS["computed"] += 1
            self.world.ready(rank)

    @rule()
    def all_ready(self):
        for rank in range(self.workers):
            self.ready(rank)

    @precondition(lambda self: len(self.world.bag) < 60)
    @rule(rank=choice, peer=st.none() | choice)
    def time_out(self, rank, peer):
        STEPS["timed out"] += 1
        self.world.time_out(rank % self.workers)
        if peer is not None and any(worker.asking for worker in self.world.workers):
            self.answer(peer)

    @rule(stragglers=st.integers(0, 15), iterations=st.integers(1, 3))
    def run_ahead(self, stragglers, iterations):
        """Let all but the stragglers exchange packets; packets for or from a straggler stay in transit."""
        fast = [rank for rank in range(self.workers) if not stragglers >> rank & 1]
        for _ in range(iterations):
            for rank in fast:
                self.ready(rank)
            while moving := [p for p in self.world.bag if self.world.worker_of(p) in {*fast, None}]:
                self.world.bag.remove(moving[0])
                self.world.deliver(moving[0])

    @precondition(lambda self: not self.mortal)
    @rule(k=choice)
    def change_k(self, k):
        STEPS["k changed"] += 1
        self.world.change_k(1 + k % self.workers)

    @precondition(lambda self: any(worker.asking for worker in self.world.workers))
    @rule(peer=choice)
    def answer(self, peer):
        STEPS["peers answered"] += 1
        rank = next(rank for rank, worker in enumerate(self.world.workers) if worker.asking)
        self.world.answer(rank, peer % self.workers)

    @precondition(lambda self: not self.world.uninformed)
    @rule(seldom=st.integers(0, 7), recovery=st.just([]) | st.lists(choice, min_size=8, max_size=24))
    def restart_switch(self, seldom, recovery):
        if not seldom and self.world.may_restart:
            STEPS["switch restarted"] += 1
            self.world.restart_switch()
            self.recover(recovery)

    @precondition(lambda self: not self.world.uninformed and self.world.may_restart and self.world.racks == 1)
    @rule(seldom=st.integers(0, 7), which=choice, noticed=st.booleans())
    def occupy(self, seldom, which, noticed):
        if not seldom:
            STEPS["slot occupied"] += 1
            self.world.occupy(which)
            if noticed:
                self.all_ready()
                self._move_all()

    @precondition(lambda self: self._who_finds_ahead)
    @rule()
    def report_ahead(self):
        STEPS["slot reported"] += 1
        self.world.report_ahead(self._who_finds_ahead[0])

    @property
    def _who_finds_ahead(self):
        ranks = [rank for rank, worker in enumerate(self.world.workers) if worker.asking]
        return [rank for rank in ranks if self.world.finds_ahead(rank)]

    @precondition(lambda self: self.recoveries())
    @rule(which=choices)
    def recover(self, which):
        """Take some of the steps after a restart, in any order that the protocol permits."""
        for each in which:
            if possible := self.recoveries():
                kind, step, who = possible[each % len(possible)]
                STEPS[kind] += 1
                step(who)

    def recoveries(self):
        """Return the possible steps after a restart: kind, call, and worker or switch."""
        return [
            *(("regrouped", self.world.regroup, rank) for rank in sorted(self.world.uninformed)),
            *(("resumed", self.world.resume, rank) for rank in sorted(self.world.resuming)),
        ]

    @precondition(lambda self: self.mortal)
    @rule(rank=choice)
    def die(self, rank):
        rank %= self.workers
        if self.world.may_die(rank):
            STEPS["died"] += 1
            self.world.die(rank)

    @precondition(lambda self: self.mortal)
    @rule(rank=choice, ahead=st.integers(1, 3))
    def fall_behind(self, rank, ahead):
        """Let a worker contribute to the next iteration, die, and rejoin with a replica from before this iteration's
        end.
        """
        rank %= self.workers
        peer = (rank + 1 + ahead % (self.workers - 1)) % self.workers
        self.all_ready()
        self._move_all(but=peer)
        self.ready(rank)
        self._move_all(but=peer)
        self.die(rank)
        if not self.world.may_come_back(rank) or self.world.workers[peer].dead:
            return
        self.world.come_back(rank, peer)
        self.world.bag = [packet for packet in self.world.bag if self.world.worker_of(packet) != rank]
        for other in {*range(self.workers)} - {rank}:
            self._move_all(but=rank)
            self.ready(other)
        self._move_all(but=rank)

    def _move_all(self, but=None):
        """Deliver all packets that are not for this worker."""
        while moving := [packet for packet in self.world.bag if packet.to != but]:
            self.world.bag.remove(moving[0])
            self.world.deliver(moving[0])

    @precondition(lambda self: any(self.world.may_come_back(rank) for rank in range(self.workers)))
    @rule(which=choice, peer=choice)
    def come_back(self, which, peer):
        dead = [rank for rank, worker in enumerate(self.world.workers) if worker.dead]
        live = [rank for rank, worker in enumerate(self.world.workers) if not worker.dead]
        self.world.come_back(dead[which % len(dead)], live[peer % len(live)])

    @invariant()
    def holds(self):
        if hasattr(self, "world"):
            STEPS["steps"] += 1
            self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            STEPS["examples"] += 1
            for kind in self.world.workers:
                statistics = kind.protocol.statistics
                STEPS["stale"] += statistics.stale
                STEPS["refused"] += statistics.refused
                STEPS["pulls"] += statistics.pulls
                STEPS["discarded"] += bool(np.any(kind.thrown))
            STEPS["given up"] += self.world.given_up
            STEPS["replicas taken"] += self.world.replicas_taken
            STEPS["hints"] += self.world.hints
            STEPS["iterations"] += max(worker.complete for worker in self.world.workers)
            self.world.all_come_back()
            self.world.settle(frozenset(self.stalled[self.world.switch.k :]))  # k workers live
            STEPS["gradients"] += self.world.flush()


def test_worker_with_an_old_replica_takes_a_newer_one_when_sums_are_forgotten() -> None:
    """It alone had ended an iteration and contributed to the next. Then the others do so, and the switch loses its
    slots.
    """
    world = Mortal(workers=3, k=3, blocks=2, slots=4, window=2)

    def move(*to: int) -> None:
        while moving := [packet for packet in world.bag if packet.to in to]:
            world.bag.remove(moving[0])
            world.deliver(moving[0])

    for rank in range(3):
        world.ready(rank)
    move(SWITCH, 0)
    world.ready(0)
    world.die(0)
    world.come_back(0, 1)
    assert world.workers[0].protocol.left_behind
    move(SWITCH, 1, 2)
    for rank in (1, 2):
        world.ready(rank)
    move(SWITCH, 1, 2)
    assert not any(result.values for rank in (1, 2) for result in world.workers[rank].protocol.results(1, 1))
    world.bag.clear()
    world.restart_switch()
    for rank in range(3):
        world.regroup(rank)
    for rank in range(3):
        world.resume(rank)
    world.settle()
    assert world.replicas_taken == 1
    assert world.flush()


WANTED = (
    *("gradients", "delivered", "delivered together", "lost", "duplicated", "stale", "refused", "pulls"),
    *("peers answered", "resumed", "discarded", "given up", "hints", "died"),
)
"""Kinds of steps that must happen, or the network was not tried enough."""

ROUND = 10
"""Examples of one seed: those of several seeds differ more."""

MOST = 10
"""Multiple of the examples after which a rare kind of step must have happened."""


def explore(machine, wanted, least):
    """Run a machine with `least` examples or more, until each wanted kind of step has happened."""
    STEPS.clear()
    examples = max(least, settings().max_examples)
    machine.TestCase.settings = settings(max_examples=ROUND)
    for number in range(MOST * examples // ROUND):
        if settings().derandomize:
            seed(number)(machine)
        machine.TestCase("runTest").runTest()
        never = [name for name in wanted if not STEPS[name]]
        if not never and STEPS["examples"] >= examples:
            break
    print(dict(STEPS))
    assert not never


@pytest.mark.slow
def test_protocol_holds_whatever_the_network_does():
    explore(ProtocolMachine, (*WANTED, "slot occupied", "slot reported"), 40)
