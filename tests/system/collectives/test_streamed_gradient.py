"""Gradients in pieces, over every kind of communicator, and the additional abilities of elastic ones."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.wire.packet import PORT
from kofn_host.agent.missed_results import LAST_ITERATION
from kofn_host.arrays import Floats
from kofn_host.collectives import InNetwork, StreamedGradient, WorkOutcome
from kofn_host.compression.encoder import SLICE
from kofn_host.compression.pieces import Pieces
from kofn_host.errors import CollectiveError, GradientError
from tests.host.teams import Summed
from tests.system.collectives.crews import crew, threads
from tests.waiting import until

LIMIT_S = 60.0
SHORT_S = 1.0
ELEMENTS = 3800
"""The gradient has fewer blocks than a window."""

EDGES = (0, 7, 1024, 1024 + 256, 3000, ELEMENTS)
"""Borders of the pieces, some of which are shorter than a block."""


@pytest.fixture(scope="module")
def switch() -> Summed:
    return Summed("in-network", PORT)


def given(rank: int, number: int = 0) -> Floats:
    return np.asarray(np.random.default_rng([rank, number]).integers(-60, 61, ELEMENTS), np.float32)


def mean(workers: int, number: int = 0) -> Floats:
    exact: Floats = np.mean([given(rank, number) for rank in range(workers)], axis=0, dtype=np.float64)
    return exact.astype(np.float32)


def pieces(edges: tuple[int, ...] = EDGES) -> list[tuple[int, int]]:
    return list(pairwise(edges))


def put_all(gradient: StreamedGradient, values: Floats, ranges: list[tuple[int, int]]) -> None:
    for begin, end in ranges:
        gradient.put(begin, values[begin:end])


def by_pieces(communicator: Any) -> None:
    """Put the pieces from last to first, wait for each mean before the next piece, with two gradients at a time."""
    gradients = [communicator.begin(ELEMENTS, name="layers") for _ in range(2)]
    for number, gradient in enumerate(gradients):
        values = given(communicator.rank, number)
        for begin, end in reversed(pieces()):
            gradient.put(begin, values[begin:end])
            assert np.array_equal(gradient.wait(begin, end, LIMIT_S), mean(communicator.workers, number)[begin:end])
        outcome = gradient.result(LIMIT_S)
        assert np.array_equal(outcome.value, mean(communicator.workers, number))
        assert outcome.count == communicator.workers
        assert outcome.sent_bytes >= 2 * 4 * ELEMENTS // 3


def what_is_wrong(communicator: Any) -> list[str]:
    gradient, errors = communicator.begin(ELEMENTS), []
    bad = np.zeros(10, np.float32)
    bad[3] = np.inf
    gradient.put(10, np.zeros(10, np.float32))
    wrong: list[tuple[int, Any]] = [
        (15, np.zeros(10, np.float32)),
        (-1, np.zeros(10, np.float32)),
        (ELEMENTS - 1, np.zeros(2, np.float32)),
        (20, np.zeros(0, np.float32)),
        (20, np.zeros(10)),
        (20, [1.0]),
        (20, bad),
    ]
    for begin, values in wrong:
        with pytest.raises(CollectiveError) as raised:
            gradient.put(begin, values)
        errors.append(str(raised.value))
    gradient.put(0, np.zeros(10, np.float32))
    gradient.put(20, np.zeros(ELEMENTS - 20, np.float32))
    assert not gradient.result(LIMIT_S).value.any()
    with pytest.raises(CollectiveError, match="were put before"):
        gradient.put(0, np.zeros(1, np.float32))
    return errors


@pytest.mark.parametrize("kind", ["ring", "gloo", "mpi"])
def test_pieces_are_reduced_by_any_kind(kind: str) -> None:
    with crew(kind, 3) as team:
        team.run(by_pieces)
        assert len({tuple(errors) for errors in team.run(what_is_wrong)}) == 1


def test_wait_for_a_missing_piece_times_out_and_other_pieces_arrive() -> None:
    with crew("ring", 1) as team:
        (gradient,) = team.run(lambda communicator: communicator.begin(ELEMENTS))
        gradient.put(0, given(0)[:100])
        with pytest.raises(TimeoutError, match="elements 100 to 3800 are missing"):
            gradient.wait(0, 101, 0.01)
        assert np.array_equal(gradient.wait(0, 100, LIMIT_S), given(0)[:100])


# -- through the switch


@pytest.fixture
def team(switch: Summed) -> Iterator[Any]:
    with switch.team(3, elements=ELEMENTS + 100, words=1) as found:
        yield found


def test_elastic_pieces_differ_between_workers(team: Any) -> None:
    """They come in any order. The means of the first pieces arrive before the last pieces are put."""

    def work(worker: InNetwork) -> WorkOutcome[Floats]:
        gradient, values = worker.begin(ELEMENTS, elastic=True), given(worker.rank)
        edges = (0, 64, 333 * (1 + worker.rank), 3200, ELEMENTS)
        put_all(gradient, values, pieces(edges)[-1::-2])
        gradient.put(0, values[:64])
        assert np.array_equal(gradient.wait(0, 64, LIMIT_S), mean(3)[:64])
        assert np.array_equal(gradient.wait(3776, ELEMENTS, LIMIT_S), mean(3)[3776:])
        with pytest.raises(TimeoutError, match=r"elements 3100 to 3201 is incomplete after 0\.05 s"):
            gradient.wait(3100, 3201, 0.05)
        put_all(gradient, values, pieces(edges)[2:3])
        return gradient.result(LIMIT_S)

    for outcome in team.all(work):
        assert np.array_equal(outcome.value, mean(3))
        assert (outcome.count, list(outcome.skipped)) == (3, [])


def test_next_gradient_begins_while_the_first_is_open(team: Any) -> None:
    def work(worker: InNetwork) -> list[Floats]:
        gradients = [worker.begin(ELEMENTS, elastic=True) for _ in range(3)]
        for piece in pieces():
            for number, gradient in enumerate(gradients):
                put_all(gradient, given(worker.rank, number), [piece])
        return [gradient.result(LIMIT_S).value for gradient in gradients]

    for values in team.all(work):
        assert [np.array_equal(value, mean(3, number)) for number, value in enumerate(values)] == [True] * 3


def test_pieces_come_from_many_threads_beside_a_whole_gradient(team: Any) -> None:
    def work(worker: InNetwork) -> Floats:
        values = given(worker.rank)
        if worker.rank == 0:
            return worker.all_reduce(values, op="mean", elastic=True).result(LIMIT_S)
        gradient = worker.begin(ELEMENTS, elastic=True)
        threads = [threading.Thread(target=put_all, args=(gradient, values, [piece])) for piece in pieces()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return gradient.wait(0, ELEMENTS, LIMIT_S)

    for value in team.all(work):
        assert np.array_equal(value, mean(3))


def test_invalid_pieces_are_refused(team: Any) -> None:
    errors = team.all(what_is_wrong_elastic)
    assert errors == [errors[0]] * 3
    for error, words in zip(
        errors[0],
        [
            "each element must be put once: some of 15 to 25 were put before",
            f"a piece must have 0 <= begin < end <= {ELEMENTS + 100}, got -1 to 9",
            "were put before",
            "got 20 to 20",
            "a piece of a gradient must be a NumPy array of float32, got of float64",
            "a piece of a gradient must be a NumPy array of float32, got a list",
            "gradient element 23 must be finite and at most 2**20 in magnitude, got inf",
        ],
        strict=True,
    ):
        assert words in error


def what_is_wrong_elastic(worker: InNetwork) -> list[str]:
    begin = worker.begin
    worker.begin = lambda elements: begin(elements, elastic=True)  # type: ignore[method-assign, assignment]
    return what_is_wrong(worker)


@pytest.mark.slow
def test_worker_is_idle_while_it_waits_for_a_piece(team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = team.communicators[0].agent
    gradient = team.communicators[0].begin(ELEMENTS, elastic=True)
    gradient.put(0, given(0)[:1000])
    time.sleep(0.2)
    fed, gradient_feed, feed = list[float](), agent._exchanges.gradient, agent._exchanges.gradient._more
    monkeypatch.setattr(gradient_feed, "_more", lambda: (fed.append(time.monotonic()), feed()))
    time.sleep(0.3)
    assert len(fed) < 10
    gradient.put(1000, given(0)[1000:])
    until(lambda: fed)


def test_gradient_of_too_many_elements_is_refused(team: Any) -> None:
    with pytest.raises(CollectiveError, match="must have at most 3,900 elements in this job, got 3,901"):
        team.communicators[0].begin(ELEMENTS + 101, elastic=True)
    with pytest.raises(CollectiveError, match="elements must be a whole number from 1 on, got 0"):
        team.communicators[0].begin(0, elastic=True)


@pytest.mark.slow
def test_missing_piece_ends_the_call(switch: Summed) -> None:
    with switch.team(1, elements=ELEMENTS, timeout_s=SHORT_S) as team:
        gradient = team.communicators[0].begin(ELEMENTS, elastic=True)
        gradient.put(0, given(0)[:10])
        with pytest.raises(CollectiveError, match="no piece was put in 1 s: elements 10 to 3800 are missing"):
            gradient.result(LIMIT_S)
        with pytest.raises(CollectiveError, match="no piece was put in 1 s"):
            gradient.wait(10, 20, LIMIT_S)
        with pytest.raises(CollectiveError, match="no piece was put in 1 s"):
            gradient.put(10, given(0)[:10])


@pytest.mark.slow
def test_close_ends_waits_for_a_piece(team: Any) -> None:
    worker = team.communicators[0]
    gradient = worker.begin(ELEMENTS, elastic=True)
    gradient.put(0, given(0)[:10])
    closing = threading.Timer(0.1, worker.close)
    closing.start()
    with pytest.raises(CollectiveError, match="worker 0 has closed its communicator"):
        gradient.wait(0, 10, LIMIT_S)
    closing.join()


def late(worker: InNetwork, together: threading.Barrier) -> list[Floats]:
    """Return the means of two iterations; worker 2 begins after the others have finished both."""
    gradient = worker.begin(ELEMENTS, elastic=True)
    if worker.rank == 2:
        gradient.put(0, given(2)[:1000])
        until(lambda: worker.agent._exchanges.gradient._stream is not None)  # worker 2 has begun the call
        together.wait(LIMIT_S)  # the others begin
        together.wait(LIMIT_S)
        results = 2 * worker.agent.protocol.layout.total
        until(lambda: len(list(worker.agent.held(0, LAST_ITERATION))) == results)
        gradient.put(1000, given(2)[1000:])
        outcome = gradient.result(LIMIT_S)
        return [outcome.value, *outcome.skipped]
    together.wait(LIMIT_S)
    put_all(gradient, given(worker.rank), pieces())
    found = [gradient.result(LIMIT_S).value]
    found.append(worker.all_reduce(given(worker.rank, 1), op="mean", elastic=True).result(LIMIT_S))
    together.wait(LIMIT_S)
    return found


@pytest.mark.parametrize("codec", ["int32", "int8"])
def test_late_worker_gets_all_means_and_loses_no_gradient(switch: Summed, codec: Any) -> None:
    together = threading.Barrier(3)
    with switch.team(3, k=2, elements=ELEMENTS, words=1, compress=CompressSection(codec=codec)) as team:
        heard = team.all(lambda worker: late(worker, together))
        account = team.communicators[2].agent.account()
    for number in range(2):
        assert all(np.array_equal(means[number], heard[0][number]) for means in heard)
    assert account.entered == 1
    assert account.entered == account.summed + account.waiting + account.discarded


# -- pieces


def test_whole_blocks_leave_with_the_urgent_ones_first() -> None:
    pieces = Pieces(np.zeros(100, np.float32), 16)
    blocks = np.arange(7)
    pieces.put(16, np.ones(24, np.float32))
    assert pieces.choose(blocks, 9).tolist() == [1]
    pieces.put(90, np.ones(10, np.float32))
    pieces.put(40, np.ones(50, np.float32))
    assert pieces.choose(blocks, 9).tolist() == [1, 2, 3, 4, 5, 6]
    pieces.prioritise(64, 90, 2)
    pieces.prioritise(99, 100, 3)
    assert pieces.choose(blocks, 1).tolist() == [6]
    assert pieces.choose(blocks, 3).tolist() == [4, 5, 6]
    assert pieces.choose(np.array([1, 3, 5]), 2).tolist() == [0, 2]
    assert (pieces.whole, pieces.described) == (False, "elements 0 to 16 are missing")
    pieces.put(0, np.ones(16, np.float32))
    assert pieces.whole
    assert pieces.values.all()


def test_refused_piece_changes_nothing() -> None:
    pieces = Pieces(np.zeros(100, np.float32), 16)
    pieces.put(0, np.ones(50, np.float32))
    for begin in (49, 20, 0):
        with pytest.raises(GradientError, match="put before"):
            pieces.put(begin, np.full(20, 5, np.float32))
    assert pieces.described == "elements 50 to 100 are missing"
    assert pieces.values.max() == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda gradient: gradient.put("1", np.ones(2, np.float32)),
            "begin must be a whole number of 64 bits, got '1'",
        ),
        (
            lambda gradient: gradient.put(1.0, np.ones(2, np.float32)),
            "begin must be a whole number of 64 bits, got 1.0",
        ),
        (
            lambda gradient: gradient.put(True, np.ones(2, np.float32)),
            "begin must be a whole number of 64 bits, got True",
        ),
        (lambda gradient: gradient.priority(0, 5, "high"), "level must be a whole number of 64 bits, got 'high'"),
        (lambda gradient: gradient.priority(0, 5, 2**63), f"level must be a whole number of 64 bits, got {2**63}"),
        (lambda gradient: gradient.priority(0, None, 1), "end must be a whole number of 64 bits, got None"),
        (lambda gradient: gradient.wait("0", 5), "begin must be a whole number of 64 bits, got '0'"),
    ],
)
def test_arguments_that_are_no_integers_are_refused(call: Callable[[Any], object], words: str) -> None:
    with threads("ring", 1) as crew, pytest.raises(CollectiveError, match=words):
        call(crew.communicators[0].begin(10))


@pytest.mark.slow
def test_last_elements_may_come_first_in_more_blocks_than_a_window(switch: Summed) -> None:
    """Blocks that cannot leave yet do not block those before them."""
    elements = 4 * SLICE
    values = np.random.default_rng(1).normal(size=elements).astype(np.float32)

    def train(communicator: InNetwork) -> Floats:
        gradient = communicator.begin(elements, elastic=True)
        for begin in reversed(range(0, elements, elements // 4)):
            time.sleep(0.05)  # until the worker has taken the piece
            gradient.put(begin, values[begin : begin + elements // 4])
        return gradient.result(LIMIT_S).value

    with switch.team(2, elements=elements, timeout_s=5.0) as team:
        assert all(np.allclose(found, values, atol=1e-6) for found in team.all(train))
