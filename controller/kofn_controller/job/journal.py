"""The journal of decisions and samples, as JSON lines."""

import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kofn_common import wall_clock
from kofn_common.json_text import json_text
from kofn_controller.errors import StartError
from kofn_controller.job.agreement import Agreement
from kofn_controller.policy.control_loop import Change, ControlLoop


class Journal:
    """Appends lines to a file, or does nothing without a path. StartError if the file cannot be opened.

    A decision has time, job, iteration, k, previous_k, late_gradient (the rule), age_weight, reason, lambda_s and
    time_model (the law of the estimate). It has lists over k = 1, 2, ...: expected_s (E_k[T]), predicted_s (of the
    process) and measured_s (null for a k that was not in force). Its overhead_s is the part of an iteration's time that
    measured_s includes and the other two lists do not. The line of a k on which the switch and all workers agree has
    time, job, in_force (k), first_iteration (the first in which k closed a block), certain_from (the first from which
    on k closes all blocks). A new objective has time, job, iteration, objective, planned (true: by an event of the
    configuration, false: by an operator). A failed objective has time, job, iteration, objective, fault. An iteration
    has time, job, iteration, k, lambda_s, live. Times are Unix seconds; unknown values are null.
    """

    def __init__(self, path: Path | None, now: Callable[[], float] = wall_clock.now) -> None:
        """Open the file; each line is written at once."""
        self._now = now
        self._faults: dict[int, str] = {}  # by job: the latest fault of its objective
        try:
            self._file = None if path is None else path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise StartError(f"--decisions {path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        """Return the journal; the end of the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def decision(self, job: int, control_loop: ControlLoop, change: Change) -> None:
        forecast = control_loop.choice.forecast if control_loop.choice else None
        self._write(
            {
                "time": self._now(),
                "job": job,
                "iteration": change.iteration,
                "k": change.k,
                "previous_k": change.previous_k,
                "late_gradient": change.late_policy.rule,
                "age_weight": change.late_policy.age_weight,
                "reason": change.reason,
                "lambda_s": _lambda(control_loop),
                "time_model": control_loop.estimate.law if control_loop.estimate else None,
                "expected_s": forecast.expected_s.tolist() if forecast else [],
                "predicted_s": forecast.predicted_s.tolist() if forecast else [],
                "measured_s": [
                    control_loop.pace.measured(k, control_loop.late_policy.rule).mean_s or None
                    for k in range(1, control_loop.workers + 1)
                ],
                "overhead_s": control_loop.overhead_s or None,
            }
        )

    def sample(self, job: int, control_loop: ControlLoop) -> None:
        """Write the state at a new iteration."""
        self._write(
            {
                "time": self._now(),
                "job": job,
                "iteration": control_loop.iteration,
                "k": control_loop.k,
                "lambda_s": _lambda(control_loop),
                "live": int(control_loop.live.sum()),
            }
        )

    def agreed(self, job: int, agreement: Agreement) -> None:
        """Write from which iteration on a k closes every block."""
        self._write(
            {
                "time": self._now(),
                "job": job,
                "in_force": agreement.k,
                "first_iteration": agreement.first or None,
                "certain_from": agreement.certain,
            }
        )

    def objective(self, job: int, control_loop: ControlLoop, *, planned: bool) -> None:
        """Write the objective that is followed from now on."""
        self._write_objective(job, control_loop, planned=planned)

    def fault(self, job: int, control_loop: ControlLoop) -> None:
        """Write why the objective gave no costs, if the reason is new."""
        fault, before = control_loop.chooser.fault, self._faults.get(job, "")
        self._faults[job] = fault
        if fault not in ("", before):
            self._write_objective(job, control_loop, fault=fault)

    def _write_objective(self, job: int, control_loop: ControlLoop, **news: bool | str) -> None:
        """Write an ObjectiveNote (common/kofn_common/results/objective_notes.py)."""
        place = {"time": self._now(), "job": job, "iteration": control_loop.iteration}
        self._write({**place, "objective": control_loop.goal.name, **news})

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json_text(line) + "\n")


def _lambda(control_loop: ControlLoop) -> list[float | None]:
    """Return each worker's estimate; None before the first fit, or if it is infinite."""
    if control_loop.estimate is None:
        return [None] * control_loop.workers
    return [value if math.isfinite(value) else None for value in control_loop.estimate.lambda_s.tolist()]
