"""The control loop in virtual time: workers of known blocking, and their reports."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from bench.cluster import cluster
from bench.synthetic import SERVICE_S
from kofn_common.config.errors import ConfigError
from kofn_common.config.late_rules import LatePolicy, RuleChoice
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.job.status_message import status_message
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.inclusion import CHANCE, beyond_chance


@pytest.mark.slow
def test_equal_workers_are_all_awaited() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 200):
        running.iterate(iteration)
    assert running.control_loop.k == 4
    assert running.control_loop.measurements.views.count == [0] * 4


@pytest.mark.slow
def test_rack_that_is_slow_as_a_whole_is_found_by_a_controller_that_knows_the_racks() -> None:
    """The first of four racks is slow in every third iteration, but k = 12 of 16 cuts its times off."""
    found = {1: 0, 4: 0}  # of ten estimates, by the number of racks that the controller knows
    for racks in found:
        running = cluster(
            lambda rank, iteration: 0.005 + 0.050 * (rank < 4 and iteration % 3 == 0),
            workers=16,
            racks=racks,
            objective="fixed:12",
            late_gradient="abort",
        )
        running.looking = False
        for iteration in range(1, 81):
            running.iterate(iteration)
            if iteration % 8 == 0:
                running.control_loop.choose(running.now_s)
                assert running.control_loop.estimate is not None
                found[racks] += running.control_loop.estimate.law == "bootstrap"
    assert found[4] >= 8
    assert found[1] <= 5


def test_straggler_is_left_out_after_warm_up() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, warm_up=3)
    running.iterate(1)
    running.iterate(2)
    assert running.control_loop.k == 4
    for iteration in range(3, 30):
        running.iterate(iteration)
    assert running.control_loop.k == 3
    assert running.changes[0].iteration <= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_sudden_slow_down_is_tracked_within_twenty_iterations(seed: int) -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 1 and iteration >= 50 else 0.001)
    running.random = np.random.default_rng(seed)
    first_k3 = tracked = 0
    for iteration in range(1, 80):
        running.iterate(iteration)
        if iteration >= 50 and not first_k3 and running.control_loop.k == 3:
            first_k3 = iteration - 49
        estimate = running.control_loop.estimate
        if iteration >= 50 and not tracked and estimate and estimate.low_s[1] > 0.010:
            tracked = iteration - 49
    assert 1 <= first_k3 <= 6
    assert 1 <= tracked <= 20


def test_sudden_slow_down_is_seen_before_the_slow_worker_reports() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 40):
        running.iterate(iteration)
    assert running.control_loop.k == 4
    for rank in (0, 1, 2):  # all but worker 3 have their first block at the switch; then nothing happens
        running.arrive(rank, 40, int(1e6 * (running.now_s + SERVICE_S)))
    begin_s = running.now_s
    while running.control_loop.k == 4 and running.now_s < begin_s + 2:
        running.now_s += 0.02
        running.look()
    assert running.control_loop.k == 3
    assert running.control_loop.silent_s[3] == pytest.approx(running.now_s - begin_s)
    assert running.now_s - begin_s < 0.5


@pytest.mark.slow
def test_recovered_worker_is_taken_back() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 0 and iteration < 60 else 0.001)
    for iteration in range(1, 60):
        running.iterate(iteration)
    assert running.control_loop.k == 3
    for iteration in range(60, 160):  # the gain is 9 %, only one standard error of a window
        running.iterate(iteration)
    assert running.control_loop.k == 4


@pytest.mark.slow
def test_recovery_is_noticed_within_140_iterations() -> None:
    """The gain is 9 %: half of the seeds notice it within 70 iterations, nearly all within 140."""
    taken = []
    for seed in range(12):
        running = cluster(lambda rank, iteration: 0.060 if rank == 1 and iteration < 50 else 0.001, seed=seed)
        iteration = 0
        while iteration < 50 or (running.control_loop.k == 3 and iteration < 300):
            iteration += 1
            running.iterate(iteration)
        taken.append(iteration - 49)
    assert np.median(taken) <= 70
    assert np.sort(taken)[-2] <= 140


def test_common_shock_is_predicted_and_the_sources_time_is_still_shown() -> None:
    random = np.random.default_rng(1)
    control_loop = ControlLoop(workers=4, policy=PolicySection(objective="throughput"))
    control_loop.measurements.begin(0.0)
    for iteration in range(1, 40):
        shock_s = 0.005 * random.poisson(4.0)
        for rank, own_s in enumerate(0.005 * random.poisson(0.3, 4)):
            assert control_loop.report(
                rank, pb.Report(iteration=iteration, first_block_s=0.010 + shock_s + own_s), 0.1 * iteration
            )
        control_loop.choose(0.1 * iteration)
    assert control_loop.estimate is not None and control_loop.choice is not None
    assert control_loop.estimate.law == "bootstrap"
    forecast = control_loop.choice.forecast
    real = np.array([0.030, 0.030, 0.031, 0.0345])  # s, the shock, and the k-th of four small blockings
    np.testing.assert_allclose(forecast.predicted_s, real, rtol=0.25)
    assert forecast.expected_s[0] < 0.8 * forecast.predicted_s[0], (
        "the fastest of independent workers would be unblocked"
    )
    assert status_message(control_loop).time_model == control_loop.estimate.reason


def test_shown_interval_includes_the_blocking_hidden_in_s() -> None:
    running = cluster(lambda rank, iteration: 0.100)
    for iteration in range(1, 20):
        running.iterate(iteration)
    estimate, shown = running.control_loop.estimate, status_message(running.control_loop)
    assert estimate is not None
    assert shown.hidden_s == estimate.hidden_s > 0
    assert shown.worker[1].lambda_high_s == estimate.high_s[1] + estimate.hidden_s


def test_changes_give_their_reason_in_numbers() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, warm_up=3)
    for iteration in range(1, 20):
        running.iterate(iteration)
    change = running.changes[0]
    assert (change.previous_k, change.k) == (4, 3)
    assert change.reason.startswith("throughput: E_3[T] = ")
    assert re.search(r", predicted [\d.]+ ms, cost [\d.]+, not [\d.]+ ms$", change.reason)
    assert change.expected_s == pytest.approx(SERVICE_S, abs=0.004)
    assert change.expected_s <= change.predicted_s < 1.2 * change.expected_s


def test_prediction_is_made_beside_the_choice() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 20):
        running.iterate(iteration)
    choice, prediction = running.control_loop.choice, running.control_loop.prediction
    assert choice is not None and prediction is not None
    np.testing.assert_array_equal(choice.forecast.predicted_s, prediction.mean_s)
    np.testing.assert_allclose(choice.costs, choice.forecast.expected_s * 4 / np.arange(1, 5))
    assert running.control_loop.chooser.predictor.simulations < 19, (
        "an estimate that hardly changes must not be simulated again"
    )


def test_measured_iteration_times_are_kept_for_each_k() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    ended: dict[int, list[float]] = {}
    for iteration in range(1, 60):
        began_s, k = running.now_s, running.control_loop.k
        running.iterate(iteration)
        if iteration > 1 and k == running.control_loop.k:
            ended.setdefault(k, []).append(running.now_s - began_s)
    three = running.control_loop.pace.measured(3, "merge")
    assert three.mean_s == pytest.approx(np.mean(ended[3]), rel=0.05)
    assert abs(three.iterations - len(ended[3])) <= 1
    assert running.control_loop.pace.measured(2, "merge").iterations == 0
    running.control_loop.worker_left(2, "lost", running.now_s)
    assert running.control_loop.pace.measured(3, "merge").iterations == 0, "times of other workers do not count"


def test_lost_worker_lowers_k_at_once_even_before_warm_up() -> None:
    control_loop = ControlLoop(workers=3, policy=PolicySection(objective="throughput"))
    change = control_loop.worker_left(1, "lost", 0.0)
    assert change is not None
    assert (change.previous_k, change.k, change.reason) == (3, 2, "worker 1 lost: 2 of 3 live")
    assert control_loop.worker_left(0, "lost", 0.0) is not None
    assert control_loop.worker_left(2, "lost", 0.0) is None  # no worker is left
    assert control_loop.choose(0.0) is None
    assert control_loop.k == 1


def test_fixed_k_starts_there_and_is_bounded_by_live_workers() -> None:
    running = cluster(lambda rank, iteration: 0.001, objective="fixed:3")
    assert running.control_loop.k == 3
    for iteration in range(1, 6):
        running.iterate(iteration)
    assert running.control_loop.k == 3
    running.control_loop.worker_left(0, "lost", running.now_s)
    assert running.control_loop.k == 3
    running.control_loop.worker_left(1, "lost", running.now_s)
    assert running.control_loop.k == 2


def test_objectives_change_at_once() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 20):
        running.iterate(iteration)
    change = running.control_loop.set_objective("all", running.now_s)
    assert change is not None
    assert (change.previous_k, change.k) == (3, 4)
    assert running.control_loop.set_objective("all", running.now_s) is None
    with pytest.raises(ConfigError):
        running.control_loop.set_objective("fixed:5", running.now_s)
    assert running.control_loop.goal.name == "all"


@pytest.mark.parametrize("late_gradient", ["auto", "stash"])
def test_sources_objective_adds_late_gradients_unweighted_whatever_the_configuration(
    late_gradient: RuleChoice,
) -> None:
    policy = PolicySection(objective="source", late_gradient=late_gradient, age_weight=0.25)
    control_loop = ControlLoop(workers=4, policy=policy)
    assert (control_loop.k, control_loop.late_policy) == (4, LatePolicy("merge", 1.0))
    throughput = ControlLoop(workers=4, policy=replace(policy, objective="throughput"))
    forecast = Forecast(
        expected_s=np.array([1.0, 1.5, 1.9, 4.0]), predicted_s=np.ones(4), overhead_s=0.0, worth=np.ones(4)
    )
    assert control_loop.goal.costs(forecast).tolist() == throughput.goal.costs(forecast).tolist()


def test_decisions_come_at_the_configured_interval() -> None:
    running = cluster(lambda rank, iteration: 0.001, decide_every=5)
    running.control_loop.estimate = None
    for iteration in range(1, 5):
        running.iterate(iteration)
        assert running.control_loop.estimate is None
    running.iterate(5)
    assert running.control_loop.estimate is not None
    assert not running.control_loop.due(running.now_s)


@pytest.mark.parametrize(
    ("objective", "lost_k", "back_k"), [("all", 2, 3), ("throughput", 2, 3), ("fixed:2", 2, 2), ("fixed:3", 2, 3)]
)
def test_rejoined_worker_is_counted_at_once_even_before_warm_up(objective: str, lost_k: int, back_k: int) -> None:
    control_loop = ControlLoop(workers=3, policy=PolicySection(objective=objective))
    control_loop.worker_left(1, "lost", 0.0)
    assert control_loop.k == lost_k
    control_loop.worker_joined(1, "is back", 5.0, 40)
    assert control_loop.live.all()
    assert control_loop.k == back_k
    if back_k != lost_k:
        assert control_loop.changes[-1].reason == "worker 1 is back: 3 of 3 live"


def test_slow_rejoined_worker_is_not_awaited() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 30):
        running.iterate(iteration)
    assert running.control_loop.k == 3
    running.control_loop.worker_left(2, "lost", running.now_s)
    running.control_loop.worker_joined(2, "is back", running.now_s, 30)
    assert (running.control_loop.k, int(running.control_loop.live.sum())) == (3, 4)


def test_rejoined_worker_is_not_silent_before_its_return() -> None:
    running = cluster(lambda rank, iteration: 0.001)
    for iteration in range(1, 10):
        running.iterate(iteration)
    running.control_loop.worker_left(2, "lost", running.now_s)
    for iteration in range(10, 20):
        running.iterate(iteration)
    running.control_loop.worker_joined(2, "is back", running.now_s, 20)
    assert running.control_loop.measurements.silent_s(running.now_s + 0.5)[2] == pytest.approx(0.5)


def test_all_workers_may_be_lost_and_rejoin() -> None:
    control_loop = ControlLoop(workers=3, policy=PolicySection(objective="throughput"))
    for rank in range(3):
        control_loop.worker_left(rank, "lost", 0.0)
    for rank in range(3):
        control_loop.worker_joined(rank, "is back", 1.0)
    assert control_loop.k == 3


def test_restarted_control_loop_takes_reports_of_a_late_iteration() -> None:
    control_loop = ControlLoop(workers=2, policy=PolicySection())
    control_loop.measurements.join(0, 1.0, 50_000)
    assert control_loop.measurements.report(0, pb.Report(iteration=50_000, first_block_s=0.01), 1.1)
    assert control_loop.measurements.silent_s(2.0)[1] == 0.0
    control_loop.measurements.join(1, 1.2, 49_990)
    assert control_loop.measurements.report(1, pb.Report(iteration=49_990, first_block_s=0.01), 1.3)


@pytest.mark.slow
def test_worker_that_was_late_too_often_is_awaited_once() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, include_after=10)
    forced = []
    for iteration in range(1, 60):
        running.iterate(iteration)
        if running.control_loop.inclusion.rank is not None:
            forced.append(iteration)
            assert running.control_loop.k == 4
    inclusions = [change for change in running.changes if "too late 10 times in a row" in change.reason]
    assert len(inclusions) >= 3
    assert inclusions[0].reason == "worker 2 was too late 10 times in a row: k = n until it is in a sum"
    assert inclusions[0].k == 4
    releases = [
        change for change in running.changes if change.reason.startswith("worker 2 was in a sum; throughput: E_3[T]")
    ]
    assert releases and releases[0].k == 3
    assert len(forced) <= 2 * len(inclusions), "an inclusion lasts until the worker's report of one iteration"
    late = running.control_loop.measurements.track(2).late_in_a_row
    assert late <= 10


def test_inclusion_works_for_a_fixed_k_and_without_an_estimate() -> None:
    control_loop = ControlLoop(workers=3, policy=PolicySection(objective="fixed:2", include_after=2, warm_up=99))
    for iteration in (1, 2):
        for rank in range(3):
            late = rank == 0
            control_loop.measurements.report(
                rank, pb.Report(iteration=iteration, first_block_s=0.01, late=late), float(iteration)
            )
    assert control_loop.due(2.0)
    change = control_loop.choose(2.0)
    assert change is not None
    assert (change.k, control_loop.inclusion.rank) == (3, 0)
    control_loop.worker_joined(0, "is back", 2.0)
    assert control_loop.k == 3
    assert control_loop.measurements.report(0, pb.Report(iteration=3, first_block_s=0.01), 3.0)
    change = control_loop.choose(3.0)
    assert change is not None
    assert (change.k, change.reason) == (2, "worker 0 was in a sum; fixed:2")


@pytest.mark.parametrize(
    ("objective", "given", "after"),
    [
        ("stash:3", None, 6),
        ("stash:2", None, 9),
        ("stash:3", 2, 2),
        ("stash:3", 0, None),
        ("merge:3", None, None),
        ("drop:3", None, None),
        ("throughput", None, None),
    ],
)
def test_worker_whose_gradients_would_wait_for_ever_is_included_by_default(
    objective: str, given: int | None, after: int | None
) -> None:
    policy = PolicySection(objective=objective, include_after=given, warm_up=99)
    control_loop = ControlLoop(workers=4, policy=policy)
    control_loop.set_objective(objective, 0.0)
    for iteration in range(1, 30):
        control_loop.measurements.report(
            3, pb.Report(iteration=iteration, first_block_s=0.01, late=True), float(iteration)
        )
        if control_loop.due(float(iteration)):
            control_loop.choose(float(iteration))
        if control_loop.inclusion.rank is not None:
            break
    assert (None if control_loop.inclusion.rank is None else iteration) == after


def test_equal_workers_are_not_included_for_ever() -> None:
    """Chance makes each worker late in some iterations in a row, the more often the smaller k is."""
    random = np.random.default_rng(1)
    for workers, k in ((4, 3), (8, 4), (100, 50)):
        after = beyond_chance(k, workers)
        in_a_row, inclusions = np.zeros(workers, int), 0
        for _ in range(5_000):
            late = random.permutation(workers) >= k
            in_a_row = np.where(late, in_a_row + 1, 0)
            if in_a_row.max() >= after:
                inclusions += 1
                in_a_row[in_a_row.argmax()] = 0
        assert inclusions < 5_000 * CHANCE
        assert 1 / (after + 1) > 0.05, "a worker that is always late is in at least each twentieth sum"


@pytest.mark.parametrize("end", ["lost", "objective"])
def test_inclusion_ends_with_its_worker_or_by_an_operator(end: str) -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, include_after=5)
    iteration = 0
    while running.control_loop.inclusion.rank is None:
        iteration += 1
        running.iterate(iteration)
    if end == "lost":
        running.control_loop.worker_left(2, "lost", running.now_s)
        assert running.control_loop.k == 3
    else:
        running.control_loop.set_objective("fixed:2", running.now_s)
        assert running.control_loop.k == 2
    assert running.control_loop.inclusion.rank is None


@pytest.mark.slow
def test_no_worker_is_included_by_default() -> None:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    for iteration in range(1, 100):
        running.iterate(iteration)
    assert running.control_loop.k == 3
    assert running.control_loop.measurements.track(2).late_in_a_row > 20
