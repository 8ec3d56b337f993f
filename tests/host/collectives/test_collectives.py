"""One suite for every implementation of Collective; each runs in threads on loopback, the server in a process."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kofn.config.compress import CompressSection
from kofn.host.agent.agent import Agent
from kofn.host.arrays import Floats
from kofn.host.collectives.collective import Collective, Form, Reduced
from kofn.host.collectives.frames import FrameKind
from kofn.host.collectives.kinds.gloo import Gloo
from kofn.host.collectives.kinds.ring import Ring
from kofn.host.compression import side_values as note
from kofn.host.errors import CollectiveError
from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.protocol.slot_model import SlotModel
from kofn.host.protocol.slot_query import SlotQuery
from kofn.host.wire.packet import PORT, Kind, KofnHeader
from tests.host.teams import TORCH, Peers, Summed, kinds

SHORT_S = 1.0
"""Of waits that are in vain."""


@pytest.fixture(scope="module", params=kinds(), ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param.name == "gloo" and not TORCH:
        pytest.skip("torch is not installed")
    yield request.param
    if request.param.name == "server":
        for said in request.param.close():
            assert said.rstrip().endswith("dropped: none"), said


def arrays(rank: int, *shapes: tuple[int, ...]) -> list[Floats]:
    random = np.random.default_rng(rank)
    return [np.asarray(random.integers(-60, 61, shape), np.float32) for shape in shapes]


def alike(given: list[list[Floats]], reduced: list[Reduced]) -> None:
    """Everyone has the means of all, in all their bits."""
    for at, array in enumerate(given[0]):
        means = np.mean([worker[at] for worker in given], axis=0, dtype=np.float64).astype(np.float32)
        for result in reduced:
            assert (result.arrays[at].dtype, result.arrays[at].shape) == (np.float32, array.shape)
            assert np.array_equal(result.arrays[at], means)


def test_integers_are_exact(kind: Any) -> None:
    with kind.team(4) as team:
        given = [arrays(rank, (20, 30), (7,)) for rank in range(4)]
        reduced = team.all(lambda worker: worker.all_reduce(given[worker.rank]))
    alike(given, reduced)
    for result in reduced:
        assert (result.count, list(result.skipped)) == (4, [])
        assert result.sent_bytes >= 2 * 3 * 607
        assert result.received_bytes >= 2 * 3 * 607


def test_floats_are_as_fine_as_the_codec_and_the_same_everywhere(kind: Any) -> None:
    """32-bit lanes for three workers have steps of 2**-23, as have float32 sums of this size."""
    given = [np.random.default_rng(rank).normal(size=900).astype(np.float32) for rank in range(3)]
    with kind.team(3) as team:
        reduced = team.all(lambda worker: worker.all_reduce([given[worker.rank]]))
    assert np.abs(reduced[0].arrays[0] - np.mean(given, axis=0, dtype=np.float64)).max() < 2.0**-22
    assert len({result.arrays[0].tobytes() for result in reduced}) == 1


def test_any_shapes_and_what_is_given_stays_as_it_is(kind: Any) -> None:
    calls: list[list[tuple[int, ...]]] = [
        [(), (3, 4), (0,), (2, 0, 5), (1, 1, 1), ()],
        [],
        [(0,)],
        [(5,)] * 150,
        [()],
        [(1000,)],
        [(7, 11), (13,)],
    ]
    given = [[arrays(rank, *call) for call in calls] for rank in range(2)]
    kept = [[[array.copy() for array in call] for call in worker] for worker in given]
    strided = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    given[0][0][1] = kept[0][0][1] = strided
    with kind.team(2) as team:
        reduced = team.all(lambda worker: [worker.all_reduce(call) for call in given[worker.rank]])
    for at in range(len(calls)):
        alike([worker[at] for worker in kept], [results[at] for results in reduced])
    assert all(np.array_equal(a, b) for a, b in zip(given[1][3], kept[1][3], strict=True))
    first, second = reduced[0][3].arrays, reduced[0][0].arrays
    first[0] += 1
    assert np.array_equal(second[1], (strided + kept[1][0][1]) / 2), "a call's arrays are nobody else's"


def test_one_that_is_huge(kind: Any) -> None:
    """Two million elements: progress grows to 1; the parts of the time are those of the whole."""
    size, heard = 2_000_000, list[float]()
    given = [np.tile(np.arange(100, dtype=np.float32) - rank, size // 100) for rank in range(2)]

    def work(worker: Collective) -> tuple[Reduced, float]:
        begin = time.perf_counter()
        result = worker.all_reduce([given[worker.rank]], on_share=heard.append if worker.rank == 0 else None)
        return result, time.perf_counter() - begin

    with kind.team(2, elements=size, words=32) as team:
        reduced, taken_s = zip(*team.all(work), strict=True)
    alike([[array] for array in given], list(reduced))
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    assert heard[0] < 1.0 or not kind.tells
    for result, whole_s in zip(reduced, taken_s, strict=True):
        times = result.times
        parts = (times.encode, times.send, times.wait, times.receive, times.sum, times.decode)
        assert min(parts) >= 0
        assert times.total == pytest.approx(sum(parts))
        assert whole_s / 2 < times.total <= whole_s, "nothing is counted twice"
        assert min(times.encode, times.decode, times.wait) > 0
        assert min(times.send, times.receive) > 0 or kind.name == "gloo"
        assert result.sent_bytes >= 4 * size


def test_two_jobs_side_by_side(kind: Any) -> None:
    with kind.team(3, job=1) as one, kind.team(3, job=2) as other:
        given = {team: [arrays(rank + 10 * at, (500,)) for rank in range(3)] for at, team in enumerate((one, other))}
        found = dict[Any, list[list[Reduced]]]()

        def train(team: Any) -> None:
            found[team] = team.all(lambda w: [w.all_reduce(given[team][w.rank]) for _ in range(5)])

        threads = [threading.Thread(target=train, args=(team,)) for team in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for team, reduced in found.items():
            for call in range(5):
                exact = np.sum([worker[0] for worker in given[team]], axis=0) / 3
                assert all(np.allclose(results[call].arrays[0], exact, rtol=1e-6) for results in reduced)
    assert len(found) == 2


def test_who_is_gone_before_a_call_is_named(kind: Any) -> None:
    with kind.team(3, timeout_s=SHORT_S) as team:
        team.all(lambda worker: worker.all_reduce(arrays(worker.rank, (8,))))
        team.collectives[1].close()
        errors = team.errors(lambda worker: worker.all_reduce(arrays(worker.rank, (8,))), [0, 2])
        assert all("worker 1 " in error for error in errors), errors
        again = team.errors(lambda worker: worker.all_reduce([]), [0, 2])
        assert all("an earlier call has failed: " in error and "worker 1 " in error for error in again), again


def test_who_is_gone_in_the_middle_of_a_call_is_named(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.host.agent.agent.PROGRESS_S", 0.0)
    if not kind.tells:
        pytest.skip("gloo cannot be left in the middle of a call")

    def dies(worker: Collective) -> object:
        if worker.rank != 1:
            return worker.all_reduce([given])

        def die(share: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), worker:
            worker.all_reduce([given], on_share=die)
        raise CollectiveError("I am worker 1 myself")

    given = np.ones(300_000, np.float32)
    with kind.team(3, elements=given.size, timeout_s=SHORT_S) as team:
        errors = team.errors(dies)
    assert all("worker 1" in error for error in errors), errors


def test_who_comes_too_late_is_named(kind: Any) -> None:
    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(lambda worker: worker.all_reduce(arrays(worker.rank, (8,))), [0, 2])
    assert all("worker 1 " in error for error in errors), errors


@pytest.mark.parametrize("size", [300, 600])
def test_other_shapes_end_all_workers(kind: Any, size: int) -> None:
    """Both are named, also where the numbers of elements are the same."""
    shapes = [(20, 30), (size,), (20, 30)]
    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(lambda worker: worker.all_reduce([np.ones(shapes[worker.rank], np.float32)]))
    for error in errors:
        assert "the workers' calls differ: worker " in error, errors
        assert "worker 1 gives 1 arrays" in error, errors
        assert "worker 0 gives 1 arrays" in error or "worker 2 gives 1 arrays" in error, errors
        assert "(20, 30)" in error or f"({size},)" in error, errors


def test_what_is_not_finite_ends_all_workers(kind: Any) -> None:
    """Who gives it is told which element it is, and the others who."""
    given = [arrays(rank, (5, 8), (6,)) for rank in range(3)]
    given[1][1][4] = np.nan
    with kind.team(3, timeout_s=SHORT_S) as team:
        errors = team.errors(lambda worker: worker.all_reduce(given[worker.rank]))
        assert not kind.fewer or not team.collectives[1].agent.ledger.entered, "nothing of it is in the ledger"
    assert "worker 1: element 4 of array 1 is nan" in errors[1]
    assert all("worker 1" in error for error in errors), errors


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([np.zeros(3)], "array 0 is float64: NumPy's float32 is allowed"),
        ([np.zeros(3, np.float32), [1.0]], "array 1 is list: NumPy's float32 is allowed"),
        (
            [np.array([0, 1], np.float32), np.array([[2], [np.inf]], np.float32)],
            "worker 0: element 1 of array 1 is inf: finite numbers are",
        ),
        ([np.array([-np.inf], np.float32)], "worker 0: element 0 of array 0 is -inf: finite numbers are allowed"),
        ([np.zeros((5_000, 2_001), np.float32)], "10,005,000 elements: up to 10,000,000 are allowed"),
    ],
)
def test_what_cannot_be_reduced_is_refused(kind: Any, given: Any, error: str) -> None:
    with kind.team(1) as team:
        (found,) = team.errors(lambda worker: worker.all_reduce(given))
    assert error in found


def test_one_worker_alone_has_its_own(kind: Any) -> None:
    given = arrays(3, (30, 4), ())
    with kind.team(1) as team:
        alike([given], team.all(lambda worker: worker.all_reduce(given)))


def test_closing_twice(kind: Any) -> None:
    with kind.team(2) as team:
        for worker in team.collectives:
            worker.close()
            worker.close()
        assert all("closed" in error for error in team.errors(lambda worker: worker.all_reduce([])))


def test_fewer_go_on_where_fewer_complete_a_sum(kind: Any) -> None:
    """One is gone, one gives NaN: the rest go on without them."""
    if not kind.fewer:
        pytest.skip("all workers are in all sums")
    given = [arrays(rank, (20,)) for rank in range(4)]
    given[2][0][:] = np.nan
    with kind.team(4, k=2, timeout_s=SHORT_S) as team:
        team.collectives[3].close()
        (refused,) = team.errors(lambda worker: worker.all_reduce(given[2]), [2])
        reduced = team.all(lambda worker: worker.all_reduce(given[worker.rank]), [0, 1])
    assert "worker 2: element 0 of array 0 is nan" in refused
    alike(given[:2], reduced)
    assert [result.count for result in reduced] == [2, 2]


async def heard(agent: Agent, last: int) -> None:
    """Wait until it has all results up to this iteration."""
    while sum(1 for _ in agent.held(last, last)) < len(agent.protocol.blocks):
        await asyncio.sleep(0.001)


def test_who_is_late_hears_of_all_it_has_missed(kind: Any) -> None:
    """Its own goes with its next call, where it is in the mean of three."""
    if not kind.fewer:
        pytest.skip("all workers are in all sums")

    def full(value: int) -> list[Floats]:
        return [np.full(9, value, np.float32)]

    with kind.team(3, k=2) as team:
        team.all(lambda worker: [worker.all_reduce(full(call)) for call in (3, 5, 7)], [0, 1])
        collective = team.collectives[2]
        collective._loop.run(heard(collective.agent, collective.agent.iteration + 2))
        late = collective.all_reduce(full(6))
        assert [array[0] for (array,) in (late.arrays, *late.skipped)] == [3, 5, 7]
        last = team.all(lambda worker: worker.all_reduce(full(9 + 3 * (worker.rank == 2))), [0, 2])
    assert [(result.arrays[0][0], result.count) for result in last] == [((9 + 6 + 12) / 3, 2)] * 2


@pytest.mark.parametrize("codec", ["int8", "onebit"])
def test_notes_go_with_any_codec(kind: Any, codec: str) -> None:
    """Shapes are compared, and everyone has the same."""
    if not kind.fewer:
        pytest.skip("it has no codecs")
    given = [np.random.default_rng(rank).normal(size=900).astype(np.float32) for rank in range(3)]
    with kind.team(3, compress=CompressSection(codec=codec), timeout_s=SHORT_S) as team:
        reduced = team.all(lambda worker: [worker.all_reduce([given[worker.rank]]) for _ in range(4)])
        assert len({results[3].arrays[0].tobytes() for results in reduced}) == 1
        errors = team.errors(lambda worker: worker.all_reduce([np.ones(5 + (worker.rank == 1), np.float32)]))
    assert all("worker 1 gives 1 arrays" in error for error in errors), errors


def test_what_is_lost_is_sent_again() -> None:
    given = [arrays(rank, (900,)) for rank in range(3)]
    with Summed("in-network", PORT).team(3, lose=20) as team:
        reduced = team.all(lambda worker: [worker.all_reduce(given[worker.rank]) for _ in range(3)])
    exact = np.sum(given, axis=0)[0] / 3
    assert all(np.allclose(result.arrays[0], exact, rtol=1e-6) for results in reduced for result in results)


def test_a_ring_says_who_does_not_come() -> None:
    addresses = ["127.0.95.1:19310", "127.0.95.2:19310"]
    with pytest.raises(CollectiveError, match=r"worker 1 cannot be reached at 127\.0\.95\.2:19310: "):
        Ring(0, addresses, meet_s=0.1)


def test_a_ring_takes_no_other_job_for_its_own() -> None:
    addresses = ["127.0.95.1:19310", "127.0.95.2:19310"]
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(Ring, 1, addresses, job=2)
        with pytest.raises(CollectiveError, match=r'someone has come who says .*"job": 2'):
            Ring(0, addresses, job=1)
        with pytest.raises(CollectiveError, match=r'someone has come who says .*"job": 1'):
            other.result()


def test_a_ring_passes_on_who_is_waited_for() -> None:
    """Worker 1 stops in mid-call; worker 0, which gives up first, names it, and not its neighbour."""
    with Peers("ring", Ring).team(4, timeout_s=1.6 * SHORT_S) as team:
        hasty: Any = team.collectives[0]
        hasty._timeout_s = 1.5 * SHORT_S
        call: Any = team.collectives[1]
        call._neighbours.right.outgoing.put(FrameKind.CALL, b"[1, [[4000000]]]")
        call._neighbours.right.flush()
        errors = team.errors(lambda worker: worker.all_reduce([np.ones(4_000_000, np.float32)]), [0, 2, 3])
    assert all("worker 1 " in error for error in errors), errors


def test_a_ring_knows_a_reason_where_there_is_one() -> None:
    with Peers("ring", Ring).team(3) as team:
        ring: Any = team.collectives[0]
        link = ring._neighbours.left
        link.outgoing.put(FrameKind.ABORT, b"there is a reason")
        link.flush()
        team.collectives[1].close()
        assert team.errors(lambda worker: worker.all_reduce([]), [2]) == ["there is a reason"]


def test_gloo_says_where_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CollectiveError, match="gloo is PyTorch's, which is not installed"):
        Gloo(0, ["127.0.95.1:19310"])


def test_notes_are_everyone_s_own() -> None:
    said = {0: (1, 2, 3), 5: (2**31 - 1, 0, 7), 63: (9, 9, 9)}
    sums = np.sum([note.lanes(rank, numbers) for rank, numbers in said.items()], axis=0)
    assert note.read(sums, sum(1 << rank for rank in said)) == said


@pytest.mark.parametrize("lanes", [0, 1, 3])
def test_a_slot_query_hears_who_is_in_an_open_block(lanes: int) -> None:
    """Whatever lanes the block is summed in; not what answers something else."""
    shape = BlockLayout(blocks=4, words=8, widest=32)
    request = KofnHeader(worker=1, iteration=3, block=2, slot=1, lanes=lanes, words=shape.words_of(2, lanes))
    rules, query = SlotModel(workers=4, k=4, slots=4), SlotQuery()
    assert query.describe(4) == "nobody was asked why"
    for rank in (1, 3):
        rules.handle(request._replace(worker=rank), bytes(256 * request.words))
    asked = query.ask(request, shape)
    assert (asked.kind, query.describe(4)) == (Kind.PULL, "nobody answers for block 2")
    ((_, answer, _),) = rules.handle(asked, bytes(256 * asked.words))
    assert not query.hears(answer._replace(block=1))
    assert not query.hears(answer._replace(words=request.words))
    assert query.hears(answer)
    assert query.describe(4) == "in block 2 the switch has workers 0 and 2 missing"
    query.forget()
    assert not query.hears(answer)


def test_the_name_of_a_form_is_short() -> None:
    assert str(Form(((2,),) * 9)) == "9 arrays of shapes (2,), (2,), (2,), (2,), ..."
    assert str(Form(())) == "no arrays"
    assert Form(((2, 3),)).digest != Form(((3, 2),)).digest
