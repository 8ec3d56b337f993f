"""Policies: objects that choose k themselves and may remember, where an objective only gives costs."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from kofn.config.plugins import in_words
from kofn.controller.errors import ObjectiveError
from kofn.controller.estimate.measurements import FloatArray

if TYPE_CHECKING:
    from kofn.controller.policy.objective import Forecast  # which asks us for policies


class Policy(ABC):
    """Made with the job's number of workers, for each trial, and anew when a job starts again."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @abstractmethod
    def choose(self, forecast: "Forecast") -> int:
        """k, from 1 to forecast.workers.  Called once a decision, when every live worker has reported."""


def policy_costs(called: str, policy: Policy, forecast: "Forecast") -> FloatArray:
    """Costs (1, n) that the policy's k is the cheapest by; ObjectiveError says what it did instead of choosing one."""
    try:
        k = policy.choose(forecast)
    except Exception as error:  # whatever it raises: it must not end the controller
        raise ObjectiveError(f"{called} failed: {in_words(error)}") from error
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= forecast.workers:
        raise ObjectiveError(f"{called} chose {k!r}: a whole number from 1 to {forecast.workers} is needed")
    return np.abs(forecast.ks - k)[None, :]
