"""Chooses k and a policy for late gradients from an estimate: forecasts, costs, and the certainty of a gain.

An *option* is a policy for late gradients with a k. The module knows nothing of reports, lost workers, or time.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kofn_common.config.late_rules import LatePolicy
from kofn_common.config.objectives import OBJECTIVES
from kofn_controller.errors import ObjectiveError
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.policy.draws import law_times
from kofn_controller.policy.evidence import Evidence, gain_error
from kofn_controller.policy.expected_time import expected_times
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.history import TrainingHistory
from kofn_controller.policy.objective import Choice, Objective, gains
from kofn_controller.policy.policy import Policy, policy_costs
from kofn_controller.policy.prediction import Prediction, Predictor
from kofn_controller.policy.process import Beyond
from kofn_controller.policy.worth import WorthModel

_LOG = logging.getLogger(__name__)

DOUBT = 1.5
"""Factor by which the cost of age and noise may be underestimated: a change must gain even then. The doubt is
one-sided, because gradients that are too old can make a training diverge, while fresher or more gradients only make it
slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The inputs of a choice, for the workers in the mask `live` (workers,)."""

    estimate: Estimate
    live: BoolArray
    worth_model: WorthModel
    overhead_s: float
    catch_up_s: float
    history: TrainingHistory | None = None


@dataclass(slots=True, kw_only=True)
class Chooser:
    """Chooses options for one objective at a time."""

    goal: Objective
    window: int  # the estimate's window, in iterations
    predictor: Predictor
    choice: Choice | None = None  # the latest choice, for the workers that were live then
    prediction: Prediction | None = None  # for the chosen late policy
    fault: str = ""  # why the objective gave no costs; empty if it gave costs
    evidence: Evidence = field(init=False)
    _logged: bool = False  # whether a fault of this objective has been logged
    _policy: Policy | None = field(init=False)  # chooses in place of costs, if the objective is a policy

    def __post_init__(self) -> None:
        self.evidence = Evidence(window=self.window)
        self._policy = self.goal.policy and self.goal.policy()

    def restart(self) -> None:
        """Forget every choice; the objective stays."""
        self.choice = self.prediction = None
        self.fault = ""
        self._policy = self.goal.policy and self.goal.policy()
        self.evidence.forget()

    def follow(self, goal: Objective) -> None:
        """Follow another objective from now on."""
        self.goal, self.fault, self._logged = goal, "", False
        self._policy = goal.policy and goal.policy()
        self.choice = None
        self.evidence.forget()

    def choose(
        self,
        known: Known,
        late_policies: Sequence[LatePolicy],
        *,
        k: int,
        late_policy: LatePolicy,
        margin: float,
        iterations: int | None = None,
    ) -> Choice | None:
        """Return the option to use while `k` and `late_policy` are in force; None if the objective gives no costs.

        `iterations` is the number of iterations since the last choice. A change must then gain more than `margin` for
        sure (the first one need not be sure), and must also gain if age and noise cost DOUBT times as much. Without
        `iterations` it must only gain more than `margin`.
        """
        expected_s = expected_times(known.estimate, known.live)
        base_s = law_times(known.estimate, known.live, expected_s)
        beyond_s = Beyond(known.overhead_s, known.catch_up_s)
        predictions = {
            rule: self.predictor.predict(known.estimate, known.live, base_s, beyond_s, rule)
            for rule in dict.fromkeys(candidate.rule for candidate in late_policies)
        }

        def forecasts(factor: float = 1.0) -> tuple[Forecast, ...]:
            """Return a forecast for each late policy; `factor` multiplies the cost of age and noise."""
            return tuple(
                _forecast(known, expected_s, candidate, predictions[candidate.rule], factor)
                for candidate in late_policies
            )

        try:
            found, first = forecasts(), self.choice is None
            if self._policy is not None:
                iterations, margin = None, 0.0  # the policy itself decides whether a change is worth it
            choice = cheapest(found, self._costs(found), k, late_policy, margin)
            present = choice.place_of(late_policy, k)
            if iterations is not None and present is not None:
                doubted = self.goal.all_costs(forecasts(DOUBT)) if len(found) > 1 else choice.all_costs
                allowed = gains(doubted, float(doubted[present])) > 0
                if first:
                    gain = gains(choice.all_costs, float(choice.all_costs[present]))
                    choice = _cheapest_among(choice, allowed & (gain > margin), present)
                else:
                    choice = self._surely(choice, known, present, allowed, margin, iterations)
        except ObjectiveError as error:
            self._failed(str(error))
            return None
        self.choice, self.fault = choice, ""
        self.prediction = predictions[choice.late_policy.rule]
        return choice

    def _costs(self, forecasts: Sequence[Forecast]) -> FloatArray:
        """Return the costs of several forecasts (forecasts, n), or of a policy's only forecast."""
        if self._policy is None:
            return self.goal.all_costs(forecasts)
        return policy_costs(OBJECTIVES.called(self.goal.name), self._policy, forecasts[0])

    def _surely(
        self,
        choice: Choice,
        known: Known,
        present: tuple[int, int],
        allowed: BoolArray,
        margin: float,
        iterations: int,
    ) -> Choice:
        """Return the choice of the cheapest `allowed` option that surely gains, or of the present option if none
        does."""
        gain, error = gains(choice.all_costs, float(choice.all_costs[present])), self.evidence.error
        if error.shape != gain.shape or choice.gain > margin:  # otherwise nothing changes, and the old error suffices
            error = gain_error(known.estimate, known.live, choice.forecasts, self.goal.all_costs, present)
        at, k = present
        slow = (np.arange(1, gain.shape[1] + 1) > k + 1) | (np.arange(len(gain)) != at)[:, None]
        sure = self.evidence.weigh(gain, error, slow, margin=margin, iterations=iterations)
        best = choice.late_policies.index(choice.best_late_policy)
        return replace(_cheapest_among(choice, sure & allowed, present), gain_error=float(error[best, choice.best - 1]))

    def _failed(self, fault: str) -> None:
        if not self._logged:
            _LOG.error("%s; the last k stays in force (further faults are not logged)", fault)
        self.fault, self._logged = fault, True


def _cheapest_among(choice: Choice, which: BoolArray, present: tuple[int, int]) -> Choice:
    """Return the choice with the cheapest option in the mask `which` (late_policies, n), or with the present
    option if the mask is empty."""
    chosen = np.unravel_index(np.argmin(np.where(which, choice.all_costs, np.inf)), which.shape)
    at, place = (int(chosen[0]), int(chosen[1])) if which.any() else present
    return replace(choice, k=place + 1, late_policy=choice.forecasts[at].late_policy)


def cheapest(
    forecasts: tuple[Forecast, ...], costs: FloatArray, k: int, late_policy: LatePolicy, margin: float
) -> Choice:
    """Return the choice of the cheapest option, or of the present one if it is possible and costs at most `margin` (a
    share) more.
    """
    at, place = np.unravel_index(np.argmin(costs), costs.shape)
    best, best_late_policy = int(place) + 1, forecasts[int(at)].late_policy
    choice = Choice(
        k=best,
        late_policy=best_late_policy,
        best=best,
        best_late_policy=best_late_policy,
        forecasts=forecasts,
        all_costs=costs,
    )
    present = choice.place_of(late_policy, k)
    if present is None:
        return choice
    gain = float(gains(costs, float(costs[present]))[at, place])
    return replace(choice, gain=gain) if gain > margin else replace(choice, k=k, late_policy=late_policy, gain=gain)


def _forecast(
    known: Known, expected_s: FloatArray, late_policy: LatePolicy, prediction: Prediction, factor: float
) -> Forecast:
    """Return the forecast of one late policy; `factor` multiplies the cost of age and noise."""
    return Forecast(
        expected_s=expected_s,
        predicted_s=prediction.mean_s,
        overhead_s=known.overhead_s,
        worth=known.worth_model.worth(prediction, known.live, late_policy.age_weight, factor),
        late_policy=late_policy,
        history=known.history,
    )
