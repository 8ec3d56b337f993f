"""Defines the inputs of an objective or a policy. The module knows no objective and no policy."""

from dataclasses import dataclass, field

import numpy as np

from kofn_common.config.late_rules import LatePolicy
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.history import TrainingHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """All inputs of an objective or a policy, for k = 1..n of n live workers (n,).

    All values hold under the policy for late gradients `late_policy`. `expected_s` is E_k[T] in seconds, as if all
    workers started together; `predicted_s` is the same time in the real process, in which the workers start at
    different times (`process`). Both times end with the k-th gradient. `overhead_s` is the time after the k-th
    gradient, in seconds, for transfer, sum and step. `worth` is the progress of an iteration, 1 for the mean of exact
    and fresh gradients (controller/kofn_controller/policy/worth.py). `history` has the latest iterations; None if they
    are unknown.
    """

    expected_s: FloatArray
    predicted_s: FloatArray
    overhead_s: float
    worth: FloatArray
    late_policy: LatePolicy = field(default_factory=LatePolicy)
    history: TrainingHistory | None = None

    @property
    def workers(self) -> int:
        return len(self.expected_s)

    @property
    def ks(self) -> FloatArray:
        """The numbers 1..n (n,)."""
        return np.arange(1, self.workers + 1, dtype=np.float64)
