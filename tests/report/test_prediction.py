"""The controller's statuses give a prediction of a whole trial."""

from typing import Any

import pytest

from kofn.report.prediction import predicted_iteration_s


def status(iteration: int, *predicted_s: float, k: int = 1, overhead_s: float = 0.001) -> dict[str, Any]:
    expected = [{"k": rank + 1, "predicted_s": time_s} for rank, time_s in enumerate(predicted_s)]
    return {"iteration": iteration, "k": k, "expected": expected, "overhead_s": overhead_s}


def test_iterations_use_the_next_status_with_a_prediction() -> None:
    statuses = [status(4), status(8, 0.01, 0.02), status(8, 0.5, 0.5), status(10, 0.01, 0.04, k=2)]
    assert predicted_iteration_s(statuses) == pytest.approx((8 * 0.011 + 2 * 0.041) / 10)


def test_prediction_after_the_last_iteration_counts() -> None:
    assert predicted_iteration_s([status(22), status(22, 0.01)]) == pytest.approx(0.011)


def test_nothing_is_predicted_without_an_overhead_or_a_choice() -> None:
    assert predicted_iteration_s([]) is None
    assert predicted_iteration_s([status(4), status(8, 0.01, overhead_s=0.0)]) is None
