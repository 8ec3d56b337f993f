"""The control loop without I/O or clock: it takes measurements and returns changes of k.

A session drives the loop in real time, a simulation drives it in virtual time.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from kofn_common.config.k_bounds import bound_k
from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.config.model import Average
from kofn_common.config.objectives import check_objective
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.links import LinkDelays, compare
from kofn_controller.estimate.measurements import BoolArray, FloatArray, Measurements
from kofn_controller.estimate.model import Estimate, fit
from kofn_controller.estimate.pace import Pace
from kofn_controller.estimate.reports import Reports
from kofn_controller.estimate.time_scales import estimate_service
from kofn_controller.policy.chooser import Chooser, Known
from kofn_controller.policy.history import HistoryLog
from kofn_controller.policy.inclusion import Inclusion
from kofn_controller.policy.objective import Choice, Objective, objective
from kofn_controller.policy.prediction import Prediction, Predictor
from kofn_controller.policy.worth import WorthModel

CHANGES_KEPT = 32

FORECAST_EVERY = 10
"""Iterations between forecasts if no choice depends on them."""

UNHEARD_OF = 1e-3
"""A silence is news if at most this share of the worker's blocks takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of k or of the policy for late gradients, and its reason."""

    iteration: int
    k: int
    previous_k: int
    late_policy: LatePolicy  # the new policy
    reason: str
    expected_s: float  # E_k[T] of the new k; NaN if unknown
    predicted_s: float  # predicted iteration time of the new k; NaN if unknown


@dataclass(slots=True, kw_only=True)
class ControlLoop:
    """k, the policy for late gradients, and the measurements and models behind them."""

    workers: int
    policy: PolicySection
    average: Average = "gradients"  # model.average: the divisor of an iteration's sum
    racks: int = 1  # job.racks: each rack has equally many workers, of consecutive ranks
    chooser: Chooser = field(init=False)
    measurements: Measurements = field(init=False)
    live: BoolArray = field(init=False)
    k: int = field(init=False)
    late_policy: LatePolicy = field(init=False)
    estimate: Estimate | None = None
    inclusion: Inclusion = field(init=False)
    silent_s: FloatArray = field(init=False)
    links: LinkDelays = field(init=False)
    follows: BoolArray = field(init=False)  # workers that can get results from a peer
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=CHANGES_KEPT))
    worth_model: WorthModel = field(init=False)
    history: HistoryLog = field(init=False)
    pace: Pace = field(init=False)  # measured with the present live workers
    metric: float | None = None  # the latest reported value of the workload's metric
    recent: deque[tuple[float, int, pb.Report]] = field(
        init=False
    )  # (time, rank, report) of the reports from which the estimates are computed
    chosen_at: int = 0  # iteration of the latest choice
    _now_s: float = 0.0  # time of the latest forecast

    def __post_init__(self) -> None:
        """Start with all workers live."""
        self.chooser = Chooser(
            goal=objective(self.policy.objective, self.workers),
            window=self.policy.window,
            predictor=Predictor(),
        )
        self.follows = np.zeros(self.workers, np.bool_)
        self.restart(range(self.workers))

    def restart(self, live: Iterable[int]) -> None:
        """Restart with these live workers: forget all measurements, and set k to the objective's start value."""
        self.measurements = Measurements(workers=self.workers, window=self.policy.window)
        self.live = np.isin(np.arange(self.workers), list(live))
        self.silent_s = np.zeros(self.workers)
        self.links = LinkDelays.unknown(self.workers)
        self.estimate = None
        self.inclusion = Inclusion(self.policy.include_after)
        self.chooser.restart()
        self.pace = Pace(workers=self.workers)
        self.worth_model = WorthModel(workers=self.workers, average=self.average)
        self.history = HistoryLog(workers=self.workers)
        self.recent = deque(maxlen=self.policy.window * self.workers)
        self.chosen_at = 0
        self.k = self._start_k(self.goal.name)
        self.late_policy = self.late_policies[-1]

    @property
    def goal(self) -> Objective:
        """The objective that chooses k."""
        return self.chooser.goal

    @property
    def choice(self) -> Choice | None:
        """The latest choice, for the workers that were live then."""
        return self.chooser.choice

    @property
    def prediction(self) -> Prediction | None:
        """The prediction from which the latest choice was computed."""
        return self.chooser.prediction

    @property
    def iteration(self) -> int:
        """The latest iteration that any worker reported."""
        return self.measurements.iteration

    def report(self, rank: int, report: pb.Report, now_s: float) -> bool:
        """Take a worker's report; return False if it was refused. The first report of an iteration shows that the
        iteration has ended.
        """
        before = self.iteration
        if not self.measurements.report(rank, report, now_s):
            return False
        self.recent.append((now_s, rank, report))
        if report.HasField("metric") and math.isfinite(report.metric):
            self.metric = report.metric
        self.worth_model.report(rank, report)
        self.history.report(rank, report, self.k, now_s)
        if self.iteration > before:
            self.pace.ended(self.iteration, self.k, self.late_policy.rule, now_s)
        self.pace.caught_up(report.age, report.catch_up_s)
        if not report.late:
            first_block_s, iteration_s = report.first_block_s, report.iteration_s
            self.pace.followed(
                rank, report.iteration, self.k, first_block_s=first_block_s, iteration_s=iteration_s, now_s=now_s
            )
        return True

    def reports(self, reports: Reports, aggregate: pb.Report) -> None:
        """Take the reports of all workers of an iteration at once, as a simulation makes them: all have the same k and
        rule.

        `aggregate` describes the iteration's aggregate, which is the same for all workers.
        """
        before = self.iteration
        self.measurements.take(reports)
        self.worth_model.report(0, aggregate)
        self.history.take(reports, self.k)
        if self.iteration > before:
            self.pace.ended(self.iteration, self.k, self.late_policy.rule, float(reports.now_s.max()))
        timely = reports.at(~reports.late)
        self.pace.followed(
            timely.rank,
            self.iteration,
            self.k,
            first_block_s=timely.first_block_s,
            iteration_s=timely.iteration_s,
            now_s=timely.now_s,
        )

    def due(self, now_s: float) -> bool:
        """Return whether a choice is due: enough iterations have passed, a link has become slow or normal again, or a
        worker is silent for unexpectedly long."""
        fixed = self.goal.fixed
        every = max(self.policy.decide_every, FORECAST_EVERY if fixed else 0)
        if self.iteration >= self.chosen_at + every:
            return True
        if self.inclusion.due(self.measurements, self.live, self.k, starves=_starves(self.goal, self.late_policy)):
            return True
        if fixed:
            return bool(np.any(_compared(self.measurements, self.live, self.links).slow != self.links.slow))
        return self.inclusion.rank is None and self._overdue(now_s)

    def choose(self, now_s: float) -> Change | None:
        """Fit, forecast and choose; return the change, None if there is none."""
        fresh, self.chosen_at = self.iteration - self.chosen_at, self.iteration
        if not self.live.any():
            return None
        known = self._forecast(now_s)
        starves = _starves(self.goal, self.late_policy)
        if self.inclusion.rank is not None:
            due = self.inclusion.due(self.measurements, self.live, self.k, starves=starves)
            return self._release(self.inclusion.rank) if due else None
        if (rank := self.inclusion.excluded(self.measurements, self.live, self.k, starves=starves)) is not None:
            return self._include(rank)
        if not known:
            return None
        return self._choose(f"{self.goal.name}:", self.policy.margin, None if self._news() else fresh)

    def set_objective(self, text: str, now_s: float) -> Change | None:
        """Follow another objective from now on. Raise ConfigError if the text names no objective of this job."""
        self.chooser.follow(objective(text, self.workers))
        self.inclusion.rank = None
        if self.live.any() and self._forecast(now_s):
            return self._choose(f"objective set to {text}:", 0.0)
        return self._set_k(self._start_k(text), f"objective set to {text}", self.late_policies[-1])

    @property
    def late_policies(self) -> tuple[LatePolicy, ...]:
        """The policies for late gradients that the objective and the configuration leave open. In a tree only the
        configuration's policy remains, because no late gradient is merged there. Training starts under the last policy,
        because that policy allows the most measurements.
        """
        given = self.policy.late_policy
        if self.goal.rule is not None:
            return (given._replace(rule=self.goal.rule),)
        if self.racks > 1:
            return (given,)
        if len(self.goal.late_policies) == 1:
            return self.goal.late_policies
        if self.policy.late_gradient != "auto" or not self.goal.late_policies:
            return (given,)
        if self.policy.age_weight is None:
            return self.goal.late_policies
        weighed = (candidate._replace(age_weight=given.age_weight) for candidate in self.goal.late_policies)
        return tuple(dict.fromkeys(weighed))

    def worker_left(self, rank: int, why: str, now_s: float) -> Change | None:
        """Remove a worker from the live workers, and choose k again, at most the number of live workers."""
        self.live[rank] = False
        self.chooser.evidence.forget()
        self.pace = Pace(workers=self.workers)
        if self.inclusion.rank == rank:
            self.inclusion.rank = None
        count = int(self.live.sum())
        if not count:
            return None
        reason = f"worker {rank} {why}: {count} of {self.workers} live"
        if self._forecast(now_s) and self.inclusion.rank is None:
            return self._choose(f"{reason}; {self.goal.name}:", 0.0 if self.k > count else self.policy.margin)
        return self._set_k(self.k, reason)

    def worker_joined(self, rank: int, why: str, now_s: float, iteration: int = 0) -> Change | None:
        """Add a worker that joins late or rejoins in this iteration to the live workers, and choose k.

        The worker's silence counts from now on. While it is too early for a choice, k follows n if k was n.
        """
        everyone = self.k == int(self.live.sum())
        self.live[rank] = True
        self.chooser.evidence.forget()
        self.pace = Pace(workers=self.workers)
        self.measurements.join(rank, now_s, iteration)
        count = int(self.live.sum())
        reason = f"worker {rank} {why}: {count} of {self.workers} live"
        if self._forecast(now_s) and self.inclusion.rank is None:
            return self._choose(f"{reason}; {self.goal.name}:", self.policy.margin)
        wanted = count if self.inclusion.rank is not None else self._start_k(self.goal.name)
        return self._set_k(wanted if everyone else min(self.k, wanted), reason)

    def _start_k(self, text: str) -> int:
        """Return an objective's first k: its fixed K; half of the live workers if it chooses the rule; else all."""
        live = int(self.live.sum())
        fixed = check_objective(text, self.workers, "objective")
        if fixed is None:
            return bound_k(live if len(self.late_policies) == 1 else live // 2, live)
        return bound_k(fixed.k, live)

    def _include(self, rank: int) -> Change | None:
        """Set k to n. `_release` ends the inclusion, once the worker has been in a sum."""
        self.inclusion.rank = rank
        times = self.measurements.late_in_a_row[rank]
        count = int(self.live.sum())
        return self._set_k(count, f"worker {rank} was too late {times} times in a row: k = n until it is in a sum")

    def _release(self, rank: int) -> Change | None:
        """Return to the objective's choice, because this worker has been in a sum."""
        self.inclusion.rank = None
        reason = f"worker {rank} was in a sum;"
        if self._warm() and self.estimate is not None:
            return self._choose(f"{reason} {self.goal.name}:", 0.0)
        return self._set_k(self._start_k(self.goal.name), f"{reason} {self.goal.name}")

    def _overdue(self, now_s: float) -> bool:
        """Return whether a live worker has been silent for longer than the estimate of its block time."""
        if self.estimate is None or not self._warm():
            return False
        expected_s = self.estimate.service_s + self.estimate.lambda_s + self.estimate.event_s - self.links.delays_s
        return bool(np.any(self.live & (self.measurements.silent_s(now_s) > expected_s)))

    def _news(self) -> bool:
        """Return whether a live worker has been silent for longer than almost all of its blocks take."""
        assert self.estimate is not None
        events = self.estimate.high_s / self.estimate.event_s
        passed = np.maximum(self._silent_s() - self.estimate.service_s, 0.0) / self.estimate.event_s
        silent = self.live & (passed > 0) & np.isfinite(events)
        return bool(np.any(special.pdtr(passed[silent], events[silent]) > 1 - UNHEARD_OF))

    def _warm(self) -> bool:
        """Return whether there are enough iterations for the objective, and enough reports of each live worker."""
        if self.iteration < self.goal.warm_up:
            return False
        return bool(np.all(self.measurements.reports[self.live] >= self.policy.warm_up))

    def _forecast(self, now_s: float) -> bool:
        """Fit the model to the present measurements; return False while there are too few for a choice."""
        taken, self._now_s = self.measurements, now_s
        self.silent_s = taken.silent_s(now_s)
        times_s, cut = taken.times_s, taken.cut
        self.links = _compared(taken, self.live, self.links)
        times_s += self.links.delays_s[:, None]
        self.estimate = fit(times_s, cut, self._silent_s(), taken.iterations, self.estimate, self.racks)
        return self._warm()

    def _silent_s(self) -> FloatArray:
        """Return lower bounds of silent workers' times, including the transfer; 0 if a worker is not silent."""
        return np.where(self.silent_s > 0, self.silent_s + self.links.delays_s, 0.0)

    @property
    def overhead_s(self) -> float:
        """Seconds of an iteration beyond the k-th block and its transfer, on average; 0 while unknown."""
        return self.pace.overhead_s(self.links.delays_s)

    def _choose(self, reason: str, margin: float, iterations: int | None = None) -> Change | None:
        """Choose by the present estimate (`Chooser.choose`), and add the choice's numbers to the reason.

        If the objective gives no costs, k stays; if fewer than k workers are live, k becomes their number.
        """
        assert self.estimate is not None
        known = Known(
            estimate=self.estimate,
            live=self.live,
            worth_model=self.worth_model,
            overhead_s=self.overhead_s,
            catch_up_s=self.pace.catch_up_s,
            history=self.history.history(self.live, self._now_s),
        )
        choice = self.chooser.choose(
            known, self.late_policies, k=self.k, late_policy=self.late_policy, margin=margin, iterations=iterations
        )
        if choice is None:
            return self._set_k(self.k, f"{reason} {self.chooser.fault}")
        numbers = _numbers(choice, self.k, self.late_policy, self.goal)
        return self._set_k(choice.k, f"{reason} {numbers}", choice.late_policy)

    def _set_k(self, k: int, reason: str, late_policy: LatePolicy | None = None) -> Change | None:
        """Record and return a change; None if k and the late policy (default: the present one) stay the same.

        k is bounded by the number of live workers.
        """
        k, late_policy = bound_k(k, int(self.live.sum())), late_policy or self.late_policy
        if k == self.k and late_policy == self.late_policy:
            return None
        expected_s, predicted_s = _times_s(self.choice, k)
        change = Change(
            iteration=self.iteration,
            k=k,
            previous_k=self.k,
            late_policy=late_policy,
            reason=reason,
            expected_s=expected_s,
            predicted_s=predicted_s,
        )
        self.k, self.late_policy = k, late_policy
        self.chooser.evidence.forget()
        self.changes.append(change)
        return change


def _starves(goal: Objective, late_policy: LatePolicy) -> bool:
    """Return whether a worker that is always late is in no sum, because its gradients wait for a sum in time, and a
    fixed k does not change for the worker's sake."""
    return goal.fixed and RULES[late_policy.rule].keeps


def _compared(taken: Measurements, live: BoolArray, before: LinkDelays) -> LinkDelays:
    """Compare the links by the present measurements; `before`: the previous comparison."""
    service_s = estimate_service(taken.times_s, taken.cut)
    return compare(taken.link_waits_s, taken.link_waits_unsure, live, service_s, before)


def _times_s(choice: Choice | None, k: int) -> tuple[float, float]:
    """Return E_k[T] and the predicted iteration time of this k; NaN if unknown."""
    if choice is None or k != bound_k(k, choice.forecast.workers):
        return float("nan"), float("nan")
    return float(choice.forecast.expected_s[k - 1]), float(choice.forecast.predicted_s[k - 1])


def _numbers(choice: Choice, previous: int, late_policy: LatePolicy, goal: Objective) -> str:
    """Return the numbers that explain the new k or the new policy for late gradients."""
    expected_s, predicted_s = _times_s(choice, choice.k)
    numbers = f"E_{choice.k}[T] = {1e3 * expected_s:.1f}, predicted {1e3 * predicted_s:.1f} ms"
    if len(choice.forecasts) > 1:
        numbers = f"late gradients: {choice.late_policy.rule}, {numbers}"
    before = choice.place_of(late_policy, previous)
    if not goal.unit or before is None:
        return numbers
    now, then = choice.costs[choice.k - 1], choice.all_costs[before]
    return f"{numbers}, cost {1e3 * now:.1f}, not {1e3 * then:.1f} ms"
