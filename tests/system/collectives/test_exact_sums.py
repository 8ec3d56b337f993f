"""Exact calls beside elastic ones, with packet loss, and the errors that end them."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from kofn_common.config.job import JobSection
from kofn_common.wire.packet import FORWARDED_PORT, PORT
from kofn_host.collectives import InNetwork
from kofn_host.errors import CollectiveError
from kofn_host.transport.transport import Transport
from tests.loopback import loopback
from tests.system.collectives import scenarios
from tests.system.collectives.crews import Threads, addresses
from tests.system.collectives.scenarios import LIMIT_S, error_of
from tests.system.collectives.switched import HOSTS, MODEL, Place, close_all, place, started
from tests.targets import TARGETS

SHORT_S = 1.0


@pytest.fixture(scope="module", autouse=True)
def end_of_switches() -> Iterator[None]:
    yield
    close_all()


@contextmanager
def team(found: Place, timeout_s: float = 20.0) -> Iterator[Threads]:
    workers = found.job.workers
    with ExitStack() as stack:
        with ThreadPoolExecutor(workers) as pool:
            made = list(pool.map(lambda rank: found.join(rank, timeout_s), range(workers)))
        for communicator in made:
            stack.enter_context(communicator)
        yield Threads(made)


@contextmanager
def on_model(workers: int = 3, timeout_s: float = 20.0, **given: Any) -> Iterator[Threads]:
    with place(MODEL, workers, addresses(workers), **given) as found, team(found, timeout_s) as made:
        yield made


def refusals(found: Place, join: Callable[[int], InNetwork]) -> list[str]:
    """Return by rank the errors with which joining is refused."""

    def refused(rank: int) -> str:
        with pytest.raises(CollectiveError) as error:
            join(rank)
        return str(error.value)

    with ThreadPoolExecutor(found.job.workers) as pool:
        return list(pool.map(refused, range(found.job.workers)))


def elastic(communicator: Any, value: float) -> Any:
    return communicator.all_reduce(np.full(9, value, np.float32), op="mean", elastic=True)


def exact(communicator: Any) -> None:
    scenarios.one_call(communicator)


def test_elastic_and_exact_calls_run_side_by_side() -> None:
    def both(communicator: Any) -> None:
        works = []
        for at in range(20):
            own = scenarios.given(communicator.rank, (3000,), "int64", at)
            works.append((elastic(communicator, at + communicator.rank), communicator.all_reduce(own), own))
        for at, (mean, work, own) in enumerate(works):
            scenarios.same(work.result(LIMIT_S), scenarios.total(communicator, own.shape, "int64", at))
            assert np.allclose(mean.result(LIMIT_S), at + 1)

    with on_model() as made:
        made.run(both)


def test_elastic_and_exact_calls_do_not_wait_for_each_other() -> None:
    """All workers but worker 0 have made a call of one kind, while calls of the other kind complete."""

    def exact_meanwhile(communicator: Any) -> None:
        early = elastic(communicator, 2) if communicator.rank else None
        for _ in range(3):
            exact(communicator)
        assert np.array_equal((early or elastic(communicator, 2)).result(LIMIT_S), np.full(9, 2))

    def elastic_meanwhile(communicator: Any) -> None:
        early = communicator.all_gather(np.int32(5)) if communicator.rank else None
        for _ in range(3):
            assert np.array_equal(elastic(communicator, 2).result(LIMIT_S), np.full(9, 2))
        scenarios.same((early or communicator.all_gather(np.int32(5))).result(LIMIT_S), np.full(3, 5, np.int32))

    with on_model() as made:
        made.run(exact_meanwhile)
        made.run(elastic_meanwhile)


def test_lost_packets_are_retransmitted() -> None:
    with on_model(lose=10) as made:
        for scenario in (scenarios.in_place, scenarios.results_go_where_they_are_asked_to):
            made.run(scenario)


ROW = 300_001
"""Elements of four bytes, in 147 blocks of one worker: more blocks than slots."""


def row(rank: int, size: int = ROW) -> Any:
    return np.random.default_rng(rank).integers(-(1 << 31), 1 << 31, size, np.int32)


def gather_and_spread(communicator: Any, size: int = ROW) -> None:
    """All-gathers, sums and broadcasts use the same slots, in call order."""
    works = []
    for root in range(communicator.workers):
        works.append(communicator.all_gather(row(communicator.rank, size)))
        works.append(communicator.broadcast(row(communicator.rank, size), root=root))
        exact(communicator)
    every = np.stack([row(rank, size) for rank in range(communicator.workers)])
    for root in range(communicator.workers):
        scenarios.same(works[2 * root].result(LIMIT_S), every)
        scenarios.same(works[2 * root + 1].result(LIMIT_S), every[root])


@pytest.mark.slow
@pytest.mark.parametrize("lose", [0, 10])
@pytest.mark.parametrize("workers", [2, 3, pytest.param(5, marks=pytest.mark.long)])
def test_owned_blocks_reach_all_workers(workers: int, lose: int) -> None:
    with on_model(workers, lose=lose) as made:
        made.run(gather_and_spread)


@pytest.mark.parametrize("size", [1, 2_048, 2_049, 5_000])
def test_rows_of_any_size_are_gathered(size: int) -> None:
    with on_model() as made:
        made.run(gather_and_spread, size)


def all_gather(communicator: Any) -> Any:
    return communicator.all_gather(row(communicator.rank))


def reduce_scatter(communicator: Any) -> Any:
    return communicator.reduce_scatter(np.stack([row(communicator.rank)] * communicator.workers))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("call", "sent", "received"), [(all_gather, 1, HOSTS), (reduce_scatter, HOSTS, 1)])
def test_each_link_carries_its_workers_input_and_output(target: str, call: Any, sent: int, received: int) -> None:
    """The socket counters are divided by the bytes of a row; they include headers and retransmissions."""

    def bytes_of(communicator: Any) -> tuple[int, int]:
        before = communicator.agent.traffic
        call(communicator).result(LIMIT_S)
        after = communicator.agent.traffic
        return after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received

    with place(target, HOSTS, addresses(HOSTS)) as found, team(found) as made:
        calls = np.array([made.run(bytes_of) for _ in range(5)]) / (4 * ROW)
    assert (calls >= [sent, received]).all()
    assert (calls.min(0)[:, [sent, received].index(1)] < 1.5).all(), calls  # a PULL after a long silence adds a little


@pytest.mark.parametrize("lose", [0, 10])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_each_row_of_the_sum_reaches_its_worker(dtype: str, lose: int) -> None:
    """Rows of whole blocks, rows with a partial block, and rows so short that every worker gets all of them."""

    def scattered(communicator: Any) -> None:
        n = communicator.workers
        for columns in (8 * 2048, 30_001, 2_500):
            rows = scenarios.given(communicator.rank, (n, columns), dtype)
            total = scenarios.total(communicator, rows.shape, dtype)
            scenarios.same(communicator.reduce_scatter(rows).result(LIMIT_S), total[communicator.rank])

    with on_model(lose=lose) as made:
        made.run(scattered)


@pytest.mark.slow
def test_owner_that_does_not_send_is_named() -> None:
    def gathers(communicator: Any) -> str:
        return error_of(lambda: communicator.all_gather(row(communicator.rank)))

    with place(MODEL, 3, addresses(3)) as found, team(found, SHORT_S) as made:
        hangs: Any = made.communicators[1]
        hangs._exact._contribute = lambda *given: time.sleep(3 * SHORT_S)
        errors = made.run(gathers)
    wrong = "worker 1 has not sent its block 1, or no switch answers"
    assert all(wrong in errors[rank] for rank in (0, 2)), errors


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_gathers_fail_at_all_workers_after_a_slot_restart(target: str) -> None:
    with place(target, 3, addresses(3)) as found, team(found, SHORT_S) as made:
        made.run(gather_and_spread)
        started(target).restart_slots()
        begin = time.monotonic()
        errors = made.run(lambda communicator: error_of(lambda: communicator.all_gather(row(communicator.rank))))
        assert time.monotonic() - begin < 4 * SHORT_S
    assert all(f"no block was summed for {SHORT_S:g} s; worker 0 has not sent" in error for error in errors), errors


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_calls_fail_at_all_workers_after_a_slot_restart_and_a_new_communicator_works(target: str) -> None:
    with place(target, 3, addresses(3)) as found, team(found, SHORT_S) as made:
        made.run(exact)
        started(target).restart_slots()
        begin = time.monotonic()
        errors = made.run(scenarios.calls_until_failure)
        assert time.monotonic() - begin < 4 * SHORT_S
        for error in errors:
            assert f"no block was summed for {SHORT_S:g} s; no answer for block 0, in all_reduce(sum)" in error, errors
    with place(target, 3, addresses(3)) as found, team(found) as made:
        made.run(exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.slow
def test_worker_told_of_a_restart_does_not_wait_for_the_timeout(target: str) -> None:
    with place(target, 3, addresses(3)) as found, team(found) as made:
        made.run(exact)
        started(target).restart_slots()
        works = [communicator.all_gather(row(communicator.rank)) for communicator in made.communicators]
        told: Any = made.communicators[1]
        told.lose_slots(found.generation + 1)
        errors = [error_of(lambda work=work: work.result(LIMIT_S)) for work in works]
    expected = (
        f"the switch has restarted: its slots are of generation {found.generation + 1}; the slots of this communicator,"
    )
    assert all(error.startswith(expected) for error in errors), errors


def test_used_slots_are_refused() -> None:
    """An earlier communicator has used them, and the first iteration does not exceed its iterations."""
    with place(MODEL, 3, addresses(3)) as found:
        with team(found) as made:
            made.run(exact)
            made.run(exact)
        with team(replace(found, addresses=addresses(3))) as made:
            errors = made.run(lambda communicator: error_of(lambda: communicator.all_reduce(np.zeros(5, np.int32))))
        wrong = "iteration 1 is not new to the slots of generation 0: first_iteration must be above all"
        assert all(wrong in error for error in errors), errors
        with team(replace(found, addresses=addresses(3), first_iteration=3)) as made:
            made.run(exact)


@pytest.mark.slow
def test_block_that_others_left_open_is_not_continued() -> None:
    with place(MODEL, 3, addresses(3)) as found:
        with team(found, SHORT_S) as made:
            hangs: Any = made.communicators[1]
            hangs._exact._contribute = lambda *given: time.sleep(2 * SHORT_S)
            made.run(lambda communicator: error_of(lambda: communicator.all_reduce(np.ones(5, np.int32))))
        with team(replace(found, addresses=addresses(3))) as made:
            errors = made.run(lambda communicator: error_of(lambda: communicator.all_reduce(np.zeros(5, np.int32))))
    assert all("iteration 1 is not new to the slots of generation 0" in error for error in errors), errors


def test_switch_that_sums_fewer_workers_is_detected() -> None:
    with on_model(k=2) as made:
        errors = made.run(lambda communicator: error_of(lambda: communicator.all_reduce(np.zeros(5, np.int32))))
    assert all("the switch has summed fewer than the 3 workers" in error for error in errors), errors


def test_workers_with_different_blocks_do_not_join() -> None:
    with place(MODEL, 3, addresses(3)) as found:
        other = replace(found, job=msgspec.structs.replace(found.job, words=4))
        errors = refusals(found, lambda rank: (other if rank == 1 else found).join(rank, SHORT_S))
    for error in errors:
        assert "worker 1 sums in blocks of 4 words in 128 slots of generation 0, from iteration 1 on, worker 0" in error
        assert "in blocks of 32 words in 128 slots of generation 0, from iteration 1 on: all must be the same" in error


def test_missing_worker_is_named_and_nothing_stays_open() -> None:
    with place(MODEL, 2, addresses(2)) as found:
        for _ in range(2):
            transport = Transport(found.service, local=found.locals[1])
            with pytest.raises(CollectiveError, match="worker 0 cannot be reached at "):
                InNetwork(1, 9, job=found.job, transport=transport, addresses=found.addresses, meet_s=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "port", "error"),
    [
        (JobSection(workers=2), PORT, "job.exact_slots must be a power of two, 2 or more, for exact sums, got 0"),
        (JobSection(workers=3, exact_slots=64), PORT, "there must be 3 addresses (job.workers), got 2"),
        (
            JobSection(workers=2, exact_slots=64),
            FORWARDED_PORT,
            "addresses must not be given with a parameter server, which has no exact sums",
        ),
    ],
)
def test_exact_sums_refuse_an_unsuitable_job(job: JobSection, port: int, error: str) -> None:
    transport = Transport(loopback(90, 200), local=loopback(90, 1), port=port)
    with pytest.raises(CollectiveError) as found:
        InNetwork(0, 9, job=job, transport=transport, addresses=addresses(2))
    assert error in str(found.value)
    transport.close()
