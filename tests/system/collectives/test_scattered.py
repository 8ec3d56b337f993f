"""Elastic reduce-scatters: each worker gets its row of the mean, and the members of all other blocks."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import HEADER_BYTES
from kofn_host.arrays import Floats
from kofn_host.collectives import BlockRows, InNetwork
from kofn_host.errors import AgentError, CollectiveError
from kofn_host.transport.transport import Transport
from tests.loopback import loopback
from tests.system.collectives.crews import Processes, addresses
from tests.system.collectives.scenarios import LIMIT_S, error_of
from tests.system.collectives.switched import HOSTS, MODEL, close_all, place, started
from tests.system.zero.crews import TROUBLE, WORDS, all_of, beneath_a_switch, scattering
from tests.targets import TARGETS
from tests.waiting import until

WORKERS, COLUMNS, STEPS = 4, 5_000, 5


@pytest.fixture(scope="module", autouse=True)
def end_of_switches() -> Iterator[None]:
    yield
    close_all()


ONES = np.ones(3, np.float32)


def given(rank: int, step: int) -> Floats:
    """Return values whose magnitudes are the same at all workers, so that any first contribution chooses the same
    scale.
    """
    magnitudes = np.random.default_rng(step).lognormal(size=(WORKERS, COLUMNS))
    return (magnitudes * np.random.default_rng([step, rank]).choice([-1, 1], magnitudes.shape)).astype(np.float32)


def rows_of(codec: str) -> BlockRows:
    return BlockRows.of(JobSection(workers=WORKERS, words=WORDS), CompressSection(codec=codec), COLUMNS)


def scatter(worker: InNetwork, array: Floats) -> Floats:
    return worker.reduce_scatter(array, op="mean", elastic=True).result(LIMIT_S)


def pending(crew: Sequence[InNetwork]) -> list[Any]:
    return [each.agent.ledger.residual.pending.copy() for each in crew]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "onebit", "int32"])
def test_rows_equal_those_of_an_all_reduce(codec: str) -> None:
    """The residuals are the same, too, at every worker."""
    rows = rows_of(codec)
    with beneath_a_switch(WORKERS, 1, codec, columns=COLUMNS) as crew:
        found = all_of(WORKERS, lambda rank: [scatter(crew[rank], given(rank, step)) for step in range(STEPS)])
        left = pending(crew)

    def reduced(worker: InNetwork) -> list[Floats]:
        arrays = (rows.laid(given(worker.rank, step)) for step in range(STEPS))
        means = (worker.all_reduce(array, op="mean", elastic=True).result(LIMIT_S) for array in arrays)
        return [rows.row(mean, worker.rank) for mean in means]

    with beneath_a_switch(WORKERS, rows.elements, codec) as crew:
        wanted = all_of(WORKERS, lambda rank: reduced(crew[rank]))
        assert all(map(np.array_equal, left, pending(crew)))
    assert np.array_equal(found, wanted)
    assert np.abs(found).mean() > 0.1


def down(crew: Sequence[InNetwork], call: Callable[[InNetwork], object]) -> int:
    """Return the most bytes that any worker's socket receives for a call, in the smallest of five calls."""

    def one(rank: int) -> int:
        before = crew[rank].agent.traffic.bytes_received
        call(crew[rank])
        return crew[rank].agent.traffic.bytes_received - before

    return int(np.min([all_of(WORKERS, one) for _ in range(5)], 0).max())


@pytest.mark.parametrize("codec", ["int8", "onebit"])
def test_link_carries_one_row_and_headers(codec: str) -> None:
    rows, answer = rows_of(codec), 256 * (3 if codec == "onebit" else 1)
    with beneath_a_switch(WORKERS, 1, codec, columns=COLUMNS) as crew:
        summary = HEADER_BYTES + 256 * crew[0].agent.protocol.layout.summary_words
        all_of(WORKERS, lambda rank: scatter(crew[rank], given(rank, 0)))  # agrees on scales
        found = down(crew, lambda worker: scatter(worker, given(worker.rank, 1)))
    expected = summary + rows.blocks * HEADER_BYTES + rows.blocks // WORKERS * answer
    assert expected <= found < 1.1 * expected, "a few packets are retransmitted"


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "onebit"])
@pytest.mark.parametrize("k", [3, 4])
def test_late_lost_repeated_and_overtaken_packets_lose_no_gradient(codec: str, k: int) -> None:
    """Each worker in turn begins after the others' sums have closed, where k permits that."""
    with beneath_a_switch(WORKERS, 1, codec, k=k, columns=COLUMNS, lose=10, trouble=TROUBLE) as crew:
        others = [threading.Barrier(WORKERS) for _ in range(STEPS)]

        def one(rank: int) -> list[Floats]:
            found = list[Floats]()
            for step in range(STEPS):
                if k == WORKERS or rank != step % WORKERS:
                    work = crew[rank].reduce_scatter(given(rank, step), op="mean", elastic=True)
                    until(lambda step=step: k == WORKERS or crew[rank].agent.protocol.iteration > 1 + step)
                    assert k == WORKERS or not work.done(), "the call must not end before each worker has its row"
                    others[step].wait(LIMIT_S)
                    found.append(work.result(LIMIT_S))
                else:
                    others[step].wait(LIMIT_S)
                    found.append(scatter(crew[rank], given(rank, step)))
            return found

        all_of(WORKERS, one)
        totals = [each.agent.totals() for each in crew]
        results, received = [each.results for each in crew], [each.receives for each in crew]
        fetches = [each.agent.protocol.statistics.peer_fetches for each in crew]
    assert all(total.conserved for total in totals)
    aggregated = np.sum([each.aggregated for each in totals], axis=0)
    assert np.array_equal(np.sum(received, axis=0), np.ones(len(aggregated)))
    assert np.array_equal(np.sum(results, axis=0), aggregated), "each sum reaches its owner, and counts once"
    assert aggregated.any()
    assert fetches == [0] * WORKERS


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("codec", ["int8", "onebit"])
@pytest.mark.parametrize("k", [2, 3])
def test_real_switches_send_each_worker_its_row(target: str, codec: str, k: int) -> None:
    """Each worker has a namespace. Every aggregated value reaches one of them."""

    def work(communicator: InNetwork) -> tuple[Floats, int]:
        """Return the first row, and the fewest bytes received in a call."""
        rows, came = list[Floats](), [0]
        for step in range(5):
            rows.append(scatter(communicator, array(communicator.rank, step)))
            came.append(communicator.agent.traffic.bytes_received)
        return rows[0], int(np.diff(came).min())

    def array(rank: int, step: int) -> Floats:
        return np.random.default_rng([rank, step]).normal(size=(HOSTS, 15_000)).astype(np.float32)

    with place(target, HOSTS, addresses(HOSTS)) as found, ExitStack() as stack:
        started(target).set_k(k)
        stack.callback(started(target).set_k, HOSTS)
        crew = all_of(HOSTS, lambda rank: stack.enter_context(scattering(found, codec, 15_000, rank, 20.0)))
        came = all_of(HOSTS, lambda rank: work(crew[rank]))
        totals, results = [each.agent.totals() for each in crew], [each.results for each in crew]
        blocks = len(results[0])
    assert all(total.conserved for total in totals)
    assert np.array_equal(np.sum(results, axis=0), np.sum([each.aggregated for each in totals], axis=0))
    if k == HOSTS and codec == "int8":
        mean = np.mean([array(rank, 0) for rank in range(HOSTS)], axis=0)
        assert np.abs(np.stack([row for row, _ in came]) - mean).mean() < 0.05
    answer = HEADER_BYTES + 256 * (2 if codec == "onebit" else 1)
    assert min(down for _, down in came) < blocks * answer, "a worker must receive fewer bytes than all sums have"


def scatter_once(communicator: InNetwork) -> None:
    scatter(communicator, np.ones((communicator.workers, 15_000), np.float32))


def scatters_until_failure(communicator: InNetwork) -> str:
    """Repeat reduce-scatters until one fails and return the error."""

    def scatter_on() -> None:
        while True:
            scatter_once(communicator)

    return error_of(scatter_on)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int8", "onebit"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("dead", [0, 1])
def test_killed_owner_is_named_at_all_workers(codec: str, k: int, dead: int) -> None:
    """The error comes long before any time-out, in any part of a call."""
    with (
        place(MODEL, 3, addresses(3), k=k) as found,
        closing(Processes(partial(scattering, found, codec, 15_000), 3, 20.0)) as crew,
    ):
        crew.run(scatter_once)
        crew.begin(scatters_until_failure)
        time.sleep(0.5)  # until each worker is in some call
        begin = time.monotonic()
        crew.signal(dead, signal.SIGKILL)
        errors = crew.end([rank for rank in range(3) if rank != dead])
        assert time.monotonic() - begin < 5
    assert all(error.startswith(f"worker {dead} is gone: ") for error in errors), errors


def test_restarted_switch_ends_calls_at_once() -> None:
    """Contributions cannot repeat a sum that only its owner may have."""
    with beneath_a_switch(WORKERS, 1, "int8", columns=COLUMNS) as crew:
        works = [each.reduce_scatter(given(rank, 0), op="mean", elastic=True) for rank, each in enumerate(crew[:3])]
        for each in crew[:3]:
            each._loop.run(_regroup(each))
        for rank, work in enumerate(works):
            with pytest.raises(CollectiveError, match=rf"worker {rank} lacks sums of iteration 1, .* restarted"):
                work.result(5)


async def _regroup(communicator: InNetwork) -> None:
    communicator.agent.regroup(1)


@pytest.mark.parametrize("told", [[0], [2], [0, 1, 2, 3]])
def test_lost_slots_end_all_calls_at_all_workers_at_once(told: list[int]) -> None:
    """The error comes long before the time-out, whichever worker hears of it first; one worker makes no call."""
    with beneath_a_switch(WORKERS, 1, "int8", columns=COLUMNS) as crew:
        calls = [each.reduce_scatter(given(rank, 0), op="mean", elastic=True) for rank, each in enumerate(crew[:3])]
        calls += [each.all_gather(ONES) for each in crew[:3]]
        for rank in told:
            crew[rank].lose_slots(7)
        for work in calls:
            with pytest.raises(CollectiveError, match="the switch has restarted: its slots are of generation 7"):
                work.result(10)
        for each in crew:
            assert "generation 7" in error_of(lambda each=each: each.barrier()), "later calls fail"


def test_known_generation_is_not_taken_for_lost_slots() -> None:
    with beneath_a_switch(WORKERS, 1, "int8", columns=COLUMNS) as crew:
        for each in crew:
            each.lose_slots(0)
        all_of(WORKERS, lambda rank: scatter(crew[rank], given(rank, 0)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda one: one.all_reduce(ONES, op="mean", elastic=True), "must be an elastic reduce_scatter(mean), got"),
        (lambda one: one.begin(3, elastic=True), "elastic calls are reduce-scatters"),
        (lambda one: scatter(one, np.ones((4, COLUMNS + 1), np.float32)), "must have at most 5,000"),
        (lambda one: scatter(one, np.full((4, 2), np.nan, np.float32)), "gradient element 0 must be finite"),
    ],
)
def test_invalid_calls_are_refused(call: Callable[[InNetwork], object], words: str) -> None:
    with beneath_a_switch(WORKERS, 1, "int8", columns=COLUMNS) as crew:
        assert words in error_of(lambda: call(crew[0]))


@pytest.mark.slow
def test_more_blocks_than_slots_are_refused() -> None:
    job, compress = JobSection(workers=1, words=1, slots=2, window=1, exact_slots=2), CompressSection(codec="int8")
    own, local = loopback(89, 210), loopback(89, 211)
    with (
        closing(Transport(own, local=local)) as transport,
        pytest.raises(AgentError, match=r"must have at most 2 blocks .job.slots., got 3"),
    ):
        InNetwork(
            0,
            1,
            job=job,
            transport=transport,
            addresses=addresses(1),
            compress=compress,
            rows=BlockRows.of(job, compress, 257),
        )
