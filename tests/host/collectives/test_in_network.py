"""Elastic all-reduces: by a switch's rules, and by a parameter server in a process."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.wire.packet import FORWARDED_PORT, PORT
from kofn_host.agent.agent import Agent
from kofn_host.arrays import Floats
from kofn_host.collectives.in_network import InNetwork
from kofn_host.collectives.work import WorkOutcome
from kofn_host.compression import side_values as note
from kofn_host.errors import CollectiveError
from tests.host.teams import Summed

SHORT_S = 1.0
"""Limit of waits that time out."""

LIMIT_S = 60.0


@pytest.fixture(scope="module", params=[("in-network", PORT), ("server", FORWARDED_PORT)], ids=lambda kind: kind[0])
def kind(request: pytest.FixtureRequest) -> Iterator[Summed]:
    made = Summed(*request.param)
    yield made
    for said in made.close():
        assert said.rstrip().endswith("dropped: none"), said


def reduce(worker: InNetwork, array: Any) -> WorkOutcome[Floats]:
    return worker.all_reduce(array, op="mean", elastic=True).wait(LIMIT_S)


def given(rank: int, shape: tuple[int, ...]) -> Floats:
    return np.asarray(np.random.default_rng(rank).integers(-60, 61, shape), np.float32)


def alike(arrays: list[Floats], reduced: list[WorkOutcome[Floats]]) -> None:
    """Check that all workers have the mean of all arrays, in the same bits."""
    means = np.mean(arrays, axis=0, dtype=np.float64).astype(np.float32)
    for result in reduced:
        assert (result.value.dtype, result.value.shape) == (np.float32, means.shape)
        assert np.array_equal(result.value, means)


@pytest.mark.slow
def test_integers_are_exact(kind: Summed) -> None:
    arrays = [given(rank, (20, 30)) for rank in range(4)]
    with kind.team(4) as team:
        reduced = team.all(lambda worker: reduce(worker, arrays[worker.rank]))
    alike(arrays, reduced)
    for result in reduced:
        assert (result.count, list(result.skipped)) == (4, [])
        assert result.sent_bytes >= 2 * 3 * 600
        assert result.received_bytes >= 2 * 3 * 600


def test_floats_have_the_codecs_precision_and_are_the_same_everywhere(kind: Summed) -> None:
    """32-bit lanes for three workers have steps of 2**-23."""
    arrays = [np.random.default_rng(rank).normal(size=900).astype(np.float32) for rank in range(3)]
    with kind.team(3) as team:
        reduced = team.all(lambda worker: reduce(worker, arrays[worker.rank]))
    assert np.abs(reduced[0].value - np.mean(arrays, axis=0, dtype=np.float64)).max() < 2.0**-22
    assert len({result.value.tobytes() for result in reduced}) == 1


def test_any_shapes_are_reduced_together_and_inputs_stay_unchanged(kind: Summed) -> None:
    shapes: list[tuple[int, ...]] = [(), (3, 4), (0,), (2, 0, 5), (1, 1, 1), (1000,), (7, 11)]
    arrays = [[given(rank, shape) for shape in shapes] for rank in range(2)]
    arrays[0][1] = np.asfortranarray(arrays[0][1])
    kept = [[array.copy() for array in worker] for worker in arrays]

    def work(worker: InNetwork) -> list[WorkOutcome[Floats]]:
        works = [worker.all_reduce(array, op="mean", elastic=True) for array in arrays[worker.rank]]
        return [work.wait(LIMIT_S) for work in works]

    with kind.team(2) as team:
        reduced = team.all(work)
    for at in range(len(shapes)):
        alike([worker[at] for worker in kept], [results[at] for results in reduced])
        assert np.array_equal(arrays[1][at], kept[1][at])


@pytest.mark.slow
def test_huge_array_is_reduced_in_place(kind: Summed) -> None:
    """It has two million elements. The parts of the time add up to the whole."""
    size = 2_000_000
    arrays = [np.tile(np.arange(100, dtype=np.float32) - rank, size // 100) for rank in range(2)]
    kept = [array.copy() for array in arrays]

    def work(worker: InNetwork) -> tuple[WorkOutcome[Floats], float]:
        begin, own = time.perf_counter(), arrays[worker.rank]
        result = worker.all_reduce(own, op="mean", elastic=True, out=own).wait(LIMIT_S)
        return result, time.perf_counter() - begin

    with kind.team(2, elements=size, words=32) as team:
        reduced, taken_s = zip(*team.all(work), strict=True)
    alike(kept, list(reduced))
    for result, own, whole_s in zip(reduced, arrays, taken_s, strict=True):
        times = result.times
        assert result.value is own
        assert min(times.encode, times.send, times.wait, times.receive, times.decode) > 0
        assert times.sum >= 0
        assert whole_s / 2 < times.total <= whole_s, "no time may be counted twice"
        assert result.sent_bytes >= 4 * size


def test_two_jobs_run_side_by_side(kind: Summed) -> None:
    with kind.team(3, job=1) as one, kind.team(3, job=2) as other:
        arrays = {team: [given(rank + 10 * at, (500,)) for rank in range(3)] for at, team in enumerate((one, other))}
        found = dict[Any, list[list[WorkOutcome[Floats]]]]()

        def train(team: Any) -> None:
            found[team] = team.all(lambda w: [reduce(w, arrays[team][w.rank]) for _ in range(5)])

        threads = [threading.Thread(target=train, args=(team,)) for team in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for team, reduced in found.items():
            exact = np.sum(arrays[team], axis=0) / 3
            for call in range(5):
                assert all(np.allclose(results[call].value, exact, rtol=1e-6) for results in reduced)
    assert len(found) == 2


@pytest.mark.slow
def test_worker_gone_before_a_call_is_named(kind: Summed) -> None:
    with kind.team(3, timeout_s=SHORT_S) as team:
        team.all(lambda worker: reduce(worker, given(worker.rank, (8,))))
        team.communicators[1].close()
        errors = team.errors(lambda worker: reduce(worker, given(worker.rank, (8,))), [0, 2])
        assert all("worker 1 " in error for error in errors), errors
        again = team.errors(lambda worker: reduce(worker, given(worker.rank, (8,))), [0, 2])
        assert all("an earlier call has failed: " in error and "worker 1 " in error for error in again), again


@pytest.mark.slow
def test_worker_that_closes_during_a_call_is_named(kind: Summed) -> None:
    """Its own call fails at once."""
    with kind.team(3, timeout_s=SHORT_S) as team:
        one = team.communicators[1]
        own = one.all_reduce(given(1, (8,)), op="mean", elastic=True)
        one.close()
        with pytest.raises(CollectiveError, match="worker 1 has closed its communicator"):
            own.result(LIMIT_S)
        errors = team.errors(
            lambda worker: [reduce(worker, given(worker.rank, (8,))) for _ in range(2)], [0, 2]
        )  # one of its parts may have left
    assert all("worker 1 " in error for error in errors), errors


@pytest.mark.slow
def test_late_worker_is_named(kind: Summed) -> None:
    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(lambda worker: reduce(worker, given(worker.rank, (8,))), [0, 2])
    assert all("worker 1 " in error for error in errors), errors


@pytest.mark.parametrize("size", [300, 600])
def test_other_shapes_fail_at_all_workers(kind: Summed, size: int) -> None:
    """The error names both shapes, also where the numbers of elements are equal."""
    shapes = [(20, 30), (size,), (20, 30)]
    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(lambda worker: reduce(worker, np.ones(shapes[worker.rank], np.float32)))
    for error in errors:
        assert "the workers' calls differ: worker " in error, errors
        assert f"worker 1 calls an all_reduce of {size} elements in 1 dimensions" in errors[0], errors
        assert "elastic all_reduce(mean) of float32 (20, 30)" in error or f"of float32 ({size},)" in error, errors


def test_different_names_of_a_call_are_refused(kind: Summed) -> None:
    def work(worker: InNetwork) -> object:
        name = "b" if worker.rank == 1 else "a"
        return worker.all_reduce(given(worker.rank, (8,)), op="mean", elastic=True, name=name).result(LIMIT_S)

    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(work)
    assert all("the workers' calls differ: worker " in error for error in errors), errors
    assert "worker 1 calls" in errors[0] and errors[0].endswith("float32 (8,) ('a' #1)"), errors


def test_non_finite_values_are_refused_before_any_packet_leaves(kind: Summed) -> None:
    array = given(1, (5, 8))
    array[2, 4] = np.nan
    with kind.team(1) as team:
        (error,) = team.errors(lambda worker: reduce(worker, array))
        assert error.startswith("worker 0: gradient element 20 must be finite ")
        assert not team.communicators[0].agent.ledger.entered, "the ledger has no value of the failed call"
        alike([given(1, (5, 8))], team.all(lambda worker: reduce(worker, given(1, (5, 8)))))


ONES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda c: c.all_reduce(ONES, op="mean"),
            "all_reduce(mean) of float32 (3,) needs the workers' addresses, got none",
        ),
        (
            lambda c: c.all_reduce(ONES, elastic=True),
            "must be an elastic all_reduce(mean), got elastic all_reduce(sum) of float32 (3,)",
        ),
        (lambda c: c.reduce_scatter(ONES[:1]), "reduce_scatter(sum) of float32 (1,) needs the workers' addresses"),
        (lambda c: c.all_gather(ONES), "none: without them the only call is an elastic all_reduce(mean)"),
        (lambda c: c.broadcast(ONES), "none: without them the only call is an elastic all_reduce(mean)"),
        (lambda c: c.barrier(), "barrier needs the workers' addresses"),
        (
            lambda c: c.all_reduce(ONES.astype("float16"), op="mean", elastic=True),
            "array must be float32 in an elastic mean, got float16",
        ),
        (
            lambda c: c.all_reduce(np.ones(1001, np.float32), op="mean", elastic=True),
            "array must have at most 1,000 elements in this job, got 1,001",
        ),
    ],
)
def test_unsupported_calls_are_refused(kind: Summed, call: Any, error: str) -> None:
    with kind.team(1) as team:
        (found,) = team.errors(call)
        assert error in found
        alike([ONES], team.all(lambda worker: reduce(worker, ONES)))


def test_close_may_be_called_twice(kind: Summed) -> None:
    with kind.team(2) as team:
        for worker in team.communicators:
            worker.close()
            worker.close()
        errors = team.errors(lambda worker: reduce(worker, ONES))
    assert errors == [f"the communicator of worker {rank} is closed" for rank in range(2)]


def test_fewer_workers_continue_where_fewer_complete_a_sum(kind: Summed) -> None:
    """One worker is gone and one gives NaN: the rest continue without them."""
    arrays = [given(rank, (20,)) for rank in range(4)]
    arrays[2][:] = np.nan
    with kind.team(4, k=2) as team:
        team.communicators[3].close()
        (refused,) = team.errors(lambda worker: reduce(worker, arrays[2]), [2])
        reduced = team.all(lambda worker: reduce(worker, arrays[worker.rank]), [0, 1])
    assert "worker 2: gradient element 0 must be finite" in refused
    alike(arrays[:2], reduced)
    assert [result.count for result in reduced] == [2, 2]


async def heard(agent: Agent, last: int) -> None:
    """Wait until the agent has all results up to this iteration."""
    while sum(1 for _ in agent.held(last, last)) < agent.encoder.coding.layout.total:
        await asyncio.sleep(0.001)


def test_late_worker_gets_all_missed_results(kind: Summed) -> None:
    """Its gradient travels with its next call and is in that mean of three."""

    def full(value: int) -> Floats:
        return np.full(9, value, np.float32)

    with kind.team(3, k=2) as team:
        team.all(lambda worker: [reduce(worker, full(call)) for call in (3, 5, 7)], [0, 1])
        communicator = team.communicators[2]
        communicator._loop.run(heard(communicator.agent, communicator.agent.iteration + 2))
        late = reduce(communicator, full(6))
        assert [array[0] for array in (late.value, *late.skipped)] == [3, 5, 7]
        last = team.all(lambda worker: reduce(worker, full(9 + 3 * (worker.rank == 2))), [0, 2])
    assert [(result.value[0], result.count) for result in last] == [((9 + 6 + 12) / 3, 2)] * 2


@pytest.mark.parametrize("codec", ["int8", "onebit"])
def test_notes_are_compared_with_any_codec(kind: Summed, codec: str) -> None:
    """All workers have the same result."""
    arrays = [np.random.default_rng(rank).normal(size=900).astype(np.float32) for rank in range(3)]
    with kind.team(3, compress=CompressSection(codec=codec)) as team:
        reduced = team.all(lambda worker: [reduce(worker, arrays[worker.rank]) for _ in range(4)])
        assert len({results[3].value.tobytes() for results in reduced}) == 1
        errors = team.errors(lambda worker: reduce(worker, np.ones(5 + (worker.rank == 1), np.float32)))
    assert all("worker 1 calls " in error for error in errors), errors


def test_lost_packets_are_retransmitted() -> None:
    arrays = [given(rank, (900,)) for rank in range(3)]
    with Summed("in-network", PORT).team(3, lose=20) as team:
        reduced = team.all(lambda worker: [reduce(worker, arrays[worker.rank]) for _ in range(3)])
    exact = np.sum(arrays, axis=0) / 3
    assert all(np.allclose(result.value, exact, rtol=1e-6) for results in reduced for result in results)


@pytest.mark.slow
def test_notes_of_all_workers_are_read_back_from_their_sum() -> None:
    said = {0: (1, 2, 3), 5: (2**31 - 1, 0, 7), 63: (9, 9, 9)}
    sums = np.sum([note.lanes(rank, numbers, 64) for rank, numbers in said.items()], axis=0)
    assert note.read(sums, sum(1 << rank for rank in said), range(64)) == said
