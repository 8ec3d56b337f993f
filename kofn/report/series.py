"""Reads a run's files into the series of the report."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kofn.report.compressed import planned_ratio
from kofn.report.figures import Floats, Mark, Panel, Series, TrialSeries, WorkerSeries
from kofn.report.prediction import predicted_s
from kofn.report.recoveries import read_lines
from kofn.report.summarise import first_finishes, training_start_s
from kofn_common.results.folder import TrialFolder
from kofn_common.results.worker_metrics import Iteration, WorkerMetrics


def read_series(
    folder: TrialFolder, metrics: Sequence[WorkerMetrics], name: str, marks: tuple[Mark, ...] = ()
) -> TrialSeries:
    """Return all series of one trial, whose workers' files are read already."""
    statuses = read_lines(folder.status)
    finished = first_finishes(metrics)
    iterations = _floats([line.iteration for line in finished])
    times = _floats([training_start_s(metrics), *(line.time for line in finished)])
    return TrialSeries(
        name=name,
        k=Series(x=iterations, y=_floats([line.k for line in finished])),
        accuracy=_accuracy(metrics),
        iteration_ms=Series(x=iterations, y=1e3 * np.diff(times)),
        expected_ms=_expected(statuses),
        predicted_ms=_predicted(statuses),
        workers=tuple(_worker(worker, statuses) for worker in metrics),
        compression=_compression(metrics),
        marks=marks,
    )


def _accuracy(workers: Sequence[WorkerMetrics]) -> Series:
    begin = training_start_s(workers)
    known = [line for line in first_finishes(workers) if line.accuracy is not None]
    return Series(x=_floats([line.time - begin for line in known]), y=_floats([line.accuracy for line in known]))


def _compression(workers: Sequence[WorkerMetrics]) -> tuple[Panel, ...]:
    """Return the panels; empty if the workers do not report the bytes that they sent."""
    sent = _means(workers, lambda line: line.wire_ratio)
    if not sent:
        return ()
    nothing: list[tuple[float, float]] = []
    planned = _means(workers, planned_ratio)
    return tuple(
        Panel(title=title, unit=unit, measured=_series(measured), planned=_series(dashed))
        for title, unit, measured, dashed in (
            ("Bytes sent of a gradient (dashed: planned)", "of float32", sent, planned),
            ("What encoding left over", "L2 norm", _means(workers, lambda line: line.error_norm), nothing),
            (
                "What is pending after an iteration",
                "L2 norm",
                _means(workers, lambda line: line.residual_norm),
                nothing,
            ),
        )
    )


def _means(workers: Sequence[WorkerMetrics], value: Callable[[Iteration], float | None]) -> list[tuple[float, float]]:
    """Return each iteration's mean over the workers that have a value."""
    known: dict[int, list[float]] = defaultdict(list)
    for line in (line for worker in workers for line in worker.iterations):
        if (number := value(line)) is not None:
            known[line.iteration].append(number)
    return [(iteration, sum(several) / len(several)) for iteration, several in sorted(known.items())]


def _expected(statuses: Sequence[dict[str, Any]]) -> Series:
    points = [
        (status["iteration"], 1e3 * entry["iteration_s"])
        for status in statuses
        for entry in status["expected"]
        if entry["k"] == status["k"]
        and entry["iteration_s"] is not None  # null: infinite, as with too few live workers
    ]
    return _series(points)


def _predicted(statuses: Sequence[dict[str, Any]]) -> Series:
    times = [(status["iteration"], predicted_s(status)) for status in statuses]
    points = [(iteration, 1e3 * time_s) for iteration, time_s in times if time_s is not None]
    return _series(points)


def _worker(worker: WorkerMetrics, statuses: Sequence[dict[str, Any]]) -> WorkerSeries:
    points = [
        (status["iteration"], entry)
        for status in statuses
        for entry in status["worker"]
        if entry["rank"] == worker.rank and int(entry["samples"])
    ]
    lines = worker.iterations
    return WorkerSeries(
        rank=worker.rank,
        injected=Series(
            x=_floats([line.iteration for line in lines]), y=1e3 * _floats([line.injected_mean_s for line in lines])
        ),
        estimated=Series(x=_floats([x for x, _ in points]), y=_milliseconds(points, "lambda_s")),
        low=_milliseconds(points, "lambda_low_s"),
        high=_milliseconds(points, "lambda_high_s"),
    )


def _milliseconds(points: Sequence[tuple[int, dict[str, Any]]], name: str) -> Floats:
    return 1e3 * _floats([entry[name] for _, entry in points])


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)


def _series(points: Sequence[tuple[float, float]]) -> Series:
    return Series(x=_floats([x for x, _ in points]), y=_floats([y for _, y in points]))
