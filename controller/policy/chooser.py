"""The choice of k and of a policy for late gradients from an estimate: forecasts, costs, and the certainty of a gain.

An *option* is a policy for late gradients and a k. The module holds the basis of the choice; it knows nothing of
reports, of lost workers, or of time.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kofn.config.late_rules import LatePolicy
from kofn.config.objectives import OBJECTIVES
from kofn.controller.errors import ObjectiveError
from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.estimate.model import Estimate
from kofn.controller.policy.draws import law_times
from kofn.controller.policy.evidence import Evidence, gain_error
from kofn.controller.policy.expected_time import expected_times
from kofn.controller.policy.history import TrainingHistory
from kofn.controller.policy.objective import Choice, Forecast, Objective, gains
from kofn.controller.policy.policy import Policy, policy_costs
from kofn.controller.policy.prediction import Prediction, Predictor
from kofn.controller.policy.process import Beyond
from kofn.controller.policy.worth import WorthModel

_LOG = logging.getLogger(__name__)

DOUBT = 1.5
"""Factor by which the cost of age and noise may be underestimated before a change counts as wrong. Gradients that are
too old can make a training diverge; fresher or more gradients only make it slower. So the doubt is to one side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The basis of a choice, for the workers in the mask `live` (workers,)."""

    estimate: Estimate
    live: BoolArray
    worth_model: WorthModel
    overhead_s: float
    catch_up_s: float
    history: TrainingHistory | None = None


@dataclass(slots=True, kw_only=True)
class Chooser:
    """Follows one objective at a time; `window` is the estimate's, in iterations."""

    goal: Objective
    window: int
    predictor: Predictor
    choice: Choice | None = None  # over the workers that were live then
    prediction: Prediction | None = None  # that it rests on, under the policy to use
    fault: str = ""  # what the objective did instead of giving costs; empty: it gave some
    evidence: Evidence = field(init=False)
    _logged: bool = False  # that this objective failed
    _policy: Policy | None = field(init=False)  # that chooses, where the objective is one

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
        """Another objective from now on."""
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
        """The option to use where `k` and `late_policy` are in force; None where the objective gives no costs.

        With `iterations`, their number since the last look, a change must gain even if age and noise cost DOUBT times
        as much. Except for the first change, the gain must also be sure. Without, it must only gain `margin`.
        """
        expected_s = expected_times(known.estimate, known.live)
        base_s = law_times(known.estimate, known.live, expected_s)
        beyond_s = Beyond(known.overhead_s, known.catch_up_s)
        predictions = {
            rule: self.predictor.predict(known.estimate, known.live, base_s, beyond_s, rule)
            for rule in dict.fromkeys(each.rule for each in late_policies)
        }

        def forecasts(factor: float = 1.0) -> tuple[Forecast, ...]:
            """Return one for each policy, where what age and noise cost is off by a factor."""
            return tuple(_forecast(known, expected_s, each, predictions[each.rule], factor) for each in late_policies)

        try:
            found, first = forecasts(), self.choice is None
            if self._policy is not None:
                iterations, margin = None, 0.0  # it alone says whether a change is worth it
            choice = cheapest(found, self._costs(found), k, late_policy, margin)
            present = choice.place_of(late_policy, k)
            if iterations is not None and present is not None:
                doubted = self.goal.all_costs(forecasts(DOUBT)) if len(found) > 1 else choice.all_costs
                allowed = gains(doubted, float(doubted[present])) > 0
                if first:
                    gain = gains(choice.all_costs, float(choice.all_costs[present]))
                    choice = _of(choice, allowed & (gain > margin), present)
                else:
                    choice = self._surely(choice, known, present, allowed, margin, iterations)
        except ObjectiveError as error:
            self._failed(str(error))
            return None
        self.choice, self.fault = choice, ""
        self.prediction = predictions[choice.late_policy.rule]
        return choice

    def _costs(self, forecasts: Sequence[Forecast]) -> FloatArray:
        """Return the costs of several forecasts (forecasts, n); a policy has a single one."""
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
        """The cheapest of the `allowed` options that surely gain; the present one where there is none."""
        gain, error = gains(choice.all_costs, float(choice.all_costs[present])), self.evidence.error
        if error.shape != gain.shape or choice.gain > margin:  # where nothing is to change, an old one will do
            error = gain_error(known.estimate, known.live, choice.forecasts, self.goal.all_costs, present)
        at, k = present
        slow = (np.arange(1, gain.shape[1] + 1) > k + 1) | (np.arange(len(gain)) != at)[:, None]
        sure = self.evidence.weigh(gain, error, slow, margin=margin, iterations=iterations)
        best = choice.late_policies.index(choice.best_late_policy)
        return replace(_of(choice, sure & allowed, present), gain_error=float(error[best, choice.best - 1]))

    def _failed(self, fault: str) -> None:
        if not self._logged:
            _LOG.error("%s; the last k stays in force (further faults are not logged)", fault)
        self.fault, self._logged = fault, True


def _of(choice: Choice, which: BoolArray, present: tuple[int, int]) -> Choice:
    """With the cheapest of these options (late_policies, n) to use; with the present one where there is none."""
    chosen = np.unravel_index(np.argmin(np.where(which, choice.all_costs, np.inf)), which.shape)
    at, place = (int(chosen[0]), int(chosen[1])) if which.any() else present
    return replace(choice, k=place + 1, late_policy=choice.forecasts[at].late_policy)


def cheapest(
    forecasts: tuple[Forecast, ...], costs: FloatArray, k: int, late_policy: LatePolicy, margin: float
) -> Choice:
    """Return the cheapest option; or the present one, if it is possible and costs at most `margin` (a share) more."""
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
    """Return it under one policy, where what age and noise cost is off by a factor."""
    return Forecast(
        expected_s=expected_s,
        predicted_s=prediction.mean_s,
        overhead_s=known.overhead_s,
        worth=known.worth_model.worth(prediction, known.live, late_policy.age_weight, factor),
        late_policy=late_policy,
        history=known.history,
    )
