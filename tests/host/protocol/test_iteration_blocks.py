"""The blocks and lanes of an iteration, and what follows when a slot sums in other lanes."""

from typing import Any

import pytest

from kofn_common.wire.packet import Flag, Kind, KofnHeader
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.errors import ProtocolError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Complete, Deliver, EncodeAgain, Instruction, Packed, Send
from tests.host.protocol.specification.both import Both as Protocol


def worker(*, blocks: int = 2, slots: int = 8, window: int = 2, summary_words: int = 0) -> Protocol:
    """Return a worker whose blocks have 2 words in 16-bit lanes, the widest, and 1 in 8-bit lanes; other lanes are
    impossible.
    """
    shape = BlockLayout(blocks=blocks, words=2, widest=16, summary_words=summary_words)
    return Protocol(job=1, rank=0, layout=shape, slots=slots, window=window, rto_s=0.05)


def begun(iteration: int = 1, **options: Any) -> Protocol:
    """Return a worker in an iteration with 16-bit lanes planned."""
    protocol = worker(**options)
    protocol.begin(iteration, 0.0, lanes=1)
    return protocol


def answer(kind: Kind, *, iteration: int = 1, words: int = 2, lanes: int = 1, **fields: Any) -> KofnHeader:
    known = {"scale": 3, "members": 2, "k": 1}
    return KofnHeader(kind=kind, job=1, iteration=iteration, words=words, lanes=lanes, **(known | fields))


def take(protocol: Protocol, header: KofnHeader, now: float = 0.0) -> list[Instruction]:
    return protocol.packet_in(header, bytes(256 * header.words), now)


def contribute(protocol: Protocol, block: int, lanes: int = 1, scale: int = 3, **says: Any) -> list[KofnHeader]:
    """Contribute to a block and return the headers of the packets sent."""
    packed = Packed(bytes(256 * protocol.layout.words_of(block, lanes)), scale, lanes, WEIGHT_UNIT)
    return headers(protocol.contribute(block, packed, now=0.0, **says))


def again_in(lanes: int, scale: int) -> EncodeAgain:
    """Return the instruction that follows when the contribution to block 0 is refused."""
    return EncodeAgain(block=0, part=0, counts=True, scale=scale, lanes=lanes)


def headers(instructions: list[Instruction]) -> list[KofnHeader]:
    return [each.header for each in instructions if isinstance(each, Send)]


WIDER = answer(Kind.FORMAT_MISMATCH, flags=Flag.OTHER_WORDS, words=2, lanes=2)
"""The answer to 2 words of 16-bit lanes: the slot sums 8-bit ones."""
NARROWER = answer(Kind.FORMAT_MISMATCH, flags=Flag.OTHER_WORDS, words=1, lanes=1)
"""The answer to 1 word of 8-bit lanes: the slot sums 16-bit ones."""


# -- selections


def test_iteration_has_the_given_blocks() -> None:
    protocol = worker(blocks=5)
    assert protocol.begin(1, 0.0, [1, 4], lanes=1) == []
    assert (protocol.blocks, protocol.missing) == ((1, 4), [1, 4])
    assert contribute(protocol, 2) == [], "the block is not in this iteration's plan"
    assert not any(isinstance(each, Complete) for each in take(protocol, answer(Kind.RESULT, block=4)))
    assert take(protocol, answer(Kind.RESULT, block=1))[1:] == [Complete(iteration=1)]
    protocol.begin(2, 0.0, lanes=1)
    assert protocol.missing == [0, 1, 2, 3, 4]


def test_window_and_slots_follow_places_not_numbers() -> None:
    """With blocks 0 and 8 of 8 slots, slots by number would let the second wipe the open sum of the first."""
    protocol = worker(blocks=17, slots=8, window=2)
    protocol.begin(3, 0.0, [0, 8, 16], lanes=1)
    sent = [header for block in (16, 8, 0) for header in contribute(protocol, block)]
    assert [(header.block, header.slot) for header in sent] == [(8, 52 % 8), (0, 51 % 8)]
    [last] = headers(take(protocol, answer(Kind.RESULT, iteration=3, block=0)))
    assert (last.block, last.slot) == (16, 53 % 8)


def test_early_results_wait_for_their_iteration_and_its_blocks() -> None:
    protocol = begun(blocks=3)
    early = answer(Kind.RESULT, iteration=2, block=2)
    assert [header.kind for header in headers(take(protocol, early))] == [Kind.PULL, Kind.PULL]
    for block in range(3):
        take(protocol, answer(Kind.LATE, block=block))
    [deliver, done] = protocol.begin(2, 0.0, [2], lanes=1)
    assert isinstance(deliver, Deliver)
    assert (deliver.results[0].id.block, done) == (2, Complete(iteration=2))


def test_result_of_an_unsent_block_ends_the_worker() -> None:
    """Another worker has another plan; going on would make the replicas differ."""
    protocol = worker(blocks=3)
    protocol.begin(1, 0.0, [0, 2], lanes=1)
    with pytest.raises(ProtocolError, match=r"blocks \[1\] of iteration 1 were summed.*plans have parted"):
        take(protocol, answer(Kind.RESULT, block=1))
    take(protocol, answer(Kind.RESULT, iteration=2, block=1))
    for block in (0, 2):
        take(protocol, answer(Kind.RESULT, block=block))
    with pytest.raises(ProtocolError, match=r"blocks \[1\] of iteration 2"):
        protocol.begin(2, 0.0, [0, 2], lanes=1)


@pytest.mark.parametrize("blocks", [[], [1, 0], [0, 0], [0, 3], [-1, 0]])
def test_impossible_blocks_of_an_iteration_are_refused(blocks: list[int]) -> None:
    with pytest.raises(ProtocolError, match=r"blocks of iteration 1 must be one or more of 0 to 2, ascending"):
        worker(blocks=3).begin(1, 0.0, blocks, lanes=1)


def test_impossible_lanes_of_blocks_are_refused() -> None:
    protocol = worker()
    with pytest.raises(ProtocolError, match="cannot be sent in lanes of code 0"):
        protocol.begin(1, 0.0)
    protocol.begin(1, 0.0, lanes=2)
    with pytest.raises(ProtocolError, match="cannot be sent in lanes of code 3"):
        protocol.contribute(0, Packed(b"", 0, 3, WEIGHT_UNIT), now=0.0)


# -- slots that sum in other lanes


def test_block_refused_for_its_lanes_is_encoded_again() -> None:
    protocol = begun()
    contribute(protocol, 0)
    assert take(protocol, WIDER) == [again_in(2, scale=3)]
    assert take(protocol, WIDER) == [], "no contribution of the block is in flight"
    [again] = contribute(protocol, 0, lanes=2)
    assert (again.lanes, again.words) == (2, 1)
    assert take(protocol, WIDER) == [], "a repeated answer to the first attempt is ignored"
    assert headers(protocol.timer(1.0)) == [again._replace(flags=again.flags | Flag.AGAIN)]


def test_refusal_at_another_scale_is_not_taken_for_other_words() -> None:
    """The flags are the contribution's hint, 3, which includes the bit of OTHER_WORDS."""
    protocol = begun()
    [sent] = contribute(protocol, 0, lanes=2)
    assert sent.flags == 3
    assert take(protocol, sent._replace(kind=Kind.FORMAT_MISMATCH, scale=5)) == [again_in(2, scale=5)]


def test_pull_uses_the_planned_lanes_and_then_the_slots() -> None:
    protocol = begun(blocks=1)
    [pull] = headers(take(protocol, answer(Kind.RESULT, iteration=2, lanes=2, words=1)))
    assert (pull.kind, pull.lanes, pull.words) == (Kind.PULL, 1, 2)
    [again] = headers(take(protocol, WIDER))
    assert (again.kind, again.lanes, again.words) == (Kind.PULL, 2, 1)
    assert take(protocol, WIDER) == []
    assert take(protocol, answer(Kind.LATE, lanes=2, words=1))[1:] == [Complete(iteration=1)]


def test_refused_and_finished_block_is_pulled_in_the_slots_lanes() -> None:
    """The refusal may arrive after the others have gone on. After a regroup the slot is another."""
    protocol = begun(blocks=1)
    contribute(protocol, 0)
    take(protocol, answer(Kind.RESULT, iteration=2))
    [pull] = headers(take(protocol, WIDER))
    assert (pull.kind, pull.lanes, pull.words) == (Kind.PULL, 2, 1)
    protocol.regroup(9)
    [pull] = headers(protocol.resume(1.0))
    assert (pull.kind, pull.lanes, pull.words) == (Kind.PULL, 1, 2)


@pytest.mark.parametrize(
    "said",
    [
        WIDER._replace(lanes=1),  # 2 words of 16-bit lanes, the same number as the slot's
        NARROWER._replace(lanes=2),
        WIDER._replace(lanes=0),  # wider than the job's widest lanes
        WIDER._replace(lanes=2, flags=0),  # 8-bit lanes with as many words as 16-bit ones
        answer(Kind.RESULT, words=1),
        answer(Kind.LATE, words=3),
    ],
)
def test_other_words_in_the_same_lanes_are_another_configuration(said: KofnHeader) -> None:
    protocol = begun()
    contribute(protocol, 0, lanes=1)
    with pytest.raises(ProtocolError, match="with another number of words than by"):
        take(protocol, said)


def test_summary_block_has_lanes_of_its_own() -> None:
    protocol = begun(blocks=1, summary_words=3)
    pulls = headers(take(protocol, answer(Kind.RESULT, iteration=2)))
    assert [(pull.block, pull.lanes, pull.words) for pull in pulls] == [(0, 1, 2), (1, 0, 3)]
    take(protocol, answer(Kind.LATE, block=0))
    assert take(protocol, answer(Kind.LATE, block=1, lanes=0, words=3))[1:] == [Complete(iteration=1)]


# -- hints


def test_worker_with_narrower_lanes_than_planned_gives_a_hint() -> None:
    protocol = begun(blocks=5, window=4)
    assert [header.flags for header in contribute(protocol, 0)] == [0]
    assert [header.flags for header in contribute(protocol, 1, lanes=2)] == [3]
    assert [header.flags for header in contribute(protocol, 2, lanes=1, uses=2)] == [3], (
        "lanes that the slot required give a hint, too"
    )
    assert [header.flags for header in contribute(protocol, 3, lanes=2, uses=1)] == [0]
    protocol.regroup(9)
    assert [header.flags for header in headers(protocol.resume(0.0))] == [0, 3, 3, 0]
    protocol = worker()
    protocol.begin(1, 0.0, lanes=2)
    assert [header.flags for header in contribute(protocol, 0, lanes=1)] == [0], (
        "lanes that are wider than planned give no hint"
    )


@pytest.mark.parametrize(
    ("kind", "flags", "hint"),
    [(Kind.RESULT, 0, None), (Kind.RESULT, 3, 2), (Kind.RESULT, 9, None), (Kind.LATE, 3, None)],
)
def test_hint_of_the_worker_that_closed_a_block_is_handed_on(kind: Kind, flags: int, hint: int | None) -> None:
    """A LATE answer has the flags of the worker that asked for it."""
    protocol = begun()
    [deliver] = take(protocol, answer(kind, flags=flags))
    assert isinstance(deliver, Deliver)
    assert deliver.hints.tolist() == [-1 if hint is None else hint]
