"""A tree of switches as a state machine: each may restart, and the network does anything to packets."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.host.protocol.test_protocol_machine import STEPS, ProtocolMachine, choice, explore
from tests.host.tree import Tree


class TreeMachine(ProtocolMachine):
    """The same machine with two or three racks of one to three workers."""

    world: Tree

    @initialize(
        racks=st.integers(2, 3),
        each=st.integers(1, 3),
        blocks=st.integers(1, 6),
        slots=st.sampled_from([2, 4, 8]),
        k=choice,
        window=choice,
        stalled=st.permutations(range(6)),
        scales=st.lists(st.sampled_from([0, 0, 3]), min_size=6, max_size=6),
        lanes=st.just([]) | st.lists(st.sampled_from([0, 0, 1, 3]), min_size=6, max_size=6),
        every=st.sampled_from([1, 1, 2, 3]),
        late=st.sampled_from(["stash", "abort", "drop"]),
        mortal=st.integers(0, 3).map(lambda one: not one),
    )
    def begin(self, racks, each, blocks, slots, k, window, stalled, scales, lanes, every, late, mortal):
        each = min(each, 6 // racks)  # lanes of 4 bits have room for 7 workers
        self.workers = workers = racks * each
        self.stalled = [rank for rank in stalled if rank < workers]
        self.mortal, k, late = mortal, *((workers - 1, "stash") if mortal else (k, late))
        self.world = Tree(
            racks=racks,
            workers=workers,
            k=1 + k % workers,
            blocks=blocks,
            slots=slots,
            window=2 ** (window % (slots.bit_length() - 1)),
            scales=scales,
            lanes=lanes,
            every=every,
            rule=late,
        )

    @rule(rack=choice, seldom=st.integers(0, 3))
    def restart_leaf(self, rack, seldom):
        if not seldom:
            STEPS["leaf restarted"] += 1
            self.world.restart_leaf(rack % self.world.racks)

    def recoveries(self):
        admitting = [("admitted", self.world.admit, switch) for switch in sorted(self.world.unadmitted)]
        return super().recoveries() + admitting


WANTED = (
    *("gradients", "delivered", "delivered together", "lost", "duplicated", "stale", "refused", "pulls"),
    *("peers answered", "resumed", "discarded", "given up", "died", "leaf restarted", "switch restarted", "admitted"),
)
"""Kinds of steps that must happen."""


@pytest.mark.parametrize("each", [1, 2])
def test_restarted_leaf_follows_workers_that_are_far_ahead_of_an_old_contribution(each):
    """The old contribution opens the leaf's slot at an iteration that is more than all slots behind."""
    machine = TreeMachine()
    zeros = [0] * 6
    machine.begin(2, each, 1, 2, 0, 0, list(range(6)), zeros, [], 1, "stash", False)
    machine.all_ready()
    machine.run_ahead(2**each - 1, 3)
    machine.restart_leaf(0, 0)
    machine.teardown()


@pytest.mark.slow
def test_tree_holds_whatever_the_network_does():
    explore(TreeMachine, WANTED, 60)
