"""The control loop in virtual time: workers of known blocking, reports as they would send them."""

import re

import numpy as np
import pytest

from bench.cluster import cluster
from bench.synthetic import SERVICE_S
from kofn.config.errors import ConfigError
from kofn.config.schema import PolicySection
from kofn.controller.job.status import decided
from kofn.controller.policy.decide import Decider
from kofn.rpc import kofn_pb2 as pb


def test_equal_workers_are_all_waited_for() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 200):
        running.iterate(iteration)
    assert running.decider.k == 4
    assert running.decider.measurements.views.count == [0] * 4


def test_a_straggler_is_left_out_after_warm_up() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, warm_up=3)
    running.iterate(1)
    running.iterate(2)
    assert running.decider.k == 4
    for iteration in range(3, 30):
        running.iterate(iteration)
    assert running.decider.k == 3
    assert running.changes[0].iteration <= 5


@pytest.mark.parametrize("seed", range(5))
def test_a_sudden_slow_down_is_tracked_within_twenty_iterations(seed: int) -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 1 and iteration >= 50 else 0.001)
    running.random = np.random.default_rng(seed)
    first_k3 = tracked = 0
    for iteration in range(1, 80):
        running.iterate(iteration)
        if iteration >= 50 and not first_k3 and running.decider.k == 3:
            first_k3 = iteration - 49
        estimate = running.decider.estimate
        if iteration >= 50 and not tracked and estimate and estimate.low_s[1] > 0.010:
            tracked = iteration - 49
    assert 1 <= first_k3 <= 6
    assert 1 <= tracked <= 20


def test_a_sudden_slow_down_is_seen_before_the_slow_worker_reports() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 40):
        running.iterate(iteration)
    assert running.decider.k == 4
    for rank in (0, 1, 2):  # everyone but worker 3 has its first block at the switch; then nothing happens
        running.arrive(rank, 40, int(1e6 * (running.now_s + SERVICE_S)))
    begin_s = running.now_s
    while running.decider.k == 4 and running.now_s < begin_s + 2:
        running.now_s += 0.02
        running.look()
    assert running.decider.k == 3
    assert running.decider.silent_s[3] == pytest.approx(running.now_s - begin_s)
    assert running.now_s - begin_s < 0.5


def test_a_worker_that_recovers_is_taken_back() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 0 and iteration < 60 else 0.001)
    for iteration in range(1, 60):
        running.iterate(iteration)
    assert running.decider.k == 3
    for iteration in range(60, 160):  # it gains 9 %, which a window tells from nothing by one standard error only
        running.iterate(iteration)
    assert running.decider.k == 4


def test_how_soon_a_recovery_is_noticed() -> None:
    """It gains 9 %: half of the seeds notice within 70 iterations, nearly all within 140."""
    taken = []
    for seed in range(12):
        running = cluster(lambda rank, iteration: 0.060 if rank == 1 and iteration < 50 else 0.001, seed=seed)
        iteration = 0
        while iteration < 50 or (running.decider.k == 3 and iteration < 300):
            iteration += 1
            running.iterate(iteration)
        taken.append(iteration - 49)
    assert np.median(taken) <= 70
    assert np.sort(taken)[-2] <= 140


def test_a_shock_common_to_all_is_predicted_and_the_sources_time_is_still_shown() -> None:
    random = np.random.default_rng(1)
    decider = Decider(workers=4, policy=PolicySection(objective="throughput"))
    decider.measurements.begin(0.0)
    for iteration in range(1, 40):
        shock_s = 0.005 * random.poisson(4.0)
        for rank, own_s in enumerate(0.005 * random.poisson(0.3, 4)):
            assert decider.report(
                rank, pb.Report(iteration=iteration, first_block_s=0.010 + shock_s + own_s), 0.1 * iteration
            )
        decider.decide(0.1 * iteration)
    assert decider.estimate is not None and decider.choice is not None
    assert decider.estimate.law == "rows"
    forecast = decider.choice.forecast
    real = np.array([0.030, 0.030, 0.031, 0.0345])  # s, the shock, and the k-th of four small ones
    np.testing.assert_allclose(forecast.predicted_s, real, rtol=0.25)
    assert forecast.expected_s[0] < 0.8 * forecast.predicted_s[0], "independent workers' first would be unblocked"
    assert decided(decider).time_model == decider.estimate.reason


def test_a_shown_interval_has_what_may_hide_in_s() -> None:
    running = cluster(lambda rank, iteration: 0.100)
    for iteration in range(1, 20):
        running.iterate(iteration)
    estimate, shown = running.decider.estimate, decided(running.decider)
    assert estimate is not None
    assert shown.hidden_s == estimate.hidden_s > 0
    assert shown.worker[1].lambda_high_s == estimate.high_s[1] + estimate.hidden_s


def test_changes_say_why_in_numbers() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, warm_up=3)
    for iteration in range(1, 20):
        running.iterate(iteration)
    change = running.changes[0]
    assert (change.previous_k, change.k) == (4, 3)
    assert change.reason.startswith("throughput: E_3[T] = ")
    assert re.search(r", predicted [\d.]+ ms, cost [\d.]+, not [\d.]+ ms$", change.reason)
    assert change.expected_s == pytest.approx(SERVICE_S, abs=0.004)
    assert change.expected_s <= change.predicted_s < 1.2 * change.expected_s


def test_the_prediction_is_made_beside_the_choice() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 20):
        running.iterate(iteration)
    choice, prediction = running.decider.choice, running.decider.prediction
    assert choice is not None and prediction is not None
    np.testing.assert_array_equal(choice.forecast.predicted_s, prediction.mean_s)
    np.testing.assert_allclose(choice.costs, choice.forecast.expected_s * 4 / np.arange(1, 5))
    assert running.decider.chooser.predictor.simulations < 19, "an estimate that hardly changes is not simulated again"


def test_measured_iteration_times_are_kept_for_each_k() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    ended: dict[int, list[float]] = {}
    for iteration in range(1, 60):
        began_s, k = running.now_s, running.decider.k
        running.iterate(iteration)
        if iteration > 1 and k == running.decider.k:
            ended.setdefault(k, []).append(running.now_s - began_s)
    three = running.decider.pace.measured(3)
    assert three.mean_s == pytest.approx(np.mean(ended[3]), rel=0.05)
    assert abs(three.iterations - len(ended[3])) <= 1
    assert running.decider.pace.measured(2).iterations == 0
    running.decider.worker_left(2, "lost", running.now_s)
    assert running.decider.pace.measured(3).iterations == 0, "other workers, other times"


def test_a_lost_worker_lowers_k_at_once_even_before_warm_up() -> None:
    decider = Decider(workers=3, policy=PolicySection(objective="throughput"))
    change = decider.worker_left(1, "lost", 0.0)
    assert change is not None
    assert (change.previous_k, change.k, change.reason) == (3, 2, "worker 1 lost: 2 of 3 live")
    assert decider.worker_left(0, "lost", 0.0) is not None
    assert decider.worker_left(2, "lost", 0.0) is None  # nobody is left to choose for
    assert decider.decide(0.0) is None
    assert decider.k == 1


def test_a_fixed_k_starts_there_and_is_bounded_by_live_workers() -> None:
    running = cluster(lambda rank, iteration: 0.001, objective="fixed:3")
    assert running.decider.k == 3
    for iteration in range(1, 6):
        running.iterate(iteration)
    assert running.decider.k == 3
    running.decider.worker_left(0, "lost", running.now_s)
    assert running.decider.k == 3
    running.decider.worker_left(1, "lost", running.now_s)
    assert running.decider.k == 2


def test_objectives_change_at_once() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 20):
        running.iterate(iteration)
    change = running.decider.set_objective("all", running.now_s)
    assert change is not None
    assert (change.previous_k, change.k) == (3, 4)
    assert running.decider.set_objective("all", running.now_s) is None
    with pytest.raises(ConfigError):
        running.decider.set_objective("fixed:5", running.now_s)
    assert running.decider.goal.name == "all"


def test_decisions_come_every_so_many_iterations() -> None:
    running = cluster(lambda rank, iteration: 0.001, decide_every=5)
    running.decider.estimate = None
    for iteration in range(1, 5):
        running.iterate(iteration)
        assert running.decider.estimate is None
    running.iterate(5)
    assert running.decider.estimate is not None
    assert not running.decider.due(running.now_s)


@pytest.mark.parametrize(
    ("objective", "lost_k", "back_k"), [("all", 2, 3), ("throughput", 2, 3), ("fixed:2", 2, 2), ("fixed:3", 2, 3)]
)
def test_a_worker_that_is_back_is_counted_at_once_even_before_warm_up(objective: str, lost_k: int, back_k: int) -> None:
    decider = Decider(workers=3, policy=PolicySection(objective=objective))
    decider.worker_left(1, "lost", 0.0)
    assert decider.k == lost_k
    decider.gain(1, "is back", 5.0, 40)
    assert decider.live.all()
    assert decider.k == back_k
    if back_k != lost_k:
        assert decider.changes[-1].reason == "worker 1 is back: 3 of 3 live"


def test_a_slow_worker_that_is_back_is_not_waited_for() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 30):
        running.iterate(iteration)
    assert running.decider.k == 3
    running.decider.worker_left(2, "lost", running.now_s)
    running.decider.gain(2, "is back", running.now_s, 30)
    assert (running.decider.k, int(running.decider.live.sum())) == (3, 4)


def test_who_is_back_has_been_silent_only_since_then() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 10):
        running.iterate(iteration)
    running.decider.worker_left(2, "lost", running.now_s)
    for iteration in range(10, 20):
        running.iterate(iteration)
    running.decider.gain(2, "is back", running.now_s, 20)
    assert running.decider.measurements.silent_s(running.now_s + 0.5)[2] == pytest.approx(0.5)


def test_all_may_be_lost_and_come_back() -> None:
    decider = Decider(workers=3, policy=PolicySection(objective="throughput"))
    for rank in range(3):
        decider.worker_left(rank, "lost", 0.0)
    for rank in range(3):
        decider.gain(rank, "is back", 1.0)
    assert decider.k == 3


def test_a_later_decider_takes_reports_of_an_iteration_far_on() -> None:
    decider = Decider(workers=2, policy=PolicySection())
    decider.measurements.join(0, 1.0, 50_000)
    assert decider.measurements.report(0, pb.Report(iteration=50_000, first_block_s=0.01), 1.1)
    assert decider.measurements.silent_s(2.0)[1] == 0.0
    decider.measurements.join(1, 1.2, 49_990)
    assert decider.measurements.report(1, pb.Report(iteration=49_990, first_block_s=0.01), 1.3)


def test_a_worker_that_was_too_late_too_often_is_waited_for_once() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, include_after=10)
    forced = []
    for iteration in range(1, 60):
        running.iterate(iteration)
        if running.decider.included is not None:
            forced.append(iteration)
            assert running.decider.k == 4
    inclusions = [change for change in running.changes if "too late 10 times in a row" in change.reason]
    assert len(inclusions) >= 3
    assert inclusions[0].reason == "worker 2 was too late 10 times in a row: all 4 live are waited for"
    assert inclusions[0].k == 4
    releases = [
        change for change in running.changes if change.reason.startswith("worker 2 has been in; throughput: E_3[T]")
    ]
    assert releases and releases[0].k == 3
    assert len(forced) <= 2 * len(inclusions), "for one iteration, and until it is reported"
    late = running.decider.measurements.track[2].late_in_a_row
    assert late <= 10


def test_inclusion_works_for_a_fixed_k_and_without_an_estimate() -> None:
    decider = Decider(workers=3, policy=PolicySection(objective="fixed:2", include_after=2, warm_up=99))
    for iteration in (1, 2):
        for rank in range(3):
            late = rank == 0
            decider.measurements.report(
                rank, pb.Report(iteration=iteration, first_block_s=0.01, late=late), float(iteration)
            )
    assert decider.due(2.0)
    change = decider.decide(2.0)
    assert change is not None
    assert (change.k, decider.included) == (3, 0)
    decider.gain(0, "is back", 2.0)
    assert decider.k == 3
    assert decider.measurements.report(0, pb.Report(iteration=3, first_block_s=0.01), 3.0)
    change = decider.decide(3.0)
    assert change is not None
    assert (change.k, change.reason) == (2, "worker 0 has been in; fixed:2")


@pytest.mark.parametrize("end", ["lost", "objective"])
def test_inclusion_ends_with_its_worker_or_by_a_persons_word(end: str) -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, include_after=5)
    iteration = 0
    while running.decider.included is None:
        iteration += 1
        running.iterate(iteration)
    if end == "lost":
        running.decider.worker_left(2, "lost", running.now_s)
        assert running.decider.k == 3
    else:
        running.decider.set_objective("fixed:2", running.now_s)
        assert running.decider.k == 2
    assert running.decider.included is None


def test_nobody_is_included_by_default() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 100):
        running.iterate(iteration)
    assert running.decider.k == 3
    assert running.decider.measurements.track[2].late_in_a_row > 20
