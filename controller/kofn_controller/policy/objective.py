"""Defines an objective, and the choice that follows from its costs."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.k_bounds import bound_k
from kofn_common.config.late_rules import LatePolicy, RuleName
from kofn_common.config.objectives import OBJECTIVES, check_objective
from kofn_common.config.plugins import in_words
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.plugin import guarded
from kofn_controller.policy.policy import Policy

EXCLUDED = 1e3
"""Factor on the cost of a k that an objective excludes."""


def no_k(forecast: Forecast) -> dict[int, str]:
    """Exclude no k."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """An objective: a name, and costs (n,) of k = 1..n to minimise."""

    name: str
    costs: Callable[[Forecast], FloatArray]
    unit: str  # unit of the costs, for messages: "s", or "" if they have none
    rule: RuleName | None = None  # rule for late gradients; None: the objective fixes no rule
    late_policies: tuple[LatePolicy, ...] = ()  # the candidates; empty: only the configuration's policy
    warm_up: int = 0  # iterations before the first choice
    fixed: bool = False  # whether the costs depend on k alone, so that the forecast is only shown
    policy: Callable[[], Policy] | None = None  # makes a policy, which chooses in place of the costs
    excludes: Callable[[Forecast], dict[int, str]] = no_k  # returns the excluded ks, each with the reason

    def all_costs(self, forecasts: Sequence[Forecast]) -> FloatArray:
        """Return the costs of several forecasts (forecasts, n). Costs of excluded ks are EXCLUDED times as large."""
        costs = np.stack([self.costs(forecast) for forecast in forecasts])
        for row, forecast in zip(costs, forecasts, strict=True):
            for k in self.excludes(forecast):
                row[k - 1] *= EXCLUDED
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The k and the policy for late gradients to use, and the numbers behind them.

    `best` and `best_late_policy` are the cheapest option. They differ from `k` and `late_policy` if the gain is within
    the margin or not sure. `forecasts` and `all_costs` cover all late policies, `forecast` and `costs` the chosen one.
    """

    k: int
    late_policy: LatePolicy
    best: int
    best_late_policy: LatePolicy
    forecasts: tuple[Forecast, ...]
    all_costs: FloatArray  # (late_policies, n)
    gain: float = 0.0  # the share of the present option's cost that the cheapest option saves
    gain_error: float = 0.0  # standard error of the gain; 0 if it was not computed

    @property
    def late_policies(self) -> list[LatePolicy]:
        """The late policies of `forecasts`."""
        return [forecast.late_policy for forecast in self.forecasts]

    @property
    def place(self) -> int:
        """The place of the chosen late policy in `forecasts`."""
        return self.late_policies.index(self.late_policy)

    def place_of(self, late_policy: LatePolicy, k: int) -> tuple[int, int] | None:
        """Return the place of an option in `all_costs`; None if the option is not possible."""
        if late_policy not in self.late_policies or k != bound_k(k, self.all_costs.shape[1]):
            return None
        return self.late_policies.index(late_policy), k - 1

    @property
    def forecast(self) -> Forecast:
        """The forecast under the chosen late policy."""
        return self.forecasts[self.place]

    @property
    def costs(self) -> FloatArray:
        """The costs of k = 1..n under the chosen late policy (n,)."""
        return np.asarray(self.all_costs[self.place])


def objective(text: str, workers: int) -> Objective:
    """Return the objective of this name; ConfigError if there is none, or if a plug-in does not load."""
    fixed = check_objective(text, workers, "objective")
    if fixed is not None:
        return Objective(
            name=text, costs=lambda forecast: np.abs(forecast.ks - fixed.k), unit="", rule=fixed.rule, fixed=True
        )
    found = OBJECTIVES.load(text)
    if isinstance(found, type):
        base: type[Policy] = Policy  # type: ignore[type-abstract]
        maker = _maker(text, OBJECTIVES.load_class(text, base), workers)
        return Objective(name=text, costs=lambda forecast: 0 * forecast.ks, unit="", policy=maker)
    if not isinstance(found, Objective):
        found = Objective(name=text, costs=found, unit="")
    if text in OBJECTIVES.built_in:
        return found
    return replace(found, name=text, costs=guarded(OBJECTIVES.called(text), found.costs))


def _maker(text: str, kind: type[Policy], workers: int) -> Callable[[], Policy]:
    """Return a function that makes the policy. ConfigError, at once, if it cannot be made or asked."""
    try:
        given = inspect.signature(kind(workers).choose)
    except Exception as error:  # whatever a foreign class does
        raise ConfigError(f"{OBJECTIVES.called(text)} failed: {in_words(error)}") from error
    try:
        given.bind(None)
    except TypeError:
        raise ConfigError(f"{OBJECTIVES.called(text)} must have choose(forecast), got choose{given}") from None
    return partial(kind, workers)


GAIN_MAX = 1e6
"""Maximum absolute value of a gain."""


def gains(costs: FloatArray, present: float) -> FloatArray:
    """Return the share of the present cost that each of `costs` saves, in their shape; negative if it costs more."""
    with np.errstate(over="ignore"):
        saved = (present - costs) / max(abs(present), 1e-300)
    return np.clip(saved, -GAIN_MAX, GAIN_MAX)
