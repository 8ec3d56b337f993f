"""Agents exchange UDP packets over loopback with the slot model as their switch; neither root nor a namespace is
needed.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.config.late_rules import LatePolicy, RuleName
from kofn_common.config.model import Average
from kofn_common.wire.packet import HEADER_BYTES, WORD_BYTES, KofnHeader, encode
from kofn_host.agent.agent import Agent
from kofn_host.agent.data_link import IGNORED
from kofn_host.agent.exchange import Contribution
from kofn_host.agent.recorder import Recorder
from kofn_host.arrays import Floats64, Integers
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.job_coding import JobCoding
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.errors import GradientError, ProtocolError
from kofn_host.protocol.instructions import AskPeers
from kofn_host.protocol.results import BlockId, BlockResults, Result
from kofn_host.transport.event_loop import EventLoop
from kofn_host.transport.transport import Transport
from kofn_host.workload.replica import ReplicaState
from tests.host.lab import checksums_of, to_fixed
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.udp_switch import UdpSwitch
from tests.loopback import loopback

SWITCH = loopback(77, 254)
ELEMENTS = 1000
SMALL = JobSection(workers=3, words=1, slots=32, window=8)
ROOMY = JobSection(workers=3, words=1, slots=32, window=16)
"""All blocks fit the window."""


def address(rank: int) -> str:
    return loopback(77, rank + 1)


def give(agent: Agent, gradient: np.ndarray | None, **more: Any) -> tuple[float, list[Aggregate | ReplicaState]]:
    """Return when the gradient was handed over, and the results of the iterations that have ended."""
    exchange = agent.all_reduce(Contribution(gradient, **more))
    assert exchange.handed_s is not None
    return exchange.handed_s, exchange.updates


class Cluster:
    def __init__(
        self,
        job: JobSection,
        k: int,
        lose: int = 0,
        rule: RuleName = "stash",
        weight: float = 1.0,
        average: Average = "gradients",
        compress: CompressSection = CompressSection(),  # noqa: B008  # frozen
        elements: int = ELEMENTS,
        pace_mbps: float = 0.0,
    ) -> None:
        self.switch = UdpSwitch(SlotModel(workers=job.workers, k=k, slots=job.slots), SWITCH, address, lose)
        self.loop = EventLoop()
        self.replica: ReplicaState | None = None
        self.ahead: list[tuple[BlockId, int]] = []
        coding = JobCoding.of(job, compress, elements)
        self.recorders = [Recorder(coding) for _ in range(job.workers)]
        pace = pacing_rate(pace_mbps, job.words)
        self.agents = [
            Agent(
                job,
                Encoder.of(JobCoding.of(job, compress, elements), compress, rank),
                Transport(SWITCH, local=address(rank), pace=pace),
                average=average,
                late_policy=LatePolicy(rule, weight),
                recorder=recorder,
            )
            for rank, recorder in enumerate(self.recorders)
        ]
        for agent in self.agents:
            self.loop.run(agent.start(1, 0, self))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds."""

        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.001)

        self.loop.run(wait())

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        for agent in self.agents:
            yield list(agent.protocol.results(first, last))

    async def state(self) -> ReplicaState | None:
        return self.replica

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        self.ahead.append((block, generation))

    def close(self) -> None:
        for agent in self.agents:
            self.loop.run(agent.close())
        self.switch.close()


@pytest.fixture(
    params=[("fast", 0, 0.0), ("fast", 15, 0.0), ("fast", 15, 4.0), ("scapy", 0, 0.0), ("scapy", 15, 4.0)],
    ids=["fast", "fast-lossy", "fast-lossy-paced", "scapy", "scapy-lossy-paced"],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    packets, lose, pace_mbps = request.param
    job = JobSection(workers=3, words=1, slots=32, window=8, packets=packets)
    running = Cluster(job, k=2, lose=lose, pace_mbps=pace_mbps)
    yield running
    running.close()


@pytest.mark.slow
def test_replicas_get_the_same_means_and_no_gradient_is_lost(cluster: Cluster) -> None:
    iterations = 8

    def work(rank: int) -> dict[int, np.ndarray]:
        numbers = np.random.default_rng(rank)
        means: dict[int, np.ndarray] = {}
        while len(means) < iterations:
            _, aggregates = give(cluster.agents[rank], numbers.normal(size=ELEMENTS).astype(np.float32))
            means |= {aggregate.iteration: aggregate.mean for aggregate in aggregates}
        return means

    with ThreadPoolExecutor() as pool:
        replicas = list(pool.map(work, range(3)))
    for iteration in range(1, iterations + 1):
        assert np.array_equal(replicas[0][iteration], replicas[1][iteration])
        assert np.array_equal(replicas[0][iteration], replicas[2][iteration])
    assert all(agent.ledger.accounts.totals().conserved for agent in cluster.agents)
    if cluster.switch.lose:
        assert sum(agent.protocol.statistics.retransmissions for agent in cluster.agents) > 0


def test_average_is_the_mean_of_the_members_gradients(cluster: Cluster) -> None:
    gradients = np.random.default_rng(1).normal(size=(3, ELEMENTS)).astype(np.float32)
    with ThreadPoolExecutor() as pool:
        (_, (first, *_)), *_ = pool.map(lambda rank: give(cluster.agents[rank], gradients[rank]), range(3))
    assert first.count == len(first.members) == 2
    block = slice(0, 64)
    assert np.allclose(first.mean[block], gradients[first.members][:, block].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(("average", "mean"), [("gradients", 3.0), ("contributors", 4.5)])
def test_average_includes_a_stashed_gradient(average: Average, mean: float) -> None:
    """The second sum contains a gradient of the first iteration: three gradients of two workers."""
    cluster = Cluster(SMALL, k=2, average=average)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rank: give(cluster.agents[rank], np.ones(ELEMENTS, np.float32)), range(2)))
            assert cluster.agents[2].over.wait(30.0)
            (late,) = give(cluster.agents[2], np.full(ELEMENTS, 3, np.float32))[1]
            given = {2: np.full(ELEMENTS, 5, np.float32), 0: np.ones(ELEMENTS, np.float32)}
            (_, (second,)), _ = pool.map(lambda rank: give(cluster.agents[rank], given[rank]), given)
        assert isinstance(late, Aggregate)
        assert isinstance(second, Aggregate)
        assert (late.gradients, late.contributors, late.mean[0]) == (2, 2, 1)
        assert (second.gradients, second.contributors, second.members) == (3, 2, [0, 2])
        assert np.array_equal(second.mean, np.full(ELEMENTS, mean, np.float32))
    finally:
        cluster.close()


def test_bad_gradients_are_refused_before_any_packet_leaves(cluster: Cluster) -> None:
    with pytest.raises(GradientError, match=r"gradient element 7 must be finite and at most .* got nan"):
        gradient = np.zeros(ELEMENTS, np.float32)
        gradient[7] = np.nan
        give(cluster.agents[0], gradient)
    assert cluster.agents[0].traffic.packets_sent == 0


def test_ignored_datagrams_are_logged_by_kind_while_a_worker_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind is logged once."""
    monkeypatch.setattr("kofn_host.agent.iteration_wait.EXPLAIN_AFTER_S", 0.05)
    cluster = Cluster(SMALL, k=3)
    good = encode(KofnHeader(words=1), bytes(WORD_BYTES))
    try:
        with ThreadPoolExecutor() as pool:
            alone = pool.submit(give, cluster.agents[0], np.ones(ELEMENTS, np.float32))
            for datagram in 2 * [b"x", bytes([good[0] ^ 0x80]) + good[1:], good + b"x", good[:-1] + b"x"]:
                cluster.switch.send(0, datagram)
            cluster.until(lambda: "checksum" in caplog.text)
            list(pool.map(lambda rank: give(cluster.agents[rank], np.ones(ELEMENTS, np.float32)), (1, 2)))
            alone.result()
    finally:
        cluster.close()
    ignored = [record.getMessage() for record in caplog.records if record.getMessage().startswith("ignored: ")]
    assert [message.split(" (")[0].removeprefix("ignored: ") for message in ignored] == list(IGNORED.values())
    assert cluster.agents[0].statistics()["checksum_errors"] == 2


def test_protocol_errors_of_the_background_reach_the_training_thread() -> None:
    running = Cluster(JobSection(workers=3, words=1, slots=32, window=8), k=2)
    try:
        for slot in running.switch.model.slots:  # whichever slot block 0 has
            slot.block_id, slot.members, slot.count, slot.format = (0, 1, 0), 2, 1, (0, 4, 0)
        with pytest.raises(ProtocolError, match="another number of words"):
            give(running.agents[0], np.zeros(ELEMENTS, np.float32))
    finally:
        running.close()


def test_late_worker_is_told_at_once_and_may_give_up() -> None:
    cluster = Cluster(SMALL, k=2, rule="abort")
    gradient, late = np.ones(ELEMENTS, np.float32), cluster.agents[2]
    try:
        with ThreadPoolExecutor() as pool:
            told = pool.submit(late.over.wait, 30.0)
            list(pool.map(lambda rank: give(cluster.agents[rank], gradient), range(2)))
            assert told.result(), "the end is announced while the worker computes"
            (skipped,) = late.skip()
            assert isinstance(skipped, Aggregate)
            assert (skipped.iteration, skipped.late, skipped.missed) == (1, True, 16)
            assert late.traffic.packets_sent == 0
            assert not late.over.is_set(), "the next iteration continues"
            (_, (joined,)), _ = pool.map(lambda rank: give(cluster.agents[rank], gradient), (2, 0))
        assert isinstance(joined, Aggregate)
        assert (joined.iteration, joined.members, joined.late) == (2, [0, 2], False)
        totals = late.ledger.accounts.totals()
        assert np.array_equal(totals.gradients, checksums_of(late.ledger, to_fixed(gradient))), (
            "the ledger has no gradient that was given up"
        )
        assert np.array_equal(totals.aggregated, totals.gradients)
    finally:
        cluster.close()


def test_late_gradient_is_discarded_under_the_rule_drop() -> None:
    cluster = Cluster(SMALL, k=2, rule="drop")
    gradient, late = np.ones(ELEMENTS, np.float32), cluster.agents[2]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rank: give(cluster.agents[rank], gradient), range(2)))
            assert late.over.wait(30.0)
            give(late, gradient)
            assert np.array_equal(
                late.ledger.accounts.totals().discarded, checksums_of(late.ledger, to_fixed(gradient))
            )
            (_, (second,)), _ = pool.map(lambda rank: give(cluster.agents[rank], gradient), (2, 0))
        assert isinstance(second, Aggregate)
        assert np.array_equal(second.mean, gradient), "the second mean has no value of the first iteration"
        totals = late.ledger.accounts.totals()
        assert totals.conserved
        assert not late.ledger.residual.pending.any()
    finally:
        cluster.close()


@pytest.mark.parametrize(("k", "kept"), [(3, [4]), (2, [1, 2, 3, 4])])
def test_sums_are_kept_for_workers_that_may_lack_them(k: int, kept: list[int]) -> None:
    """A worker that contributed to a sum has all sums of earlier iterations."""
    cluster = Cluster(SMALL, k=k)
    gradient = np.ones(ELEMENTS, np.float32)
    try:
        with ThreadPoolExecutor() as pool:
            for _ in range(4):
                list(pool.map(lambda rank: give(cluster.agents[rank], gradient), range(k)))
        for agent in cluster.agents[:k]:
            assert sorted({result.id.iteration for result in agent.held(1, 4) if result.values}) == kept
            assert {result.id.iteration for result in agent.held(1, 4)} == {1, 2, 3, 4}, (
                "the agent still has the results of these iterations"
            )
    finally:
        cluster.close()


@pytest.mark.parametrize("rule", ["stash", "merge", "drop"])
def test_worker_that_was_away_too_long_takes_a_replica(monkeypatch: pytest.MonkeyPatch, rule: RuleName) -> None:
    """The peers have forgotten the sums, but not their members."""
    monkeypatch.setattr("kofn_host.agent.missed_results.KEEP_BYTES", 1)
    cluster = Cluster(ROOMY, k=2, rule=rule)
    gradient = np.ones(ELEMENTS, np.float32)
    try:
        cluster.switch.kept[2] = []
        with ThreadPoolExecutor() as pool:
            for _ in range(12):
                list(pool.map(lambda rank: give(cluster.agents[rank], gradient), range(2)))
        plan = cluster.agents[2].encoder.plan.to_arrays()
        cluster.replica = ReplicaState(iteration=12, arrays={"parameters": gradient, **plan})
        del cluster.switch.kept[2]
        late = cluster.agents[2]
        _, updates = give(late, gradient)
        assert updates[0] is cluster.replica
        assert late.iteration == 13
        assert late.protocol.statistics.resyncs == 1
        assert late.ledger.accounts.totals().conserved
        totals = late.ledger.accounts.totals()
        kept = totals.discarded if rule == "drop" else totals.pending
        assert np.array_equal(kept, checksums_of(late.ledger, to_fixed(gradient))), (
            "the late gradient must be neither lost nor discarded"
        )
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rank: give(cluster.agents[rank], gradient), (2, 0)))
        assert np.all(late.ledger.residual.pending == 0), "all of its gradients are aggregated in the end"
    finally:
        cluster.close()


COMPRESSED = [
    CompressSection(codec="int16", ratio=0.25, max_send_interval=4),
    CompressSection(codec="int8", rounding="stochastic"),
    CompressSection(codec="onebit", error_feedback=False),
    CompressSection(codec="auto", ratio=0.1, ratio_control="deliverable"),
]


@pytest.mark.slow
@pytest.mark.parametrize("compress", COMPRESSED, ids=lambda compress: compress.codec)
def test_rejoining_worker_continues_with_its_peers_plan(tmp_path: Path, compress: CompressSection) -> None:
    """Its ledger holds what it sent and in which lanes. Packets are lost throughout."""
    job = JobSection(workers=3, words=8 if compress.codec == "auto" else 1, slots=32, window=8)
    cluster = Cluster(job, k=2, lose=10, compress=compress)
    numbers, means = np.random.default_rng(5), dict[int, np.ndarray]()

    def train(rank: int, until: int) -> None:
        agent = cluster.agents[rank]
        while agent.iteration < until:
            for update in give(agent, numbers.normal(size=ELEMENTS).astype(np.float32))[1]:
                assert isinstance(update, Aggregate)
                assert np.array_equal(update.mean, means.setdefault(update.iteration, update.mean))

    def iterate(*ranks: int) -> None:
        """Run some iterations; the remaining workers follow later."""
        until = cluster.agents[0].iteration + 3
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rank: train(rank, until), ranks))

    def comes(state: ReplicaState | None) -> Agent:
        transport = Transport(SWITCH, local=address(2))
        coding = JobCoding.of(job, compress, ELEMENTS)
        agent = Agent(job, Encoder.of(coding, compress, 2, job=job.id, file=tmp_path / "ledger"), transport)
        begun = agent.ledger.begun
        for result in cluster.agents[0].protocol.results(begun - 1, begun):
            agent.ledger.settle_results(result)
        assert agent.ledger.sent.unsettled(begun) == []
        cluster.loop.run(agent.start(1 if state is None else state.iteration + 1, 0, cluster, state=state))
        return agent

    try:
        cluster.loop.run(cluster.agents[2].close())
        state = None
        for _ in range(3):
            cluster.agents[2] = comes(state)
            iterate(0, 2)
            train(1, cluster.agents[0].iteration)
            iterate(0, 1, 2)
            cluster.loop.run(cluster.agents[2].close())
            iterate(0, 1)
            first = cluster.agents[0]
            state = ReplicaState(iteration=first.iteration - 1, arrays={**first.encoder.plan.to_arrays()})
        plans = [agent.encoder.plan.to_arrays() for agent in cluster.agents[:2]]
        assert all(np.array_equal(plans[0][name], plans[1][name]) for name in plans[0])
        assert all(agent.ledger.accounts.totals().conserved for agent in cluster.agents)
        assert cluster.agents[2].ledger.accounts.totals().aggregated.any()
    finally:
        cluster.close()


def test_rejoining_worker_takes_results_of_its_iteration_from_peers() -> None:
    """The switch may have lost the slots meanwhile and would sum the blocks a second time."""
    cluster = Cluster(ROOMY, k=2)
    gradient = np.ones(ELEMENTS, np.float32)
    try:
        cluster.loop.run(cluster.agents[2].close())
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda rank: give(cluster.agents[rank], gradient), range(2)))
        coding, transport = JobCoding.of(ROOMY, CompressSection(), ELEMENTS), Transport(SWITCH, local=address(2))
        cluster.agents[2] = back = Agent(ROOMY, Encoder.of(coding, CompressSection(), 2), transport)
        before = ReplicaState(iteration=0, arrays={**back.encoder.plan.to_arrays()})

        async def ask() -> ReplicaState:
            return before

        cluster.loop.run(back.join_running(0, cluster, ask))
        assert (back.protocol.iteration, back.protocol.missing) == (1, [])
        assert back.traffic.packets_sent == 0, "the worker must not send to the switch"
        (update,) = back.catch_up() or back.skip()
        assert isinstance(update, Aggregate)
        assert (update.iteration, update.members) == (1, [0, 1])
    finally:
        cluster.close()


def test_gradient_is_pending_after_peers_repeat_a_sum_without_the_rejoined_worker(tmp_path: Path) -> None:
    """Only this worker had received the sum that the switch lost. It rejoins before its peers repeat the sum."""
    cluster = Cluster(ROOMY, k=2)
    gradient = np.ones(ELEMENTS, np.float32)
    coding = JobCoding.of(ROOMY, CompressSection(), ELEMENTS)

    def started() -> Agent:
        transport = Transport(SWITCH, local=address(2))
        return Agent(ROOMY, Encoder.of(coding, CompressSection(), 2, job=ROOMY.id, file=tmp_path / "ledger"), transport)

    async def first() -> ReplicaState:
        return ReplicaState(iteration=0, arrays={**cluster.agents[2].encoder.plan.to_arrays()})

    async def regroup() -> None:
        for agent in cluster.agents[:2]:
            agent.regroup(1)
        for agent in cluster.agents[:2]:
            await agent.resume(1)

    try:
        cluster.loop.run(cluster.agents[2].close())
        cluster.agents[2] = heard = started()
        cluster.loop.run(heard.start(1, 0, cluster))
        cluster.switch.kept = {0: [], 1: []}
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(give, cluster.agents[0], gradient)
            _, (aggregate, *_) = give(heard, 3 * gradient)
            assert isinstance(aggregate, Aggregate)
            assert aggregate.members == [0, 2]
            cluster.loop.run(heard.close())
            cluster.switch.model = SlotModel(workers=3, k=2, slots=ROOMY.slots)
            cluster.switch.model.generation = 1
            cluster.switch.kept = {}
            cluster.agents[2] = back = started()
            cluster.loop.run(back.join_running(1, cluster, first))
            assert (back.account().summed, len(back.protocol.missing)) == (1, 16)
            cluster.loop.run(regroup())
            give(cluster.agents[1], gradient)
            waits.result()
        (again,) = back.catch_up() or back.skip()
        assert isinstance(again, Aggregate)
        assert again.members == [0, 1]
        assert (back.account().summed, back.account().waiting) == (0, 1)
        assert back.ledger.accounts.totals().conserved
    finally:
        cluster.close()


def test_all_workers_follow_one_that_narrows_its_lanes_in_mid_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker's rate drops after the third block. It sends its remaining blocks in 8 bits and tells the others."""
    job = JobSection(workers=3, words=8, slots=32, window=2)
    compress = CompressSection(codec="auto", ratio_control="deliverable")
    # slow enough for the worker to narrow its lanes
    cluster = Cluster(job, k=3, compress=compress, elements=30_000, pace_mbps=10.0)
    slow, settle = cluster.agents[1].encoder, cluster.agents[1].encoder.settle

    def settled(results: BlockResults, hints: Integers, times: Floats64) -> None:
        settle(results, np.where(results.blocks == 2, 2, hints), times)

    monkeypatch.setattr(slow, "settle", settled)
    gradients = np.random.default_rng(2).normal(size=(3, 30_000)).astype(np.float32)
    try:
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda rank: give(cluster.agents[rank], gradients[rank]), range(3)))
        lanes = [result.lanes for result in cluster.agents[0].protocol.results(1, 1)]
        assert lanes[:3] == [0, 0, 0]
        assert lanes[-2:] == [2, 0], "in the end all blocks but the summary block are narrow"
        assert all(np.array_equal(updates[0].mean, found[0][1][0].mean) for _, updates in found)
        assert all(agent.ledger.accounts.totals().conserved for agent in cluster.agents)
    finally:
        cluster.close()


def test_bytes_of_an_iteration_are_the_sent_values_bytes() -> None:
    cluster = Cluster(SMALL, k=1)
    try:
        agent, before = cluster.agents[0], 0
        for _ in range(3):
            _, (aggregate,) = give(agent, np.ones(ELEMENTS, np.float32))
            traffic = agent.traffic
            after = traffic.bytes_sent - HEADER_BYTES * traffic.packets_sent
            assert isinstance(aggregate, Aggregate)
            assert aggregate.encoding is not None
            assert aggregate.encoding.wire_bytes == after - before >= 16 * WORD_BYTES
            before = after
    finally:
        cluster.close()


def test_blocks_beyond_the_window_are_encoded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is encoded separately. Nothing is answered, so one window leaves and one more block is encoded and
    waits.
    """
    monkeypatch.setattr("kofn_host.compression.encoder.AHEAD", 1)
    cluster = Cluster(SMALL, k=3)
    try:
        agent, gradient = cluster.agents[0], np.ones(ELEMENTS, np.float32)
        with ThreadPoolExecutor() as pool:
            alone = pool.submit(agent.all_reduce, Contribution(gradient))
            while agent.protocol.statistics.retransmissions < 3:
                time.sleep(0.01)
            encoded = int((agent.ledger.sent.whole(1)[0] > 0).any(axis=1).sum())
            others = [pool.submit(other.all_reduce, Contribution(gradient)) for other in cluster.agents[1:]]
            means = [call.result().updates[0].mean for call in (alone, *others)]
        assert all(np.allclose(mean, 1.0, atol=1e-6) for mean in means)
        assert encoded == SMALL.window + 1
    finally:
        cluster.close()


def test_error_while_encoding_a_slice_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first slice leaves. The second is encoded when its answers arrive, by a codec that fails."""

    def slices(iteration: int) -> Iterator[list[int]]:
        yield from itertools.islice(whole(iteration), 2)
        raise ZeroDivisionError("a codec of one's own")

    monkeypatch.setattr("kofn_host.compression.encoder.SLICE", 1)
    cluster = Cluster(JobSection(workers=3, words=1, slots=32, window=1), k=1)
    try:
        whole = cluster.agents[0].encoder.slices
        monkeypatch.setattr(cluster.agents[0].encoder, "reduction", lambda iteration: None)
        monkeypatch.setattr(cluster.agents[0].encoder, "slices", slices)
        with pytest.raises(ZeroDivisionError, match="own"):
            give(cluster.agents[0], np.ones(ELEMENTS, np.float32))
    finally:
        cluster.close()


def test_slice_left_from_an_earlier_iteration_is_not_encoded_but_stays_in_the_ledger() -> None:
    cluster = Cluster(SMALL, k=3)
    try:
        agent, gradient = cluster.agents[0], np.ones(ELEMENTS, np.float32)

        async def jump() -> bool:
            agent.encoder.enter(gradient, 1)
            agent._exchanges.driver._slices = iter([[0]])
            agent._exchanges._begin(5)
            agent._exchanges._begin(6)
            return agent._exchanges.driver._slices is not None

        assert not cluster.loop.run(jump())
        assert np.array_equal(agent.ledger.residual.pending.ravel()[:ELEMENTS], to_fixed(gradient))
        assert agent.ledger.entered == 1
    finally:
        cluster.close()


def test_slot_ahead_of_all_workers_is_reported_and_a_new_generation_ends_the_wait() -> None:
    cluster = Cluster(SMALL, k=3)
    try:
        cluster.switch.model.slots[1].block_id = (0, 20, 5)  # as a damaged packet leaves it
        with ThreadPoolExecutor(3) as pool:
            calls = [
                pool.submit(give, agent, np.full(ELEMENTS, rank, np.float32))
                for rank, agent in enumerate(cluster.agents)
            ]
            cluster.until(lambda: len(cluster.ahead) >= 3)
            assert {*cluster.ahead} == {(BlockId(1, 1), 0)}

            async def regroup() -> None:
                for agent in cluster.agents:
                    agent.regroup(1)
                cluster.switch.model.generation = 1
                for agent in cluster.agents:
                    await agent.resume(1)

            cluster.loop.run(regroup())
            means = [call.result()[1][0].mean for call in calls]
        assert all(np.allclose(mean, 1.0, atol=1e-6) for mean in means)
    finally:
        cluster.close()


def test_slot_of_an_earlier_generation_is_not_reported() -> None:
    """A second generation for one damaged packet would interrupt the job again."""
    cluster = Cluster(SMALL, k=3)
    agent = cluster.agents[0]
    try:
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(give, agent, np.ones(ELEMENTS, np.float32))]
            cluster.until(lambda: agent.protocol.iteration == 1)

            async def regroup() -> None:
                missed = agent._exchanges.missed
                missed.ask([AskPeers(id=BlockId(1, 1), stale_in=0)])
                for each in cluster.agents:
                    each.regroup(1)
                assert missed._fetching is not None
                await missed._fetching
                assert not cluster.ahead
                missed.ask([AskPeers(id=BlockId(1, 1), stale_in=1)])
                await missed._fetching
                assert cluster.ahead == [(BlockId(1, 1), 1)]
                cluster.switch.model.generation = 1
                for each in cluster.agents:
                    await each.resume(1)

            cluster.loop.run(regroup())
            calls += [pool.submit(give, each, np.ones(ELEMENTS, np.float32)) for each in cluster.agents[1:]]
            assert all(np.allclose(call.result()[1][0].mean, 1.0, atol=1e-6) for call in calls)
    finally:
        cluster.close()
