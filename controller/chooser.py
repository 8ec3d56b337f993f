"""From an estimate to a k: forecast, the objective's costs, and whether a change is worth it and sure.

Holds what the choice rests on. Knows nothing of reports, of who was lost, or of time.
"""

import logging
from dataclasses import dataclass, field, replace

import numpy as np

from controller.prediction import Prediction, Predictor
from controller.choose import Choice, Forecast, Objective, choose, expected_times, gains
from controller.errors import ObjectiveError
from controller.evidence import Evidence, gain_error
from controller.measure import BoolArray
from controller.model import Estimate
from controller.progress import Progress

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Chooser:
    """Follows one objective at a time; `window` is the estimate's, in iterations."""

    goal: Objective
    window: int
    predictor: Predictor
    choice: Choice | None = None  # over the workers that were live then
    prediction: Prediction | None = None  # that it rests on
    fault: str = ""  # what the objective did instead of giving costs; empty: it gave some
    evidence: Evidence = field(init=False)
    _logged: bool = False  # that this objective failed

    def __post_init__(self) -> None:
        """Nothing is known."""
        self.evidence = Evidence(window=self.window)

    def restart(self) -> None:
        """Forget every choice; the objective stays."""
        self.choice = self.prediction = None
        self.fault = ""
        self.evidence.forget()

    def follow(self, goal: Objective) -> None:
        """Another objective from now on."""
        self.goal, self.fault, self._logged = goal, "", False
        self.evidence.forget()

    def choose(
        self,
        estimate: Estimate,
        live: BoolArray,
        progress: Progress,
        overhead_s: float,
        *,
        k: int,
        margin: float,
        iterations: int | None = None,
    ) -> Choice | None:
        """The k to use where `k` is in force; None where the objective gives no costs (`fault` says why).

        With `iterations`, the number since the last look, a change has to be sure; without, it need only gain `margin`.
        """
        expected_s = expected_times(estimate, live)
        self.prediction = self.predictor.predict(estimate, live, expected_s, overhead_s)
        forecast = Forecast(
            expected_s=expected_s,
            predicted_s=self.prediction.mean_s,
            overhead_s=overhead_s,
            worth=progress.worth(self.prediction),
        )
        try:
            choice = choose(forecast, self.goal, current=k, margin=margin)
            if iterations is not None and k <= forecast.workers:
                choice = self._surely(choice, estimate, live, k, margin, iterations)
        except ObjectiveError as error:
            self._failed(str(error))
            return None
        self.choice, self.fault = choice, ""
        return choice

    def _surely(
        self, choice: Choice, estimate: Estimate, live: BoolArray, k: int, margin: float, iterations: int
    ) -> Choice:
        """The cheapest k of those that surely gain; the present one where there is none."""
        gain, error = gains(choice.costs, k), self.evidence.error
        if len(error) != len(gain) or choice.gain > margin:  # a look at gains that change nothing may go by an old one
            error = gain_error(estimate, live, choice.forecast, self.goal.costs, k)
        sure = self.evidence.weigh(gain, error, k, margin=margin, iterations=iterations)
        chosen = int(np.argmin(np.where(sure, choice.costs, np.inf))) + 1 if sure.any() else k
        return replace(choice, k=chosen, gain_error=float(error[choice.best - 1]))

    def _failed(self, fault: str) -> None:
        """Say the first one."""
        if not self._logged:
            _LOG.error("%s; the last k stays in force (further faults are not logged)", fault)
        self.fault, self._logged = fault, True
