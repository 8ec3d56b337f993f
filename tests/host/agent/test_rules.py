"""Each rule treats late gradients as documented. Real agents exchange UDP packets over loopback; the slot model is
their switch.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kofn_common.config.compress import CompressSection
from kofn_common.config.late_rules import RULES, LatePolicy, RuleName
from kofn_common.results.account import Account
from kofn_common.wire.packet import KofnHeader
from kofn_common.wire.sizes import PARTS
from kofn_host.agent.agent import Agent
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.encoder import SLICE, Encoder
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.protocol.slots import Answer
from kofn_host.training.attempts import Attempts
from kofn_host.transport.transport import Transport
from tests.host.agent.test_agent import ELEMENTS, ROOMY, SMALL, SWITCH, Cluster, address
from tests.host.agent.test_agent import give as hand_over
from tests.host.lab import add, checksums_of, to_fixed


@contextmanager
def running(*given: Any, **more: Any) -> Iterator[Cluster]:
    cluster = Cluster(*given, **more)
    try:
        yield cluster
    finally:
        cluster.close()


def full(value: float, elements: int = ELEMENTS) -> np.ndarray:
    return np.full(elements, value, np.float32)


def give(cluster: Cluster, values: dict[int, float], elements: int = ELEMENTS) -> list[list[Aggregate]]:
    """Hand these values over together and return the results of each worker's call."""
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(hand_over, cluster.agents[rank], full(value, elements)) for rank, value in values.items()]
        return [aggregates(call.result()[1]) for call in calls]


def aggregates(updates: Sequence[Update]) -> list[Aggregate]:
    assert all(isinstance(update, Aggregate) for update in updates)
    return updates  # type: ignore[return-value]


def iterations(updates: Sequence[Update]) -> list[int]:
    return [update.iteration for update in updates]


def heard(cluster: Cluster, rank: int, last: int) -> None:
    """Wait until a worker has all results up to this iteration, in the background."""
    agent = cluster.agents[rank]
    cluster.until(lambda: sum(1 for _ in agent.held(last, last)) == agent.encoder.ledger.blocks)


def has_sent(cluster: Cluster, rank: int, iteration: int, part: int) -> None:
    """Wait until the switch has this part of each block."""

    def everywhere() -> bool:
        slots = [slot for slot in cluster.switch.model.slots if slot.block_id[1] == iteration]
        return len(slots) == 16 and all(slot.members >> 64 * part + rank & 1 for slot in slots)

    cluster.until(everywhere)


def account(agent: Agent) -> Account:
    """Return the account after the last results have been settled in the ledger."""
    return agent.ledger.accounts.account()


# -- all rules


def train(agent: Agent, last: int, *, slow: bool) -> dict[int, np.ndarray]:
    """Train until iteration `last` and return each iteration's mean; a slow worker is always late."""
    numbers, means = np.random.default_rng(agent.ledger.rank), dict[int, np.ndarray]()

    def hear(updates: Sequence[Update]) -> bool:
        nonlocal means
        means |= {update.iteration: update.mean for update in aggregates(updates)}
        return max(means, default=0) < last

    while max(means, default=0) < last:
        begun, attempts, updates = agent.iteration, Attempts(), list[Update]()
        while not updates:
            gradient = numbers.normal(size=ELEMENTS).astype(np.float32)
            if slow:
                agent.over.wait(0.5)  # times out only where the results that it waits for are lost
            if agent.rule.gives_up and agent.over.is_set():
                updates = agent.skip()
            else:
                given = Contribution(gradient, begun, attempts.batch, stays=attempts.repeats(agent.rule))
                updates = agent.all_reduce(given, lambda exchange: hear(exchange.ended)).updates
                attempts.again()
            hear(updates)
    return means


@pytest.mark.slow
@pytest.mark.parametrize("lose", [0, 15], ids=["all-arrives", "lossy"])
@pytest.mark.parametrize("rule", RULES)
def test_replicas_get_the_same_means_and_no_gradient_is_lost(rule: RuleName, lose: int) -> None:
    """One worker is late in every iteration."""
    last = 10
    with running(SMALL, k=2, lose=lose, rule=rule, weight=0.5) as cluster:
        with ThreadPoolExecutor() as pool:
            calls = [pool.submit(train, agent, last, slow=agent is cluster.agents[2]) for agent in cluster.agents]
            replicas = [call.result() for call in calls]
        for iteration in range(1, last + 1):
            means = [replica[iteration] for replica in replicas]
            assert all(np.array_equal(mean, means[0]) for mean in means)
        assert all(agent.ledger.accounts.totals().conserved for agent in cluster.agents)
        quick, _, slow = (account(agent) for agent in cluster.agents)
        assert quick.summed > 0
        if lose:
            return
        assert (slow.entered > 0) == (not RULES[rule].gives_up), "the ledger has no gradient that was given up"
        if rule == "stash":
            assert slow.summed == 0, "the slow worker is never in time, so none of its gradients is in a sum"
        if rule == "drop":
            assert slow.discarded == slow.entered


# -- merge


def test_late_gradient_is_merged_into_the_open_iteration_beside_its_workers_own() -> None:
    """It is three iterations old, so it has an eighth of its weight. It is not counted among the k = 2."""
    with running(ROOMY, k=2, rule="merge", weight=0.5) as cluster:
        for _ in range(3):
            give(cluster, {0: 1, 1: 1})
        heard(cluster, 2, 3)
        late = cluster.agents[2]
        heard_of = list[tuple[list[int], list[int]]]()

        def stop(exchange: Exchange) -> bool:
            heard_of.append((iterations(exchange.missed), iterations(exchange.ended)))
            return False

        exchange = late.all_reduce(Contribution(full(8)), stop)
        assert heard_of == [([], [1, 2, 3])]
        assert (exchange.handed_s, iterations(exchange.missed)) == (None, [1, 2, 3]), (
            "the exchange returns without sending, because the training may end here"
        )
        assert account(late).entered == late.traffic.packets_sent == 0
        exchange = late.all_reduce(Contribution(full(8), begun=1))
        assert (exchange.handed_s is None, exchange.updates) == (False, []), "the second call sends its gradient"
        assert exchange.age == 3
        assert (late.iteration, late.over.is_set()) == (4, False)
        assert (late.ledger.accounts.unsent(4) == 0).all()
        before = account(late)
        assert (before.waiting, before.discarded, before.late_since) == (1 / 8, 7 / 8, 1)
        (fourth,), _ = give(cluster, {2: 5, 0: 1})
        assert (fourth.count, fourth.members, fourth.missed) == (2, [0, 2], 0)
        assert (fourth.contributors, fourth.gradients) == (2, 2 + 1 / 8)
        assert fourth.mean[0] == pytest.approx((5 + 1 + 8 / 8) / (2 + 1 / 8))
        (result, *_) = late.held(4, 4)
        assert result.has(2) and result.has(2, 1) and result.addends == 3
        after = account(late)
        assert (after.entered, after.summed, after.waiting, after.late_since) == (2, 1 + 1 / 8, 0, 0)


@pytest.mark.slow
def test_merged_blocks_that_wait_for_the_window_do_not_hold_back_their_workers_own() -> None:
    """The k = 2 of the second iteration are worker 0, and worker 2 with more merged blocks than it encodes ahead."""
    elements = 2 * SLICE
    with running(SMALL, k=2, rule="merge", elements=elements) as cluster:
        give(cluster, {0: 1, 1: 1}, elements)
        heard(cluster, 2, 1)
        late = cluster.agents[2]
        exchange = late.all_reduce(Contribution(full(8, elements)), lambda _: False)
        assert iterations(exchange.missed) == [1]
        assert late.all_reduce(Contribution(full(8, elements), begun=1)).age == 1
        (second,), _ = give(cluster, {2: 5, 0: 1}, elements)
        assert second.members == [0, 2]


def test_waiting_gradient_is_merged_in_the_background_during_the_next_computation() -> None:
    """Worker 2 sends in time, but is the third; its gradient enters the sum of the iteration after the next."""
    with running(ROOMY, k=2, rule="merge", weight=0.5) as cluster:
        late = cluster.agents[2]
        cluster.switch.kept[2] = []
        give(cluster, {0: 1, 1: 1})
        with ThreadPoolExecutor() as pool:
            call = pool.submit(late.all_reduce, Contribution(full(8)))
            cluster.until(lambda: late.traffic.packets_sent >= 16)
            cluster.switch.send_kept(2)
            assert [(one.iteration, one.late) for one in aggregates(call.result().updates)] == [(1, True)]
        assert (account(late).waiting, account(late).late_since) == (1 / 2, 1), (
            "the gradient is pending, and late since iteration 1"
        )
        give(cluster, {0: 1, 1: 1})
        has_sent(cluster, 2, 3, part=1)
        assert (late.iteration, late.over.is_set()) == (2, True), "the training thread has not been told yet"
        assert late.protocol.iteration == 3
        (third,), _ = give(cluster, {0: 2, 1: 2})
        assert (third.contributors, third.gradients, third.members) == (2, 2 + 1 / 4, [0, 1, 2])
        assert third.mean[0] == pytest.approx((2 + 2 + 8 / 4) / (2 + 1 / 4))
        cluster.until(lambda: account(late).waiting == 0)
        assert late.protocol.iteration == 3, "without pending gradients it must not join the next iteration"
        _, updates = hand_over(late, full(4))
        assert iterations(updates) == [2, 3]
        assert account(late).late_since == 2


def test_gradient_waits_for_at_most_three_iterations_while_its_worker_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has a gradient in every fourth iteration. Its packets are lost in that iteration and the next one."""
    with running(ROOMY, k=2, rule="merge") as cluster:
        late, handle, lost = cluster.agents[2], cluster.switch.model.handle, set[int]()

        def lossy(header: KofnHeader, values: bytes) -> list[Answer]:
            return [] if header.part and header.iteration in lost else handle(header, values)

        monkeypatch.setattr(cluster.switch.model, "handle", lossy)
        give(cluster, {0: 1, 1: 1})
        waits = longest = 0
        for iteration in range(2, 22):
            heard(cluster, 2, iteration - 1)
            if iteration % 4 == 2:
                lost |= {iteration, iteration + 1}
                hand_over(late, full(8))
            give(cluster, {0: 1, 1: 1})
            cluster.until(lambda last=iteration: late.protocol.iteration > last or account(late).waiting == 0)
            waits = waits + 1 if account(late).waiting else 0
            longest = max(waits, longest)
        assert account(late).summed == account(late).entered == 5
        assert longest == 2, "a pending gradient is in a sum after two iterations"


def test_with_k_n_a_late_gradient_travels_with_the_counted_one() -> None:
    """A sum of three workers has room for three contributions; a merged one would take the place of a counted one."""
    with running(ROOMY, k=2, rule="merge") as cluster:
        late = cluster.agents[2]
        give(cluster, {0: 1, 1: 1})
        heard(cluster, 2, 1)
        cluster.switch.model.k = 3
        hand_over(late, full(8))
        (second,), *_ = give(cluster, {0: 1, 1: 2, 2: 3})
        assert (second.contributors, second.gradients, second.mean[0]) == (3, 3, 2), "the packet was sent when k was 2"
        assert account(late).waiting == 1
        assert late.ledger.sent.free == 1, "no contribution to the third iteration is in flight"
        (third,), *_ = give(cluster, {0: 1, 1: 2, 2: 3})
        assert (third.contributors, third.gradients, third.mean[0]) == (3, 4, (1 + 2 + 3 + 8) / 4)


# -- async


def test_late_gradient_counts_among_the_k_of_the_open_iteration() -> None:
    """Each call first returns the iterations that have ended. Once none is missed, the gradient is sent and the call
    waits.
    """
    with running(ROOMY, k=2, rule="async", weight=0.5) as cluster:
        late = cluster.agents[2]
        for iteration in (1, 2):
            give(cluster, {0: 1, 1: 1})
            heard(cluster, 2, iteration)
            exchange = late.all_reduce(Contribution(full(8), begun=1), lambda _: False)
            assert (exchange.handed_s, iterations(exchange.missed)) == (None, [iteration])
            assert late.iteration == iteration + 1
        assert account(late).entered == late.traffic.packets_sent == 0
        with ThreadPoolExecutor() as pool:
            calls = (
                pool.submit(late.all_reduce, Contribution(full(8), begun=1)),
                pool.submit(cluster.agents[0].all_reduce, Contribution(full(2))),
            )
            exchange, other = (call.result() for call in calls)
        (third,), (same,) = aggregates(exchange.updates), aggregates(other.updates)
        assert (third.count, third.contributors, third.gradients, third.members) == (2, 2, 1.25, [0, 2])
        assert third.mean[0] == pytest.approx((2 + 8 / 4) / 1.25)
        assert np.array_equal(third.mean, same.mean)
        assert (third.late, exchange.age, late.iteration) == (False, 2, 4)
        assert (account(late).summed, account(late).waiting) == (0.25, 0)


# -- batch-sync


def test_one_worker_can_complete_an_iteration_alone() -> None:
    """Two of its gradients are in two parts of each block; the others give up."""
    with running(ROOMY, k=2, rule="batch-sync") as cluster:
        quick, others = cluster.agents[0], cluster.agents[1:]
        assert quick.all_reduce(Contribution(full(1), stays=True)).updates == []
        assert not quick.over.is_set()
        updates = quick.all_reduce(Contribution(full(3), batch=1, stays=True)).updates
        (first,) = aggregates(updates or quick.skip())
        assert (first.count, first.contributors, first.gradients, first.members) == (2, 2, 2, [0])
        assert first.mean[0] == 2
        assert account(quick).summed == 2
        for other in others:
            assert other.over.wait(30.0)
            (same,) = aggregates(other.skip())
            assert np.array_equal(same.mean, first.mean)
            assert (same.late, account(other).entered) == (True, 0)
        give(cluster, {1: 4, 2: 6})
        assert iterations(quick.skip()) == [2]


def test_second_batch_leaves_no_part_of_the_first_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is one block here, and the window has room for two blocks."""
    monkeypatch.setattr("kofn_host.compression.encoder.SLICE", 1)
    with running(replace(SMALL, window=2), k=3, rule="batch-sync") as cluster:
        quick = cluster.agents[0]
        assert quick.all_reduce(Contribution(full(1), stays=True)).updates == []
        assert (quick.ledger.accounts.unsent(1) == 0).all()
        assert (quick.ledger.accounts.waiting == 256).all()
        assert quick.all_reduce(Contribution(full(3), batch=1, stays=True)).updates == []
        assert all(quick.ledger.sent.whole(1)[part].any(axis=1).all() for part in range(2))
        cluster.until(lambda: [slot.members >> 64 & 1 for slot in cluster.switch.model.slots[:2]] == [1, 1])
        with ThreadPoolExecutor() as pool:
            exchange, _ = pool.map(lambda agent: agent.all_reduce(Contribution(full(5))), cluster.agents[1:])
        (first,) = exchange.updates
        assert isinstance(first, Aggregate)
        assert first.mean[0] == pytest.approx((1 + 3 + 5) / 3), "the third contribution closes a block"


def test_gradient_without_a_free_part_is_in_the_ledger() -> None:
    """A late gradient was merged before, so three parts carry four gradients."""
    with running(replace(ROOMY, workers=4), k=4, rule="batch-sync") as cluster:
        quick = cluster.agents[0]

        async def begun() -> None:
            add(quick.ledger, full(7), 0, batch=1, current=1)
            quick.ledger._storage.records["late"] = 1
            quick._exchanges.driver.contribute_pending(0.0, missed=1)

        cluster.loop.run(begun())
        assert quick.ledger.sent.free == 2
        for batch in range(PARTS - 1):
            assert quick.all_reduce(Contribution(full(1), batch=batch, stays=True)).updates == []
        assert quick.ledger.sent.free is None
        with ThreadPoolExecutor() as pool:
            last = pool.submit(quick.all_reduce, Contribution(full(1), batch=PARTS - 1))
            pool.submit(cluster.agents[1].all_reduce, Contribution(full(1)))
            assert [one.count for one in aggregates(last.result().updates)] == [PARTS]
        assert account(quick).entered == PARTS + 1
        given = to_fixed(full(7)) + PARTS * to_fixed(full(1))
        assert np.array_equal(quick.totals().gradients, checksums_of(quick.ledger, given))


# -- stash, drop


def test_stashed_gradient_waits_for_its_workers_next_contribution_in_time() -> None:
    """It loses weight meanwhile, and its worker does not begin another iteration before it is asked to."""
    with running(ROOMY, k=2, rule="stash", weight=0.5) as cluster:
        give(cluster, {0: 1, 1: 1})
        heard(cluster, 2, 1)
        late = cluster.agents[2]
        assert iterations(hand_over(late, full(8))[1]) == [1]
        for _ in range(2):
            give(cluster, {0: 1, 1: 1})
        heard(cluster, 2, 3)
        assert late.protocol.iteration == 2
        assert late.traffic.packets_sent == 0
        assert (account(late).waiting, account(late).late_since) == (1 / 4, 1)
        assert iterations(hand_over(late, full(16))[1]) == [2, 3]
        assert late.traffic.packets_sent == 0
        assert account(late).waiting == 1 / 8 + 1 / 4
        (fourth,), _ = give(cluster, {2: 5, 0: 1})
        assert (fourth.contributors, fourth.gradients) == (2, 2 + 3 / 8)
        assert fourth.mean[0] == pytest.approx((5 + 1 + 8 / 8 + 16 / 4) / (2 + 3 / 8))


# -- after a restart


@pytest.mark.parametrize("rule", ["merge", "batch-sync"])
def test_sent_parts_survive_a_restart_although_the_peers_replica_is_older(rule: RuleName, tmp_path: Path) -> None:
    """The ledger is in iteration 5 and the replica is that of iteration 3; iteration 4 is over elsewhere."""
    with running(SMALL, k=2, rule=rule) as cluster:
        cluster.loop.run(cluster.agents[2].close())
        coding, path = cluster.agents[2].encoder.coding, tmp_path / "ledger"
        storage = LedgerStorage.in_file(path, job=1, rank=2, blocks=coding.layout.blocks, lanes=coding.layout.elements)
        ledger = Ledger(storage, 2, coding.codecs)
        ledger.begin(5)
        add(ledger, full(1), 1, current=5)
        ledger.sending(5, np.arange(ledger.blocks), 0, np.full(ledger.blocks, 20), part=1)
        add(ledger, full(1), 2, current=5)
        sent = ledger.sent.whole(5)
        assert sent.any()
        agent = Agent(
            SMALL,
            Encoder.of(coding, CompressSection(), 2, job=SMALL.id, file=path),
            Transport(SWITCH, local=address(2)),
            late_policy=LatePolicy(rule, 1.0),
        )
        cluster.agents[2] = agent
        cluster.loop.run(agent.start(4, 0, cluster, reached=5))
        assert agent.iteration == 4
        assert np.array_equal(agent.ledger.sent.whole(5), sent)
        assert agent.ledger.sent.unsettled(5) == list(range(ledger.blocks))
