"""Known faults: the four of published k-of-n switches, on the slot model, and those found earlier in this worker.

tests/dataplane/test_hazards.py repeats the first four on real switches, packet by packet.
"""

import numpy as np
import pytest

from kofn_common.wire.packet import Flag, Kind, KofnHeader
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import pack, unpack
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import EncodeAgain, Packed, Send
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.protocol.watched import Watched

VALUES = np.random.default_rng(7).integers(-(2**28), 2**28, (4, 64)).astype(np.int32)


class Bench:
    """One slot of a job of four workers."""

    def __init__(self, k: int) -> None:
        self.switch = SlotModel(workers=4, k=k, slots=1)

    def contribute(self, worker: int, iteration: int) -> tuple[list[Kind], int, np.ndarray]:
        """Return the kinds of the answers, and the last answer's members and values."""
        header = KofnHeader(job=1, worker=worker, iteration=iteration, scale=7)
        answers = self.switch.handle(header, pack(VALUES[worker], 32))
        _, last, values = answers[-1] if answers else (0, KofnHeader(), b"")
        return [Kind(answer.kind) for _, answer, _ in answers], last.members, unpack(values, 32)


def test_late_packet_does_not_reopen_a_finished_slot() -> None:
    bench = Bench(k=2)
    bench.contribute(0, 1)
    assert bench.contribute(1, 1)[0] == [Kind.RESULT] * 4
    for late in (2, 3, 2):
        kinds, members, values = bench.contribute(late, 1)
        assert (kinds, members) == ([Kind.LATE], 0b0011)
        assert np.array_equal(values, VALUES[0] + VALUES[1])


def test_skipped_workers_bit_does_not_reach_the_next_block() -> None:
    bench = Bench(k=2)
    bench.contribute(0, 1)
    bench.contribute(1, 1)
    bench.contribute(2, 1)  # late: its bit must not stay
    bench.contribute(2, 2)  # not a duplicate
    kinds, members, values = bench.contribute(0, 2)  # not a duplicate either, although worker 0 was a member before
    assert (kinds, members) == ([Kind.RESULT] * 4, 0b0101)
    assert np.array_equal(values, VALUES[2] + VALUES[0])


def test_late_packet_does_not_wipe_an_open_sum() -> None:
    bench = Bench(k=3)
    bench.contribute(0, 2)
    assert bench.contribute(3, 1)[0] == [Kind.STALE]
    bench.contribute(1, 2)
    assert bench.contribute(3, 1)[0] == [Kind.STALE]
    kinds, members, values = bench.contribute(2, 2)
    assert (kinds, members) == ([Kind.RESULT] * 4, 0b0111)
    assert np.array_equal(values, VALUES[0] + VALUES[1] + VALUES[2])


@pytest.mark.parametrize("behind", [2, 4, 256, 65536])
def test_worker_several_rounds_behind_is_not_taken_for_a_current_one(behind: int) -> None:
    """One-bit versions repeat after two rounds; block ids never repeat."""
    bench = Bench(k=2)
    bench.contribute(0, 1 + behind)
    assert bench.contribute(3, 1)[0] == [Kind.STALE]
    kinds, members, values = bench.contribute(1, 1 + behind)
    assert (kinds, members) == ([Kind.RESULT] * 4, 0b0011)
    assert np.array_equal(values, VALUES[0] + VALUES[1])
    assert bench.contribute(3, 1)[0] == [Kind.STALE]


def worker() -> Watched:
    """Return a worker with block 0 of iteration 1 in flight at scale 7."""
    shape = BlockLayout(blocks=1, words=1, widest=32)
    protocol = Watched(job=1, rank=0, layout=shape, slots=8, window=2, rto_s=0.05)
    protocol.begin(1, 0.0)
    protocol.contribute(0, Packed(bytes(256), 7, 0, WEIGHT_UNIT), now=0.0)
    return protocol


FORMAT_MISMATCH = KofnHeader(kind=Kind.FORMAT_MISMATCH, job=1, words=1, iteration=1, scale=9, members=0b10, k=2)


def test_repeated_refusal_is_ignored() -> None:
    """The worker must not take it for a disagreement about the number of words."""
    protocol = worker()
    wanted = EncodeAgain(block=0, part=0, counts=True, scale=9, lanes=0)
    assert protocol.packet_in(FORMAT_MISMATCH, bytes(256), 0.01) == [wanted]
    [again] = protocol.contribute(0, Packed(bytes(256), 9, 0, WEIGHT_UNIT), now=0.01)
    assert protocol.packet_in(FORMAT_MISMATCH, bytes(256), 0.02) == []
    assert protocol.deadline is not None
    assert isinstance(again, Send)
    sent_again = again._replace(header=again.header._replace(flags=Flag.AGAIN))
    assert protocol.timer(protocol.deadline) == [sent_again], "the request is still in flight"


def test_refusal_of_a_block_that_others_have_finished_leads_to_a_pull() -> None:
    """Without the PULL nothing is in flight and the block never ends."""
    protocol = worker()
    protocol.packet_in(FORMAT_MISMATCH._replace(kind=Kind.RESULT, iteration=2), bytes(256), 0.01)
    [pull] = protocol.packet_in(FORMAT_MISMATCH, bytes(256), 0.02)
    assert (pull.header.kind, pull.header.iteration, pull.header.block) == (Kind.PULL, 1, 0)
    assert protocol.packet_in(FORMAT_MISMATCH, bytes(256), 0.03) == []
    assert protocol.deadline is not None


def test_switch_flags_another_number_of_words() -> None:
    """The scale does not tell: a PULL's scale means nothing."""
    protocol = worker()
    with pytest.raises(ProtocolError, match="another number of words"):
        protocol.packet_in(FORMAT_MISMATCH._replace(flags=Flag.OTHER_WORDS), bytes(256), 0.01)
