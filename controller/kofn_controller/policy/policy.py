"""Policies: plug-ins that choose k themselves and may keep state, while an objective only gives costs."""

from abc import ABC, abstractmethod

import numpy as np

from kofn_common.config.k_bounds import bound_k
from kofn_common.config.plugins import in_words
from kofn_controller.errors import ObjectiveError
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.forecast import Forecast


class Policy(ABC):
    """The base of policies. Each trial, and each restart of a job, makes a new policy with the job's number of
    workers."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @abstractmethod
    def choose(self, forecast: Forecast) -> int:
        """Return k, 1 to forecast.workers. Called once a decision, after every live worker has reported."""


def policy_costs(called: str, policy: Policy, forecast: Forecast) -> FloatArray:
    """Return costs (1, n) by which the policy's k is the cheapest; ObjectiveError if it did not choose a possible k."""
    try:
        k = policy.choose(forecast)
    except Exception as error:  # whatever it raises: it must not end the controller
        raise ObjectiveError(f"{called} failed: {in_words(error)}") from error
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k != bound_k(int(k), forecast.workers):
        raise ObjectiveError(f"{called} must choose a whole number from 1 to {forecast.workers}, got {k!r}")
    return np.abs(forecast.ks - k)[None, :]
