"""Workers' results of an iteration: averages, products of successive aggregates, evaluations; and
Poisson stragglers.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.config.stragglers import Law, ShockSection, StragglerSection
from kofn_common.rpc.limits import LAGS
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.arrays import fingerprint
from kofn_host.compression.aggregate import aggregate
from kofn_host.compression.alignment import Alignment
from kofn_host.compression.codec import FRACTION_BITS
from kofn_host.compression.encoder import Finished
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger_native import checksums
from kofn_host.compression.plan import Plan, Planner
from kofn_host.kernels.lanes import pack
from kofn_host.kernels.sample import MOST, RUN, norm2, sample
from kofn_host.protocol.results import BlockId, BlockResults, Result
from kofn_host.workload.blocking_laws import DRAWN, quantile
from kofn_host.workload.evaluation import Evaluator
from kofn_host.workload.model import Batch, Perceptron, load_shard
from kofn_host.workload.replica import Replica
from kofn_host.workload.stragglers.drawn import Drawn
from kofn_host.workload.workloads.digits import Digits

PLAN = Planner(blocks=1, widths=(32,)).first()

# -- products


@pytest.mark.parametrize("elements", [1, 7, 1000])
def test_products_are_those_with_earlier_aggregates(elements: int) -> None:
    random, alignment = np.random.default_rng(1), Alignment(elements)
    seen: list[np.ndarray] = []
    for _ in range(3 * LAGS):
        mean = random.normal(size=elements).astype(np.float32)
        found = alignment.direction(mean)
        expected = [float(mean.astype(float) @ before.astype(float)) for before in seen[: -LAGS - 1 : -1]]
        assert len(found.products) == min(len(seen), LAGS)
        np.testing.assert_allclose(found.products, expected, rtol=1e-4, atol=1e-4 * np.sqrt(elements))
        assert found.norm2 == norm2(mean)
        seen.append(mean)


def test_caller_may_reuse_its_array() -> None:
    alignment, mean = Alignment(3), np.ones(3, np.float32)
    alignment.direction(mean)
    mean[:] = 5
    assert alignment.direction(mean).products == (15.0,)


def test_evenly_spaced_elements_stand_for_a_long_aggregate() -> None:
    elements = 3 * MOST + 5
    random, alignment = np.random.default_rng(2), Alignment(elements)
    first = random.normal(size=elements).astype(np.float32)
    second = (0.8 * first + 0.6 * random.normal(size=elements)).astype(np.float32)
    alignment.direction(first)
    found = alignment.direction(second)
    assert found.norm2 == pytest.approx(float(second.astype(float) @ second), rel=0.03)
    assert found.products[0] == pytest.approx(float(first.astype(float) @ second), rel=0.03)
    assert alignment._kept.size <= LAGS * MOST


@pytest.mark.parametrize("size", [1, MOST, MOST + 1, 3 * MOST - 1, 1_000_000])
def test_sample_is_everything_or_runs_from_everywhere(size: int) -> None:
    taken = sample(np.arange(size))
    assert taken.size == min(size, MOST)
    runs = taken.reshape(-1, min(RUN, size))
    assert (np.diff(runs, axis=1) == 1).all()
    assert len(set(np.diff(runs[:, 0]))) <= 1
    assert taken[-1] >= 0.98 * (size - 1)


def test_aggregates_before_a_gap_are_forgotten() -> None:
    alignment = Alignment(2)
    for _ in range(LAGS + 3):
        alignment.direction(np.ones(2, np.float32))
    alignment.clear()
    assert alignment.direction(np.full(2, 3, np.float32)).products == ()
    assert alignment.direction(np.full(2, 2, np.float32)).products == (12.0,)


# -- averages


def result(block: int, values: list[int], *, scale: int, members: int, gradients: float) -> Result:
    packed = pack(np.array(values + [0] * (64 - len(values)), np.int32), 32)
    return Result(
        id=BlockId(9, block),
        scale=scale,
        lanes=0,
        k=2,
        count=members.bit_count(),
        weight=round(gradients * WEIGHT_UNIT),
        members=members,
        values=packed,
    )


@pytest.mark.parametrize(("average", "by"), [("contributors", (2, 3)), ("gradients", (4, 7.5))])
def test_sum_is_divided_by_the_configured_average(average: Average, by: tuple[float, float]) -> None:
    """The blocks differ in scale, members and weights; one contains an old gradient."""
    results = [
        result(0, [6, -9], scale=0, members=0b101, gradients=4),
        result(1, [8], scale=2, members=0b10110, gradients=7.5),
    ]
    coding = JobCoding.of(JobSection(words=1), CompressSection(), 66)
    plan = coding.planner.first()
    finished = Finished(BlockResults.of(results), plan, plan, None)
    done = aggregate(finished, coding, rank=1, average=average)
    assert done.mean.dtype == np.float32
    np.testing.assert_allclose(done.mean[:3], [6 / by[0], -9 / by[0], 0])
    np.testing.assert_allclose(done.mean[64:], [2 / by[1], 0], rtol=1e-6)
    assert done.mean.shape == (66,)
    assert (done.iteration, done.k, done.count, done.members) == (9, 2, 2, [0, 2])
    assert (done.gradients, done.contributors) == (5.75, 2.5)
    totals = np.zeros((2, 64), np.int64)
    totals[0, :2], totals[1, 0] = (6 << FRACTION_BITS, -9 << FRACTION_BITS), 2 << FRACTION_BITS
    assert np.array_equal(done.checksums, checksums(totals))
    assert (done.missed, done.late) == (1, True)
    assert aggregate(finished, coding, rank=2, average=average).missed == 0
    fewer = Finished(BlockResults.of([results[0], results[1]._replace(count=1)]), plan, plan, None)
    assert (done.least, aggregate(fewer, coding, rank=1, average=average).least) == (2, 1)


# -- evaluations


def learner(more: str = "") -> tuple[Digits, Batch]:
    config = Config.parse(f"[model]\nhidden = [8]\n[job]\nworkers = 2\n{more}")
    return Digits(config, 0), load_shard(0, 2, 1).held_out


OWNED = "[[shard]]\nworker = 0\nclasses = [3, 7]"


def test_evaluation_uses_the_current_model() -> None:
    workload, held_out = learner(OWNED)
    model = Perceptron((8,), seed=1)
    evaluator = Evaluator(workload)
    first = evaluator.look(1)
    assert first.accuracy == model.accuracy(held_out)
    assert first.params == fingerprint(model.parameters)
    mine = np.isin(held_out.labels, [3, 7])
    assert 0 < mine.sum() < len(mine)
    assert first.owned_accuracy == model.accuracy(Batch(held_out.images[mine], held_out.labels[mine]))
    workload.parameters[:] = 0
    workload.parameters[-10 + 3] = 1  # the model answers 3 to every image
    second = evaluator.look(2)
    assert second.accuracy == np.mean(held_out.labels == 3)
    assert second.owned_accuracy == np.sum(held_out.labels == 3) / mine.sum()
    assert second.params != first.params
    assert Evaluator(learner()[0]).look(1).owned_accuracy is None


def test_fingerprint_of_parts_equals_that_of_the_whole() -> None:
    whole = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    assert fingerprint(whole[:7], whole[7:300], whole[300:]) == fingerprint(whole)
    assert fingerprint(whole[7:], whole[:7]) != fingerprint(whole)


def test_value_is_the_mean_over_the_last_iterations() -> None:
    workload, held_out = learner()
    workload.parameters[:] = 0
    shares = [float(np.mean(held_out.labels == label)) for label in range(5)]
    evaluator = Evaluator(workload, over=3)
    means = []
    for label in range(5):
        workload.parameters[-10:] = np.arange(10) == label  # the model answers this digit to every image
        means.append(evaluator.look(label + 1).accuracy)
    expected = [np.mean(shares[max(0, last - 2) : last + 1]) for last in range(5)]
    assert means == pytest.approx(expected)


def test_model_is_evaluated_every_few_iterations_and_at_the_end() -> None:
    """The value is the mean over evaluations and stays until the next one."""
    workload, held_out = learner(OWNED)
    workload.parameters[:] = 0
    shares = [float(np.mean(held_out.labels == label)) for label in range(8)]
    evaluator = Evaluator(workload, over=2, every=3, last=8)
    seen = []
    for label in range(8):
        workload.parameters[-10:] = np.arange(10) == label  # the model answers this digit to every image
        looked = evaluator.look(label + 1)
        assert looked.params == fingerprint(workload.parameters)
        assert (looked.accuracy is None) == (looked.owned_accuracy is None)
        seen.append((looked.accuracy, evaluator.value(label + 1)))
    known = {3: shares[2], 6: np.mean([shares[2], shares[5]]), 8: np.mean([shares[5], shares[7]])}
    assert [value for value, _ in seen] == [known.get(iteration) for iteration in range(1, 9)]
    assert [value for _, value in seen] == [None, None, known[3], known[3], known[3], known[6], known[6], known[8]]


def test_non_finite_value_is_none() -> None:
    class Odd(Digits):
        values: Iterator[float] = iter([math.nan, math.inf, 0.5])

        def evaluate(self) -> float:
            return next(self.values)

    evaluator = Evaluator(Odd(Config.parse("[model]\nhidden = [8]"), 0))
    assert [evaluator.look(iteration).accuracy for iteration in (1, 2, 3)] == [None, None, 0.5]


def test_restored_replica_has_the_values_of_the_other() -> None:
    """Its next value is the same, though it has not seen the earlier iterations."""
    config = Config.parse("[model]\nhidden = [8]\n[run]\naccuracy_over = 4")
    replicas = [Replica(Digits(config, 0), config, 8, PLAN) for _ in range(2)]
    random = np.random.default_rng(1)
    gradients = random.normal(size=(7, len(Perceptron((8,), seed=1).parameters))).astype(np.float32)
    for iteration in range(1, 6):
        replicas[0].apply(iteration, gradients[iteration - 1], np.zeros(8, np.int64), PLAN)
    after = replace(PLAN, gap=np.array([7]))
    replicas[0].apply(6, gradients[5], np.zeros(8, np.int64), after)
    state = replicas[0].state()
    assert state is not None
    assert Plan.from_arrays(state.arrays).gap.tolist() == [7], "the replica has the plan of the latest results"
    replicas[1].restore(state)
    assert replicas[1].evaluator.value(6) == replicas[0].evaluator.value(6) != 0
    first, second = (replica.apply(7, gradients[6], np.zeros(8, np.int64), PLAN) for replica in replicas)
    assert first == second


# -- stragglers


@pytest.mark.parametrize("mean", [0.2, 3.0, 48.0])
def test_events_are_poissons(mean: float) -> None:
    config = Config(straggler=(StragglerSection(workers=(0,), mean_ms=2 * mean, event_ms=2.0),))
    blocking = Drawn(config, 0)
    events = np.array([blocking.blocking_s(iteration) / 0.002 for iteration in range(1, 20_001)]).round().astype(int)
    edges = np.unique(stats.poisson.ppf(np.linspace(0, 1, 21)[1:-1], mean)).astype(int)
    seen = np.bincount(np.searchsorted(edges, events), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate(([0.0], stats.poisson.cdf(edges, mean), [1.0])))
    assert stats.chisquare(seen, len(events) * expected).pvalue > 1e-3
    assert abs(np.corrcoef(events[1:], events[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("mean", [0.0, 0.01, 1.0, 30.0, 3000.0, 200_000.0])
def test_quantiles_are_scipys(mean: float) -> None:
    levels = np.concatenate((np.linspace(0.001, 0.999, 97), [1e-9, 1 - 1e-6]))
    entry = StragglerSection(workers=(), mean_ms=1000 * mean, event_ms=1000)
    assert [quantile(entry, level) for level in levels] == stats.poisson.ppf(levels, mean).tolist()


def test_blocking_of_an_iteration_is_the_same_in_every_pass_and_order() -> None:
    config = Config(straggler=(StragglerSection(workers=(0, 1, 2), mean_ms=30.0),))
    first, again = (Drawn(config, 1) for _ in range(2))
    iterations = [1, DRAWN - 1, DRAWN, DRAWN + 1, 5 * DRAWN, 2]
    forwards = [first.blocking_s(iteration) for iteration in iterations]
    assert forwards == [again.blocking_s(iteration) for iteration in iterations[::-1]][::-1]
    others = [
        [Drawn(given, rank).blocking_s(i) for i in range(1, 50)]
        for given, rank in ((config, 0), (config, 2), (Config(run=RunSection(seed=2), straggler=config.straggler), 1))
    ]
    mine = [first.blocking_s(i) for i in range(1, 50)]
    assert all(other != mine for other in others), "each worker and seed must be blocked in other iterations"


def test_larger_mean_is_no_shorter_in_any_iteration() -> None:
    """The draws are shared: a configuration with more blocking differs in nothing else."""
    small, large = (
        Drawn(Config(straggler=(StragglerSection(workers=(0,), mean_ms=mean_ms),)), 0) for mean_ms in (20.0, 25.0)
    )
    drawn = [(small.blocking_s(i), large.blocking_s(i)) for i in range(1, 500)]
    assert all(a <= b for a, b in drawn)


def test_shifted_roles_move_means_but_not_draws() -> None:
    straggler = (StragglerSection(workers=(0,), mean_ms=50.0),)
    moving = Config(run=RunSection(shift_every=10), job=JobSection(workers=2), straggler=straggler)
    blocked = [[Drawn(moving, rank).blocking_s(i) > 0 for i in range(1, 41)] for rank in range(2)]
    assert blocked[0] == [i // 10 % 2 == 0 for i in range(40)]
    assert blocked[1] == [i // 10 % 2 == 1 for i in range(40)]


@pytest.mark.parametrize(
    ("law", "quantile"),
    [("exponential", stats.expon(scale=0.02)), ("pareto", stats.lomax(2.0, scale=0.02))],
)
def test_other_laws_are_scipys(law: Law, quantile: Any) -> None:
    config = Config(straggler=(StragglerSection(workers=(0,), mean_ms=20.0, law=law),))
    blocking = Drawn(config, 0)
    times_s = [blocking.blocking_s(iteration) for iteration in range(1, 4001)]
    assert stats.kstest(times_s, quantile.cdf).pvalue > 1e-3
    assert quantile.mean() == pytest.approx(0.02) == blocking.mean_s(1)


def test_latest_entry_decides_the_compute_time() -> None:
    own: dict[str, Any] = {"workers": (1,), "mean_ms": 0.0}
    entries = (StragglerSection(**own, compute_ms=25.0), StragglerSection(**own, compute_ms=900.0, from_iteration=10))
    config = Config(straggler=(*entries, StragglerSection(**own, from_iteration=20)))
    assert [Drawn(config, 1).compute_s(iteration) for iteration in (1, 9, 10, 19, 20)] == [
        *(0.025, 0.025, 0.9, 0.9),
        config.model.compute_ms / 1000,
    ]
    assert Drawn(config, 0).compute_s(15) == config.model.compute_ms / 1000


def struck(config: Config, rank: int) -> list[bool]:
    """Return whether a shock strikes, at 4,000 times 1 ms apart."""
    blocking = Drawn(config, rank)
    return [blocking.blocking_s(1, now_s=(at + 0.5) / 1000) > 0 for at in range(4000)]


def test_shock_strikes_all_its_workers_at_once_and_for_its_duration() -> None:
    shock = ShockSection(workers=(0, 2), blocking_ms=50.0, for_ms=20.0, share=0.3)
    config = Config(shock=(shock,))
    first, second, third = (struck(config, rank) for rank in range(3))
    assert first == third
    assert not any(second)
    assert 0.2 < np.mean(first) < 0.4
    lengths = np.diff(np.flatnonzero(np.diff([0, *first, 0])))[::2]
    assert set(lengths % 20) == {0}, "each blocking lasts a whole number of iterations"
    assert Drawn(config, 0).mean_s(1) == pytest.approx(0.015)
    again = Config(run=RunSection(seed=2), shock=(shock,))
    assert struck(again, 0) != first


def test_shocks_add_up_and_may_strike_each_worker_alone() -> None:
    each = ShockSection(workers=(0, 1), blocking_ms=50.0, for_ms=20.0, share=0.5, common=False)
    always = ShockSection(workers=(1,), blocking_ms=7.0, for_ms=5.0, share=1.0)
    config = Config(shock=(each, always))
    blocking = Drawn(config, 1)
    assert {round(blocking.blocking_s(1, now_s=at / 100), 6) for at in range(400)} == {0.007, 0.057}
    own = [[Drawn(config, rank).blocking_s(1, now_s=at / 100) > 0.04 for at in range(400)] for rank in (0, 1)]
    assert own[0] != own[1]
