"""Scenarios that each worker of a team runs and checks, over any kind of communicator.

They are a module, so that processes find them by name.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kofn_host.collectives import FLOATING, Array, Communicator
from kofn_host.collectives.call import DTYPES
from kofn_host.errors import CollectiveError

LIMIT_S = 30.0
"""Limit of every wait; a correct call takes much less."""

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (3, 4), (2, 0, 5), (1, 1, 1), (70_001,))

HUGE = 2_000_000

assert ml_dtypes.bfloat16  # the import registers the type with NumPy


def given(rank: int, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    """Return a worker's array of small integers; their sums are exact in every dtype."""
    return np.random.default_rng([seed, rank]).integers(-9, 10, shape).astype(dtype)


def total(communicator: Communicator, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Array:
    whole = [given(rank, shape, "int64", seed) for rank in range(communicator.workers)]
    return np.sum(whole, axis=0).astype(dtype)


def same(found: Array, expected: Array) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)


def sums_are_exact(communicator: Communicator) -> None:
    n = communicator.workers
    for dtype in DTYPES:
        for shape in SHAPES:
            own, rows = given(communicator.rank, shape, dtype), given(communicator.rank, (n, *shape), dtype)
            reduced, scattered = communicator.all_reduce(own), communicator.reduce_scatter(rows)
            same(reduced.result(LIMIT_S), total(communicator, shape, dtype))
            same(scattered.result(LIMIT_S), total(communicator, (n, *shape), dtype)[communicator.rank, ...])


def means_are_exact(communicator: Communicator) -> None:
    n = communicator.workers
    for dtype in FLOATING:
        for shape in SHAPES:
            rows = given(communicator.rank, (n, *shape), dtype)
            mean = np.asarray(total(communicator, (n, *shape), dtype) / np.asarray(n, dtype))
            reduced, scattered = (
                communicator.all_reduce(rows, op="mean"),
                communicator.reduce_scatter(rows, op="mean"),
            )
            same(reduced.result(LIMIT_S), mean)
            same(scattered.result(LIMIT_S), mean[communicator.rank, ...])


def gathered_and_broadcast(communicator: Communicator) -> None:
    n = communicator.workers
    for dtype in DTYPES:
        for shape in SHAPES:
            own = given(communicator.rank, shape, dtype)
            gathered = communicator.all_gather(own)
            spread = [communicator.broadcast(own, root=root) for root in range(n)]
            same(gathered.result(LIMIT_S), np.stack([given(rank, shape, dtype) for rank in range(n)]))
            for root, work in enumerate(spread):
                same(work.result(LIMIT_S), given(root, shape, dtype))


def results_go_where_they_are_asked_to(communicator: Communicator) -> None:
    n, rank = communicator.workers, communicator.rank
    rows, whole = given(rank, (n, 5)), total(communicator, (n, 5))
    out, row = np.empty((n, 5), np.float32), np.empty(5, np.float32)
    assert communicator.all_reduce(rows, out=out).result(LIMIT_S) is out
    same(out, whole)
    assert communicator.reduce_scatter(rows, out=row).result(LIMIT_S) is row
    same(row, whole[rank])
    assert communicator.all_gather(rows[rank], out=out).result(LIMIT_S) is out
    same(out, np.stack([given(other, (n, 5))[other] for other in range(n)]))
    assert communicator.broadcast(rows, root=n - 1, out=out).result(LIMIT_S) is out
    same(out, given(n - 1, (n, 5)))
    same(rows, given(rank, (n, 5)))


def in_place(communicator: Communicator) -> None:
    n, rank = communicator.workers, communicator.rank
    rows, whole = given(rank, (n, 5)), total(communicator, (n, 5))
    communicator.all_reduce(rows, out=rows).result(LIMIT_S)
    same(rows, whole)
    rows = given(rank, (n, 5))
    communicator.reduce_scatter(rows, out=rows[rank]).result(LIMIT_S)
    same(rows[rank], whole[rank])
    rows = given(rank, (n, 5))
    communicator.all_gather(rows[rank], out=rows).result(LIMIT_S)
    same(rows, np.stack([given(other, (n, 5))[other] for other in range(n)]))
    rows = given(rank, (n, 5))
    communicator.broadcast(rows, root=1 % n, out=rows).result(LIMIT_S)
    same(rows, given(1 % n, (n, 5)))


def what_is_given_may_be_strided_and_stays(communicator: Communicator) -> None:
    n, rank = communicator.workers, communicator.rank
    wide = given(rank, (n, 6, 4))
    for view in (wide[:, ::2], np.asfortranarray(wide), wide[:, ::-1], wide.transpose(0, 2, 1)):
        kept, every = view.copy(), [given(other, (n, 6, 4)) for other in range(n)]
        reduced, gathered = communicator.all_reduce(view), communicator.all_gather(view)
        scattered, spread = communicator.reduce_scatter(view), communicator.broadcast(view)
        same(reduced.result(LIMIT_S), np.add.reduce(gathered.result(LIMIT_S), axis=0))
        same(gathered.result()[rank], kept)
        same(scattered.result(LIMIT_S), reduced.result()[rank])
        same(spread.result(LIMIT_S), gathered.result()[0])
        same(view, kept)
        assert len(every) == n
    same(communicator.all_reduce(np.float32(2)).result(LIMIT_S), np.asarray(2 * n, np.float32))


def huge(communicator: Communicator) -> None:
    """The reported times lie within the call, and no time is counted twice."""
    n, rank = communicator.workers, communicator.rank
    ramp = np.arange(HUGE, dtype=np.float32) % 1000
    own = ramp + rank
    begin = time.perf_counter()
    outcome = communicator.all_reduce(own, op="mean").wait(LIMIT_S)
    taken_s = time.perf_counter() - begin
    same(outcome.value, ramp + np.float32((n - 1) / 2))
    assert outcome.count == n
    assert taken_s / 2 < outcome.times.total <= taken_s
    assert min(outcome.times.encode, outcome.times.wait) > 0
    rows = np.arange(n * (HUGE // n), dtype=np.int64).reshape(n, -1)
    scattered, gathered = communicator.reduce_scatter(rows + rank), communicator.all_gather(rows[rank])
    same(scattered.result(LIMIT_S), n * rows[rank] + n * (n - 1) // 2)
    same(gathered.result(LIMIT_S), rows)
    same(communicator.broadcast(rows + rank, root=n - 1).result(LIMIT_S), rows + n - 1)


def bytes_are_a_ring_s(communicator: Communicator) -> None:
    n = communicator.workers
    rows = np.zeros((n, HUGE // 10), np.int64)
    whole = communicator.all_reduce(rows).wait(LIMIT_S)
    assert whole.sent_bytes == whole.received_bytes == pytest.approx(2 * rows.nbytes * (n - 1) / n, rel=1e-4)
    for half in (communicator.reduce_scatter(rows), communicator.all_gather(rows[0])):
        outcome = half.wait(LIMIT_S)
        assert outcome.sent_bytes == outcome.received_bytes == rows.nbytes * (n - 1) // n


def bytes_are_those_of_whole_blocks(communicator: Communicator) -> None:
    """A block has 32 words; an int64 takes three lanes in a sum and two elsewhere.

    In a gather each worker sends its own blocks. In a broadcast the others send one of 32 blocks; 128 slots hold no
    more.
    """
    n, root = communicator.workers, 0
    rows = np.zeros((n, HUGE // 10), np.int64)
    summed, halves, own = -(-rows.size // (2048 // 3)), -(-rows.size // 2048), -(-rows[0].size // 1024)
    turns = -(-own // (32 - (n - 1)))
    of_root = turns * -(-own // turns)
    for work, sent, received in (
        (communicator.all_reduce(rows), summed, summed),
        (communicator.all_reduce(rows.astype(np.float32)), halves, halves),
        (communicator.all_gather(rows[0]), own, n * own),
        (communicator.broadcast(rows[0], root=root), turns, of_root + turns * (n - 1)),
    ):
        outcome = work.wait(LIMIT_S)
        least = of_root if communicator.rank == root and sent == turns else sent
        assert outcome.received_bytes == received * (68 + 8192)
        assert least * (68 + 8192) <= outcome.sent_bytes


def what_is_too_large_wraps_around_or_is_infinite(communicator: Communicator) -> None:
    for dtype in ("int32", "int64"):
        most = np.full(9, np.iinfo(dtype).max, dtype)
        found = communicator.all_reduce(most).result(LIMIT_S)
        same(found, np.sum([most] * communicator.workers, axis=0, dtype=dtype))
    for dtype in FLOATING:
        found = communicator.all_reduce(np.full(9, 3e4 if dtype == "float16" else 3e38, dtype)).result(LIMIT_S)
        assert np.isposinf(found).all() or communicator.workers < 3


def floats_are_the_same_everywhere(communicator: Communicator) -> None:
    """All workers have the same bits, near the exact sum."""
    for dtype in FLOATING:
        every = [np.random.default_rng(rank).normal(size=5001).astype(dtype) for rank in range(communicator.workers)]
        found = communicator.all_reduce(every[communicator.rank]).result(LIMIT_S)
        exact, eps = (
            np.sum(every, axis=0, dtype=np.float64),
            {"float32": 2e-7, "float16": 1e-3, "bfloat16": 8e-3}[dtype],
        )
        assert np.allclose(found.astype(np.float64), exact, rtol=communicator.workers * eps, atol=20 * eps)
        numbers = found.view(np.uint8)[: 5001 * found.itemsize // 4 * 4].view(np.int32)
        gathered = communicator.all_gather(numbers).result(LIMIT_S)
        assert all(np.array_equal(row, numbers) for row in gathered)


def what_is_not_finite_travels(communicator: Communicator) -> None:
    for dtype in FLOATING:
        own = np.zeros(20, dtype)
        own[7], own[9] = np.nan, np.inf
        found = communicator.all_reduce(own).result(LIMIT_S)
        assert np.isnan(found[7]) and np.isposinf(found[9]) and not found[:7].any()


def non_finite_values_are_refused_in_a_sum(communicator: Communicator) -> None:
    """The error names the element. Other collectives carry such values."""
    own = np.zeros((communicator.workers, 4), np.float32)
    own[0, 3] = -np.inf
    own[0, 2], wrong = np.nan, "array element 2 must be finite in a sum in the switch, got nan"
    for dtype in FLOATING:
        for call in (communicator.all_reduce, communicator.reduce_scatter):
            with pytest.raises(CollectiveError, match=wrong):
                call(own.astype(dtype))
        gathered = communicator.all_gather(own.astype(dtype)).result(LIMIT_S)
        assert all(each.tobytes() == own.astype(dtype).tobytes() for each in gathered)
        assert communicator.broadcast(own.astype(dtype)).result(LIMIT_S).tobytes() == own.astype(dtype).tobytes()


def many_are_under_way(communicator: Communicator) -> None:
    """Calls of all kinds are in flight together, and each gets its own answer."""
    works: list[tuple[Any, Array | None]] = []
    for at in range(120):
        own = given(communicator.rank, (communicator.workers, at), seed=at)
        works.append((communicator.all_reduce(own), total(communicator, own.shape, seed=at)))
        works.append((communicator.reduce_scatter(own), total(communicator, own.shape, seed=at)[communicator.rank]))
        works.append((communicator.broadcast(own, root=at % communicator.workers), None))
        works.append((communicator.all_gather(own[0]), None))
        works.append((communicator.barrier(), None))
    for work, expected in reversed(works):
        found = work.result(LIMIT_S)
        if expected is not None:
            same(found, expected)


def names_in_any_order(communicator: Communicator) -> None:
    """Each worker begins with another name; calls are matched within each name."""
    names = [f"layer {at}" for at in range(6)] + [""]
    mine = names[communicator.rank :] + names[: communicator.rank]
    works = {}
    for turn in range(3):
        for name in mine if turn % 2 else mine[::-1]:
            seed = 100 * turn + names.index(name)
            own = given(communicator.rank, (50,), seed=seed)
            works[seed] = communicator.all_reduce(own, name=name)
    for seed, work in works.items():
        same(work.result(LIMIT_S), total(communicator, (50,), seed=seed))


def threads_make_calls_at_once(communicator: Communicator) -> None:
    def calls(thread: int) -> None:
        for at in range(10):
            seed = 1000 * thread + at
            own = given(communicator.rank, (300,), seed=seed)
            found = communicator.all_reduce(own, name=f"thread {thread}").result(LIMIT_S)
            same(found, total(communicator, (300,), seed=seed))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))


def a_barrier_waits_for_all(communicator: Communicator) -> None:
    """The last worker calls the barrier only after the others have seen that it is not done."""
    last = communicator.rank == communicator.workers - 1
    if last:
        communicator.barrier(name="seen").result(LIMIT_S)
    barrier = communicator.barrier()
    if not last:
        with pytest.raises(TimeoutError, match=r"barrier is not done after 0\.05 s"):
            barrier.result(0.05)
        assert not barrier.done()
        communicator.barrier(name="seen").result(LIMIT_S)
    assert barrier.result(LIMIT_S) is None
    outcome = barrier.wait()
    assert outcome.count == communicator.workers
    assert outcome.times.total == outcome.times.wait > (0 if last else 0.05)


def work_is_a_future(communicator: Communicator) -> None:
    """It can be awaited and called back, and is never cancelled."""

    async def both() -> list[Any]:
        return await asyncio.gather(
            *(communicator.all_reduce(given(communicator.rank, (4,), seed=seed)) for seed in (1, 2))
        )

    for seed, found in zip((1, 2), asyncio.run(both()), strict=True):
        same(found, total(communicator, (4,), seed=seed))
    called = threading.Event()
    work = communicator.all_reduce(given(communicator.rank, (4,)))
    work.add_done_callback(lambda done: called.set())
    assert not work.cancel()
    assert work.exception(LIMIT_S) is None
    assert work.done() and not work.cancelled()
    assert called.wait(LIMIT_S)
    chained: list[Any] = []
    first = communicator.barrier(name="first")
    first.add_done_callback(lambda done: chained.append(communicator.barrier(name="second")))
    first.result(LIMIT_S)
    communicator.barrier(name="third").result(LIMIT_S)
    chained[0].result(LIMIT_S)


def refused_calls_change_nothing(communicator: Communicator) -> None:
    """A refused call does not even change the order of calls, although only one worker makes it."""
    if communicator.rank == 0:
        with pytest.raises(CollectiveError, match="float64"):
            communicator.all_reduce(np.zeros(3))
        with pytest.raises(CollectiveError, match="elastic"):
            communicator.all_reduce(np.zeros(3, np.float32), elastic=True)
    same(communicator.all_reduce(given(communicator.rank, (3,))).result(LIMIT_S), total(communicator, (3,)))


EVERY: tuple[Callable[[Communicator], None], ...] = (
    sums_are_exact,
    means_are_exact,
    gathered_and_broadcast,
    results_go_where_they_are_asked_to,
    in_place,
    what_is_given_may_be_strided_and_stays,
    huge,
    what_is_too_large_wraps_around_or_is_infinite,
    floats_are_the_same_everywhere,
    many_are_under_way,
    names_in_any_order,
    threads_make_calls_at_once,
    a_barrier_waits_for_all,
    work_is_a_future,
    refused_calls_change_nothing,
)
"""Refused calls with their errors; none of them ends a communicator."""

OF_PEERS = (bytes_are_a_ring_s, what_is_not_finite_travels)
OF_A_SWITCH = (bytes_are_those_of_whole_blocks, non_finite_values_are_refused_in_a_sum)


def error_of(call: Callable[[], Any]) -> str:
    """Return the call's error, which may be raised before the call is made."""
    try:
        return f"nothing is wrong: {call().result(LIMIT_S)}"
    except CollectiveError as error:
        return str(error).removeprefix("an earlier call has failed: ")


DIFFERENT: dict[str, tuple[Callable[[Communicator], Any], Callable[[Communicator], Any], tuple[str, str]]] = {
    "kind": (
        lambda c: c.barrier(),
        lambda c: c.all_gather(np.zeros(3, np.float32)),
        ("calls barrier", "calls all_gather of float32 (3,)"),
    ),
    "dtype": (
        lambda c: c.all_reduce(np.zeros(3, np.float32)),
        lambda c: c.all_reduce(np.zeros(3, np.int32)),
        ("calls all_reduce(sum) of float32 (3,)", "calls all_reduce(sum) of int32 (3,)"),
    ),
    "shape": (
        lambda c: c.all_reduce(np.zeros((20, 30), np.float32)),
        lambda c: c.all_reduce(np.zeros(600, np.float32)),
        ("calls all_reduce(sum) of float32 (20, 30)", "calls all_reduce(sum) of float32 (600,)"),
    ),
    "op": (
        lambda c: c.all_reduce(np.zeros(3, np.float32)),
        lambda c: c.all_reduce(np.zeros(3, np.float32), op="mean"),
        ("calls all_reduce(sum) of float32 (3,)", "calls all_reduce(mean) of float32 (3,)"),
    ),
    "root": (
        lambda c: c.broadcast(np.zeros(3, np.float32), root=0),
        lambda c: c.broadcast(np.zeros(3, np.float32), root=1),
        ("calls broadcast(root 0) of float32 (3,)", "calls broadcast(root 1) of float32 (3,)"),
    ),
}
"""The others' call, worker 1's different call, and the names of both in the error."""


def calls_that_differ(communicator: Communicator, what: str) -> str:
    """Return the error of calls that differ. An earlier call that all workers made completes."""
    before = communicator.all_reduce(given(communicator.rank, (HUGE // 10,)))
    communicator.barrier().result(LIMIT_S)
    others, own, _ = DIFFERENT[what]
    error = error_of(lambda: (own if communicator.rank == 1 else others)(communicator))
    same(before.result(LIMIT_S), total(communicator, (HUGE // 10,)))
    with pytest.raises(CollectiveError, match="an earlier call has failed: the workers' calls differ: "):
        communicator.barrier()
    return error


def one_worker_does_not_call(communicator: Communicator) -> str:
    """Return the error; worker 1 makes another call, later."""
    awaited = communicator.barrier(name="awaited") if communicator.rank != 1 else None
    communicator.barrier().result(LIMIT_S)
    return error_of(lambda: awaited or communicator.barrier(name="other"))


def one_has_left(communicator: Communicator) -> str:
    return error_of(communicator.barrier)


def one_call(communicator: Communicator) -> str:
    same(communicator.all_reduce(given(communicator.rank, (9,))).result(LIMIT_S), total(communicator, (9,)))
    return ""


def calls_until_failure(communicator: Communicator) -> str:
    """Repeat a call until it fails and return the error."""
    array, error = np.ones(400_000, np.float32), "nothing is wrong"
    while error.startswith("nothing is wrong"):
        error = error_of(lambda: communicator.all_reduce(array))
    return error


def closes(communicator: Communicator) -> None:
    communicator.close()
