"""The controller's predictions for the iterations of a trial, from its statuses."""

from collections.abc import Sequence

import numpy as np

from kofn.report.recoveries import Status


def predicted_iteration_s(statuses: Sequence[Status]) -> float | None:
    """Return the mean predicted iteration time for the k in force, with transfer, sum and step; None without
    predictions.

    A status with a prediction covers the iterations since the previous status with a prediction.
    """
    times_s: list[float] = []
    iterations: list[int] = []
    before = 0
    for status in statuses:
        time_s, new = predicted_s(status), status["iteration"] - before
        if time_s is not None and new > 0:
            times_s.append(time_s)
            iterations.append(new)
            before = status["iteration"]
    return float(np.average(times_s, weights=iterations)) if times_s else None


def predicted_s(status: Status) -> float | None:
    """Return an iteration's time with the k in force; None before a decision, or before an overhead was measured."""
    overhead_s: float = status.get("overhead_s", 0.0)
    times_s = [entry.get("predicted_s", 0.0) for entry in status["expected"] if entry["k"] == status["k"]]
    return times_s[0] + overhead_s if times_s and times_s[0] and overhead_s else None
