"""Any input in any order keeps k within 1..live, breaks nothing, and each fault is logged once."""

import asyncio
import logging
import math
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kofn_common.config.errors import ConfigError
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.garbage import SERVER_LOG, GarbageFilter
from kofn_controller.estimate.measurements import AHEAD_MAX, Arrival
from kofn_controller.job.agreement import Agreement, AnnouncedK
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.expected_time import expected_times
from tests.controller.harness import controller

WORKERS = 4

ranks = st.integers(0, WORKERS - 1)
any_rank = st.integers(-2, WORKERS + 2)
iterations = st.integers(0, 40) | st.sampled_from([-1, AHEAD_MAX, AHEAD_MAX + 1, 2**31, 2**32 - 1, 2**63])
durations = st.floats(0, 0.2) | st.floats() | st.sampled_from([0.0, 0.01, 5e-324, 3600.0, -0.0])
norms = st.sampled_from([0.0, 0.0, 1.5, 1e300, 1e100, 5e-324, -0.0, math.nan, math.inf, -1.0])
numbers = st.sampled_from([0.0, 0.0, 0.0, 1.0, 1.5, 4000.0, -0.0, 5e-324, math.nan, math.inf])
reports = st.builds(
    pb.Report,
    iteration=iterations.filter(lambda iteration: 0 <= iteration < 2**32),  # the wire's range
    first_block_s=durations,
    censored=st.booleans(),
    late=st.booleans(),
    gradient_norm2=norms,
    aggregate_norm2=norms,
    gradients=numbers,
    contributors=numbers,
    aggregate_products=st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e100, -1e100, 5e-324, math.nan]), max_size=20).map(
        tuple
    ),
)
arrivals = st.builds(
    Arrival,
    worker=any_rank,
    iteration=iterations,
    verdict=st.sampled_from(["ADDED", "LATE", "STALE", "?"]),
    timestamp_us=st.integers(0, 2**48 - 1),
)
steps = st.one_of(
    st.tuples(st.just("report"), any_rank, reports),
    st.tuples(st.just("report"), ranks, reports),
    st.tuples(st.just("arrival"), st.none(), arrivals),
    st.tuples(st.just("lose"), ranks, st.none()),
    st.tuples(st.just("gain"), ranks, iterations),
    st.tuples(
        st.just("objective"),
        st.none(),
        st.sampled_from(["throughput", "progress", "all", "fixed:1", "fixed:4", "fixed:9", ""]),
    ),
    st.tuples(st.just("wait"), st.none(), st.floats(0, 1) | st.sampled_from([1e-9, 3600.0, 1e6])),
    st.tuples(st.just("rounds"), st.none(), st.integers(1, 20)),
)


class World:
    """A control loop and its clock."""

    def __init__(self, policy: PolicySection) -> None:
        self.control_loop = ControlLoop(workers=WORKERS, policy=policy)
        self.control_loop.measurements.begin(0.0)
        self.now_s = 0.0
        self.random = np.random.default_rng(1)

    def step(self, kind: str, who: Any, what: Any) -> None:
        control_loop = self.control_loop
        if kind == "report":
            control_loop.report(who, what, self.now_s)
        elif kind == "arrival":
            control_loop.measurements.arrival(what, self.now_s)
        elif kind == "lose":
            control_loop.worker_left(who, "lost", self.now_s)
        elif kind == "gain":
            control_loop.worker_joined(who, "is back", self.now_s, what)
        elif kind == "objective":
            self.objective(what)
        elif kind == "wait":
            self.now_s += what
        else:
            self.rounds(what)
        if control_loop.due(self.now_s):
            control_loop.choose(self.now_s)

    def objective(self, text: str) -> None:
        before = self.control_loop.goal
        try:
            self.control_loop.set_objective(text, self.now_s)
        except ConfigError:
            assert text in ("fixed:9", "")
            assert self.control_loop.goal is before

    def rounds(self, count: int) -> None:
        """Add good reports, so that bad ones do not only meet the empty state."""
        for _ in range(count):
            self.now_s += 0.02
            for rank in np.flatnonzero(self.control_loop.live).tolist():
                iteration = self.control_loop.measurements.track(rank).reported + 1
                seconds = 0.01 + 0.005 * float(self.random.poisson(0.2 + 4 * (rank == 1)))
                good = pb.Report(
                    iteration=iteration,
                    first_block_s=seconds,
                    late=rank == 1,
                    iteration_s=0.02,
                    gradient_norm2=2.0,
                    aggregate_norm2=1.0,
                    aggregate_products=(0.9,),
                    gradients=3.0,
                    contributors=2.0,
                )
                self.control_loop.report(rank, good, self.now_s)

    def check(self) -> None:
        """Check the invariants."""
        control_loop = self.control_loop
        live = int(control_loop.live.sum())
        assert 1 <= control_loop.k <= max(live, 1)
        estimate = control_loop.estimate
        if estimate is None:
            return
        assert np.isfinite(estimate.lambda_s).all()
        assert np.isfinite(estimate.event_s) and estimate.event_s > 0
        assert 0 <= estimate.service_s <= 3600
        assert not np.isnan([estimate.low_s, estimate.high_s]).any()
        if live:
            expected = expected_times(estimate, control_loop.live)
            assert np.isfinite(expected).all()
            assert (np.diff(expected) >= -1e-9 * (1 + expected[1:])).all()
        if control_loop.choice is not None:
            forecast = control_loop.choice.forecast
            assert np.isfinite(forecast.worth).all() and (forecast.worth > 0).all()
            assert np.isfinite(forecast.predicted_s).all()


@pytest.mark.slow
@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(steps, max_size=40),
    st.sampled_from(["throughput", "progress", "all", "fixed:2"]),
    st.integers(1, 8),
    st.sampled_from([0, 2]),
)
@pytest.mark.filterwarnings("error")
def test_k_stays_within_the_live_workers(
    caplog: pytest.LogCaptureFixture, taken: list[tuple[str, Any, Any]], objective: str, window: int, include_after: int
) -> None:
    caplog.clear()
    world = World(PolicySection(objective=objective, window=window, warm_up=1, include_after=include_after))
    with caplog.at_level(logging.WARNING):
        for item in taken:
            world.step(*item)
            world.check()
    faults = len(("iteration", "order", "time", "norm", "digest iteration")) * WORKERS + len(
        ("report rank", "digest rank")
    )
    assert len(caplog.messages) <= faults


@pytest.mark.parametrize("bad_s", [math.nan, math.inf, -math.inf, -1.0, 3600.1])
def test_bad_times_change_nothing_and_are_logged_once(bad_s: float, caplog: pytest.LogCaptureFixture) -> None:
    world = World(PolicySection(objective="throughput"))
    world.rounds(10)
    world.control_loop.choose(world.now_s)
    before = world.control_loop.measurements.times_s.copy(), world.control_loop.k
    with caplog.at_level(logging.WARNING):
        for later in range(1, 50):
            assert not world.control_loop.measurements.report(
                2, pb.Report(iteration=10 + later, first_block_s=bad_s), 1.0
            )
    assert len(caplog.messages) == 1
    assert "further ones are only counted" in caplog.messages[0]
    np.testing.assert_array_equal(world.control_loop.measurements.times_s, before[0])
    world.control_loop.choose(world.now_s)
    assert world.control_loop.k == before[1]
    assert world.control_loop.measurements.refused == 49


def test_without_workers_k_is_1_and_nothing_is_decided() -> None:
    world = World(PolicySection(objective="throughput"))
    world.rounds(10)
    for rank in range(WORKERS):
        world.step("lose", rank, None)
    assert world.control_loop.k == 1
    assert world.control_loop.choose(world.now_s) is None
    for text in ("all", "fixed:4", "throughput"):
        world.objective(text)
        assert world.control_loop.k == 1
    world.step("gain", 3, 11)
    world.check()


@pytest.mark.parametrize("decision", [0, 1, 2, 2**32 - 1])
@pytest.mark.parametrize("ks", [(0, 0), (3, 1), (2**32 - 1, 2**32 - 1)])
def test_reported_k_decides_nothing(decision: int, ks: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    agreement = Agreement()
    agreement.confirmed(2)
    live = dict.fromkeys(range(WORKERS), 0)
    with caplog.at_level(logging.ERROR):
        for iteration in range(1, 30):
            for rank in live:
                said = AnnouncedK(iteration=iteration, decision=decision, least=ks[0], most=ks[1])
                agreement.report(rank, said, live, settled=True)
    assert agreement.k == 2
    assert agreement.certain == (1 if decision == 1 else 0)
    assert len(caplog.messages) <= 1


def test_invalid_iteration_time_is_not_measured() -> None:
    world = World(PolicySection(objective="throughput"))
    for iteration, bad_s in enumerate([math.nan, math.inf, -math.inf, -1.0, 1e300, 0.0], start=1):
        report = pb.Report(iteration=iteration, first_block_s=0.01, iteration_s=bad_s)
        assert world.control_loop.report(0, report, 0.02 * iteration)
    assert world.control_loop.overhead_s == 0.0
    world.check()


def test_messages_that_cannot_be_decoded_leave_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(SERVER_LOG)
    for each in [each for each in log.filters if isinstance(each, GarbageFilter)]:
        log.removeFilter(each)

    async def course() -> None:
        async with controller(2) as running:
            for _ in range(5):
                ask: Any = running.channel.unary_unary("/kofn.Inspector/GetStatus")
                with pytest.raises(grpc.aio.AioRpcError):
                    await ask(b"\xff\xff\xff")

    asyncio.run(course())
    found = [record for record in caplog.records if record.name == SERVER_LOG]
    assert len(found) == 1 and found[0].exc_info is None
    assert "a message must have its method's type" in caplog.text
