"""Votes counted by a switch equal NumPy's counts, for every number of workers, plane, count and tie."""

from collections.abc import Iterator

import numpy as np
import pytest

from kofn_common.wire.packet import WORD_BYTES, Kind, KofnHeader, Lanes, bit_of
from kofn_common.wire.sizes import VOTE_WORDS
from kofn_switch.identity import BMV2
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import GENERATION, Answer, frame, parse

pytestmark = pytest.mark.root

WORKERS_MAX = 64
EDGES = [1, 2, 3, 4, 7, 8, 16, 32, 63, 64]
"""The smallest and the largest number of workers for each number of planes."""

GROWS = 2
"""Words by which BMv2 lets a packet grow."""


def votes_of(workers: int, words: int) -> np.ndarray:
    """Return all workers' votes, shape (workers, elements); every possible count occurs, at random places."""
    random, elements = np.random.default_rng(workers), words * WORD_BYTES * 8
    counts = random.permutation(np.arange(elements) % (workers + 1))
    order = random.permuted(np.tile(np.arange(workers), (elements, 1)), axis=1).T
    return order < counts


def sent(bits: np.ndarray, worker: int, block: int, words: int) -> tuple[int, bytes]:
    """Return port and frame of a worker's votes in a packet of `words` words, filled up with noise."""
    base = KofnHeader(job=1, worker=worker, lanes=Lanes.VOTES, words=words, block=block, slot=block)
    body = np.packbits(bits).tobytes().ljust(words * WORD_BYTES, b"\x5a")
    return worker % HOSTS + 1, frame(worker % HOSTS + 1, base._replace(generation=GENERATION), body)


def shapes(plane: DataPlane, workers: int) -> Iterator[tuple[int, int]]:
    """Yield (words of votes, words) of packets that the switch under test can answer."""
    planes = workers.bit_length()
    yield VOTE_WORDS, max(VOTE_WORDS, VOTE_WORDS * planes - GROWS)
    for words in range(1, VOTE_WORDS + 1 if workers <= 8 else 1):
        if plane.switch.command[0] != BMV2 or words * (planes - 1) <= GROWS:
            yield words, words


def closed(plane: DataPlane, votes: np.ndarray, block: int, words: int) -> Answer:
    """Send all workers' votes and return the answer to the last worker's packet."""
    for worker, bits in enumerate(votes):
        received = plane.lab.exchange(*sent(bits, worker, block, words))
        assert bool(received) == (worker == len(votes) - 1), "only the last contribution closes the block"
    answers = [parse(one) for frames in received.values() for one in frames]
    assert len(answers) == HOSTS
    assert {answer.values.tobytes() for answer in answers} == {answers[0].values.tobytes()}
    return answers[0]


def check(plane: DataPlane, workers: int, blocks: Iterator[int]) -> None:
    plane.put_job(k=workers, generation=GENERATION, slots=4096, workers=workers)
    planes = workers.bit_length()
    for vote_words, words in shapes(plane, workers):
        votes = votes_of(workers, vote_words)
        answer = closed(plane, votes, next(blocks), words)
        assert (answer.kind, answer.header.count, answer.header.lanes) == (Kind.RESULT, workers, Lanes.VOTES)
        assert answer.header.members == sum(bit_of(worker, 0) for worker in range(workers))
        found = np.unpackbits(np.frombuffer(answer.values.astype(">i4").tobytes(), np.uint8)).astype(np.int64)
        assert answer.header.words == max(words, planes * vote_words)
        counted = found[: planes * votes.shape[1]].reshape(planes, -1) << np.arange(planes)[:, None]
        assert np.array_equal(counted.sum(axis=0), votes.sum(axis=0))


@pytest.mark.parametrize("workers", EDGES)
def test_votes_are_counted_at_the_bounds_of_each_number_of_planes(plane: DataPlane, workers: int) -> None:
    plane.install(k=HOSTS)
    plane.crowd(WORKERS_MAX)
    check(plane, workers, iter(range(4096)))


@pytest.mark.long
def test_votes_of_every_number_of_workers_are_counted(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    plane.crowd(WORKERS_MAX)
    blocks = iter(range(4096))
    for workers in range(1, WORKERS_MAX + 1):
        check(plane, workers, blocks)
