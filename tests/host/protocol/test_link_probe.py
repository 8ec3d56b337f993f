"""A worker measures how long its gradient waits in its link: when it asks, and what it learns from the answer."""

from collections.abc import Sequence

import pytest

from kofn_common.wire.packet import WORD_BYTES, Kind
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Instruction, Packed, Send
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.protocol.watched import Watched

SLOTS, WINDOW = 32, 8


class World:
    """Worker 1 of four and a switch that answers it; the caller gives the times."""

    def __init__(self, blocks: int, *, k: int = 4, words: int = 4) -> None:
        self.words = words
        layout = BlockLayout(blocks=blocks, words=words, widest=32)
        self.protocol = Watched(job=1, rank=1, layout=layout, slots=SLOTS, window=WINDOW, rto_s=0.05)
        self.protocol.probe.begin()
        self.rules = SlotModel(workers=4, k=k, slots=SLOTS)
        self.protocol.begin(1, 0.0)

    def contribute(self, blocks: Sequence[int], now: float, part: int = 0) -> list[Send]:
        packed = [(block, Packed(bytes(self.words * WORD_BYTES), 0, 0, WEIGHT_UNIT)) for block in blocks]
        return sends(self.protocol.contribute_all(packed, now=now, part=part, counts=part == 0))

    def wait_s(self, now: float = 0.0) -> float | None:
        wait = self.protocol.probe.take(now)
        return None if wait is None else wait.wait_s

    def switch(self, sent: Sequence[Send], now: float, ranks: Sequence[int] = (1,)) -> None:
        """Deliver these packets to the switch from each of these workers; worker 1 gets its answers at once."""
        for packet in sent:
            for rank in ranks:
                for to, header, values in self.rules.handle(packet.header._replace(worker=rank), packet.values):
                    if to in (None, 1):
                        self.protocol.packet_in(header, values, now)


def sends(instructions: Sequence[Instruction]) -> list[Send]:
    return [each for each in instructions if isinstance(each, Send)]


def probes(sent: Sequence[Send]) -> list[Send]:
    return [packet for packet in sent if packet.header.kind == Kind.PULL]


def test_answer_says_how_long_the_last_packet_waited_whoever_else_is_missing() -> None:
    world = World(blocks=6)
    sent = world.contribute(range(6), 1.0)
    assert [packet.header.kind for packet in sent] == [Kind.CONTRIBUTE] * 6 + [Kind.PULL], (
        "the probe follows all contributions"
    )
    assert world.wait_s() is None
    world.switch(sent, 1.030)
    assert world.wait_s() == pytest.approx(0.030)
    assert world.wait_s() is None, "the wait is reported once"
    assert not world.protocol.over, "the iteration waits for three workers"
    assert world.protocol.statistics.refused == world.protocol.statistics.stale == 0


def test_shortest_time_to_any_answer_is_no_wait() -> None:
    world = World(blocks=6, k=1)
    sent = world.contribute(range(6), 1.0)
    world.switch(sent[:1], 1.002)
    world.switch(sent[1:], 1.030)
    assert world.wait_s() == pytest.approx(0.028)


def test_wait_for_other_workers_does_not_count_and_the_sent_part_stands_for_all() -> None:
    """Only a window of eight blocks of 24 leaves at once, so the whole gradient waits three times as long."""
    world = World(blocks=24)
    sent = world.contribute(range(24), 1.0)
    assert len(sent) == WINDOW + 1
    world.switch(sent, 1.010)
    assert world.wait_s() == pytest.approx(0.030)


def test_gradient_encoded_in_slices_is_probed_once_it_has_left() -> None:
    world = World(blocks=6)
    assert not probes(world.contribute(range(3), 1.0))
    assert len(probes(world.contribute(range(3, 6), 1.1))) == 1


def test_late_gradient_is_timed_although_the_slots_have_moved_on() -> None:
    """Others have closed its blocks, and those of the next iterations in the same slots."""
    world = World(blocks=6, k=2)
    sent = world.contribute(range(6), 1.0)
    world.switch([packet for packet in sent if packet.header.kind == Kind.CONTRIBUTE], 1.0, ranks=(0,))
    later = [packet._replace(header=packet.header._replace(iteration=2)) for packet in sent[:-1]]
    world.rules.handle(later[-1].header._replace(worker=0), later[-1].values)
    world.switch(probes(sent), 1.5)
    assert world.wait_s() == pytest.approx(0.5)
    assert world.protocol.statistics.stale == 0, "the answer to a probe must not count as STALE"


def test_merged_part_is_timed() -> None:
    """The worker's gradients are late and enter the next iteration's sums as another part."""
    world = World(blocks=6, k=2)
    sent = world.contribute(range(6), 1.0, part=1)
    assert len(probes(sent)) == 1
    world.switch(sent, 1.020)
    assert world.wait_s() == pytest.approx(0.020)


def test_probe_leaves_before_late_gradients_which_may_always_wait_for_the_pacer() -> None:
    """It asks about a block of the previous iteration, so the switch answers although no block is open."""
    world = World(blocks=6, k=1)
    world.switch(world.contribute(range(6), 1.0), 1.010)
    world.wait_s()
    world.protocol.begin(2, 1.1)
    sent = world.contribute(range(6), 1.1, part=1)
    (probe,) = probes(sent)
    assert (probe.header.iteration, probe.header.weight) == (1, 2**32 - 1), "the heaviest packet leaves first"
    world.switch([probe], 1.130)
    wait = world.protocol.probe.take(1.2)
    assert wait is not None
    assert wait.before_all
    assert (wait.wait_s, wait.sent_s) == (pytest.approx(0.020), 1.1), "less the shortest time to any answer, 10 ms"


def test_second_probe_waits_for_the_answer_of_the_first_or_for_its_loss() -> None:
    world = World(blocks=6, k=1)
    for iteration, now, asks in [(1, 1.0, True), (2, 1.1, False), (3, 2.1, True)]:
        sent = world.contribute(range(6), now)
        assert bool(probes(sent)) == asks
        world.switch([packet for packet in sent if packet not in probes(sent)], now)
        world.protocol.begin(iteration + 1, now)


def test_unanswered_probe_has_waited_until_now() -> None:
    world = World(blocks=6)
    world.switch(world.contribute(range(6), 1.0), 1.010)
    assert world.wait_s() == pytest.approx(0.010)
    world.protocol.jump(2, 1.1)
    world.contribute(range(6), 1.1)
    assert world.wait_s(1.105) is None, "so far the wait is not longer than the last one"
    assert world.wait_s(1.150) == pytest.approx(0.050)
    assert world.wait_s(1.160) == pytest.approx(0.060)


def test_lost_probe_waits_for_nothing_once_later_packets_are_answered() -> None:
    world = World(blocks=6, k=1)
    sent = world.contribute(range(6), 1.0)
    world.switch(sent[:-1], 1.0)
    world.protocol.begin(2, 1.1)
    sent = world.contribute(range(6), 1.1)
    assert world.wait_s(1.1) is not None
    world.switch(sent[:1], 1.1)
    assert world.wait_s(1.2) is None


def test_packet_that_waits_for_its_turn_in_the_host_has_not_left() -> None:
    world = World(blocks=6)
    sent = world.contribute(range(6), 1.0)
    world.protocol.leaves(sent[-1], 1.020)
    world.switch(sent, 1.050)
    assert world.wait_s() == pytest.approx(0.030)


def test_single_block_and_blocks_without_room_for_the_answer_are_not_probed() -> None:
    assert not probes(World(blocks=1).contribute([0], 1.0))
    assert not probes(World(blocks=6, words=2).contribute(range(6), 1.0)), (
        "the answer to a probe has three words, more than these blocks"
    )


def test_restart_of_the_switch_ends_a_probe() -> None:
    world = World(blocks=6)
    sent = world.contribute(range(6), 1.0)
    world.protocol.regroup(7)
    world.switch(sent, 1.030)
    assert world.wait_s() is None
