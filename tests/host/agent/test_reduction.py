"""The engine thread and the Python path compute the same iteration, bit for bit."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.agent.exchange import Contribution
from kofn_host.agent.gradient_stream import GradientStream
from kofn_host.arrays import Fixed, Floats
from kofn_host.compression.aggregate import Aggregate
from kofn_host.protocol.results import BlockId, Result
from tests.host.agent.test_agent import ELEMENTS, Cluster, give

JOB = JobSection(workers=3, words=1, slots=32, window=8)
ITERATIONS = 4


def gradient(rank: int, iteration: int) -> Floats:
    """Return a gradient whose magnitudes are the same at all workers, so that any first contribution chooses the same
    scale.
    """
    signs = np.random.default_rng([iteration, rank]).choice([-1, 1], ELEMENTS)
    return (signs * np.random.default_rng(iteration).normal(size=ELEMENTS)).astype(np.float32)


def calls_of(cluster: Cluster, rank: int) -> list[Aggregate]:
    """Return the results of all iterations of one worker."""
    found = []
    for iteration in range(1, ITERATIONS + 1):
        _, (aggregate,) = give(cluster.agents[rank], gradient(rank, iteration))
        assert isinstance(aggregate, Aggregate)
        found.append(aggregate)
    return found


def run(
    codec: str, ratio: float, *, native: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[Aggregate]], list[Fixed]]:
    """Return each worker's results, and the final residuals."""
    cluster = Cluster(JOB, k=3, compress=CompressSection(codec=codec, ratio=ratio))
    try:
        for agent in cluster.agents:
            if not native:
                monkeypatch.setattr(agent.encoder, "reduction", lambda iteration: None)
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda rank: calls_of(cluster, rank), range(3)))
        assert all(agent.ledger.accounts.totals().conserved for agent in cluster.agents)
        return found, [agent.ledger.residual.pending.copy() for agent in cluster.agents]
    finally:
        cluster.close()


@pytest.mark.parametrize(("codec", "ratio"), [("int32", 1.0), ("int8", 1.0), ("onebit", 1.0), ("int16", 0.25)])
def test_engine_and_python_compute_the_same_results(codec: str, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, left), (other, also_left) = (
        run(codec, ratio, native=native, monkeypatch=monkeypatch) for native in (True, False)
    )
    for mine, theirs in zip(chain(*one), chain(*other), strict=True):
        assert np.array_equal(mine.mean, theirs.mean)
        assert np.array_equal(mine.checksums, theirs.checksums)
        assert mine.encoding is not None and theirs.encoding is not None
        assert mine.encoding.error_norm == pytest.approx(theirs.encoding.error_norm)
        assert mine.encoding.residual_norm == theirs.encoding.residual_norm
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(left, also_left, strict=True))


def test_python_is_told_of_an_iteration_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, heard = Cluster(JOB, k=3, elements=20_000), list[object]()
    try:
        agent = cluster.agents[0]
        follow = agent._exchanges.driver.follow
        monkeypatch.setattr(
            agent._exchanges.driver, "follow", lambda news, now: (heard.extend(news), follow(news, now))
        )
        values = np.ones(20_000, np.float32)
        with ThreadPoolExecutor() as pool:
            ended = list(pool.map(lambda agent: give(agent, values), cluster.agents))
        assert all(np.array_equal(aggregates[0].mean, values) for _, aggregates in ended)
        assert [type(one).__name__ for one in heard] == ["Complete"]
    finally:
        cluster.close()


def test_engine_waits_while_python_enters_a_late_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks close as soon as the engine reduces. It would settle them while the gradient is partly entered."""
    cluster, holding, entered = Cluster(JOB, k=3), [0], list[bool]()
    try:
        agent = cluster.agents[0]
        held, begin, enter_rest = agent.protocol.held, agent._exchanges.driver._begin_slices, agent.encoder.enter_rest
        blocks = range(agent.encoder.coding.layout.blocks)
        found = [Result(BlockId(1, block), 0, 0, 3, 2, 2 * WEIGHT_UNIT, 6, bytes(256)) for block in blocks]

        @contextlib.contextmanager
        def counted() -> Iterator[None]:
            with held():
                holding[0] += 1
                yield
                holding[0] -= 1

        def closing(iteration: int) -> Iterator[list[int]]:
            slices = begin(iteration)
            agent.protocol.results_in(found, agent.loop.time())
            return slices

        monkeypatch.setattr(agent.protocol, "held", counted)
        monkeypatch.setattr(agent._exchanges.driver, "_begin_slices", closing)
        monkeypatch.setattr(agent.encoder, "enter_rest", lambda: (entered.append(holding[0] > 0), enter_rest()))
        agent.all_reduce(Contribution(gradient(0, 1)))
        assert entered[0]
        assert agent.ledger.accounts.totals().conserved
    finally:
        cluster.close()


def test_python_is_told_at_the_end_about_means_that_have_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, follows = Cluster(JOB, k=3), list[int]()
    try:
        size = cluster.agents[0].encoder.coding.layout.elements
        streams = [GradientStream(np.zeros(ELEMENTS, np.float32), size) for _ in range(3)]
        follow = streams[0].follow
        monkeypatch.setattr(streams[0], "follow", lambda sums: (follows.append(int(sums.closed.sum())), follow(sums)))
        with ThreadPoolExecutor() as pool:
            calls = [
                pool.submit(agent.all_reduce, Contribution(stream=stream))
                for agent, stream in zip(cluster.agents, streams, strict=True)
            ]
            closed = cluster.agents[0]._exchanges.gradient.sums.closed
            for block in range(closed.size):
                times = streams[0].closed_s
                assert times is None or np.isfinite(times).tolist() == closed.tolist()
                for rank, stream in enumerate(streams):
                    stream.pieces.put(block * size, gradient(rank, 1)[block * size : (block + 1) * size])
                cluster.until(lambda block=block: bool(closed[block]))
            for call in calls:
                call.result()
        assert {*follows} <= {0, closed.size}, "follow() may be called only at the beginning and at the end"
    finally:
        cluster.close()


def test_pieces_leave_by_level_and_means_arrive_before_the_end() -> None:
    """Block 3 is put only after the means of blocks 0 to 2 have arrived."""
    cluster = Cluster(JOB, k=3)
    try:
        size = cluster.agents[0].encoder.coding.layout.elements
        streams = [GradientStream(np.zeros(ELEMENTS, np.float32), size) for _ in range(3)]
        with ThreadPoolExecutor() as pool:
            calls = [
                pool.submit(agent.all_reduce, Contribution(stream=stream))
                for agent, stream in zip(cluster.agents, streams, strict=True)
            ]
            for rank, stream in enumerate(streams):
                for begin in (2 * size, 0, size):
                    stream.pieces.put(begin, gradient(rank, 1)[begin : begin + size])
            early = [stream.wait(0, 3 * size, 20).copy() for stream in streams]
            for rank, stream in enumerate(streams):
                stream.pieces.put(3 * size, gradient(rank, 1)[3 * size :])
            means = [call.result().updates[0].mean for call in calls]
        expected = sum(gradient(rank, 1) for rank in range(3)) / 3
        assert all(np.allclose(mean, expected, atol=1e-6) for mean in means)
        assert all(np.array_equal(mean[: 3 * size], first) for mean, first in zip(means, early, strict=True))
    finally:
        cluster.close()


def test_urgent_block_waits_for_one_packet_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet takes 16 ms. The engine chooses a block when the previous one leaves."""
    roomy = JobSection(workers=3, words=1, slots=32, window=16)
    cluster, arrived = Cluster(roomy, k=1, pace_mbps=0.2), list[int]()
    try:
        agent, handle = cluster.agents[0], cluster.switch.model.handle
        monkeypatch.setattr(
            cluster.switch.model,
            "handle",
            lambda header, values: (arrived.append(header.block), handle(header, values))[1],
        )
        size = agent.encoder.coding.layout.elements
        stream = GradientStream(np.zeros(ELEMENTS, np.float32), size)
        with ThreadPoolExecutor() as pool:
            call = pool.submit(agent.all_reduce, Contribution(stream=stream))
            stream.pieces.put(size, gradient(0, 1)[size:])
            cluster.until(lambda: agent.traffic.packets_sent >= 6)
            left = agent.traffic.packets_sent
            stream.pieces.prioritise(0, size, 1)
            stream.pieces.put(0, gradient(0, 1)[:size])
            call.result()
        assert [*dict.fromkeys(arrived)].index(0) <= left + 2, (
            "the first block must be able to overtake those that wait"
        )
    finally:
        cluster.close()
