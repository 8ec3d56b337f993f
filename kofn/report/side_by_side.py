"""Two runs side by side: their trials, and the differences of their configurations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from kofn.report.formatting import counts, integer, link_bytes, milliseconds, ratio, seconds, traffic
from kofn.report.summary import TrialSummary, stored_summary
from kofn.report.table import PlainTable
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from kofn_host.workload import Metric

FIGURES = ("time_to_target_s", "iterations_to_target", "mean_iteration_s", "k_iterations", "bytes_sent", "link_bytes")
"""The values of each trial in the JSON document."""

NAMED = ("run.name", "job.modules")
"""Keys that do not count as differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSide:
    """One run of one job."""

    path: Path
    config: Config
    metric: Metric | None
    trials: tuple[TrialSummary, ...]
    early_end: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a run; ConfigError if it has no summary, or several jobs."""
        folder = RunFolder.open(path)
        try:
            summary = stored_summary(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} has no summary ({error}): kofn report {path} makes it") from error
        if len(folder.jobs) > 1:
            raise ConfigError(f"{path} must be a run of one job, got {len(folder.jobs)} jobs")
        return cls(
            path=path,
            config=folder.configs()[0],
            metric=summary.metric,
            trials=summary.trials,
            early_end=summary.early_end,
        )

    def trial(self, objective: str) -> TrialSummary | None:
        """Return the first trial with this objective."""
        return next((entry for entry in self.trials if entry.objective == objective), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """The comparison of two runs."""

    sides: tuple[RunSide, RunSide]

    @property
    def columns(self) -> list[tuple[RunSide, TrialSummary]]:
        """Return the trials of both runs; trials of the same objective are side by side."""
        objectives = dict.fromkeys(entry.objective for side in self.sides for entry in side.trials)
        return [
            (side, entry)
            for objective in objectives
            for side in self.sides
            for entry in side.trials
            if entry.objective == objective
        ]

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Return the different keys of the configurations, with both values."""
        first, second = (dict(_flat(msgspec.to_builtins(side.config))) for side in self.sides)
        keys = [key for key in dict.fromkeys([*first, *second]) if key not in NAMED]
        return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}

    @property
    def faster(self) -> dict[str, float | None]:
        """Return, by objective, the first run's time to the target divided by the second run's time; None if the times
        cannot be compared.

        Times can be compared if both trials reached the same target and were not changed by hand.
        """
        first, second = self.sides
        both = [entry.objective for entry in first.trials if second.trial(entry.objective)]
        return {objective: self._faster(objective) for objective in both}

    def _faster(self, objective: str) -> float | None:
        first, second = (side.trial(objective) for side in self.sides)
        targets = {side.metric for side in self.sides}
        if first is None or second is None or first.by_hand or second.by_hand or len(targets) > 1:
            return None
        if first.time_to_target_s is None or second.time_to_target_s is None:
            return None
        return first.time_to_target_s / second.time_to_target_s

    def table(self) -> PlainTable:
        trials = [entry for _, entry in self.columns]
        faster = [
            ratio(self.faster.get(entry.objective)) if side is self.sides[1] else "" for side, entry in self.columns
        ]
        return PlainTable(
            ["", *(f"{side.path.name}: {entry.name}" for side, entry in self.columns)],
            [
                ["time to the target", *(seconds(entry.time_to_target_s) for entry in trials)],
                ["the other run / this", *faster],
                ["iterations to target", *(integer(entry.iterations_to_target) for entry in trials)],
                ["mean iteration time", *(milliseconds(entry.mean_iteration_s) for entry in trials)],
                ["k used (iterations)", *(counts(entry.k_iterations) for entry in trials)],
                ["sent", *(traffic(entry.bytes_sent, None) for entry in trials)],
                ["links, to/from the switch", *(link_bytes(entry.link_bytes) for entry in trials)],
            ],
        )

    def words(self) -> list[str]:
        """Return other remarks, one line each."""
        early = [f"{side.path.name} ended early: {side.early_end}" for side in self.sides if side.early_end]
        return [*early, *(f"{key}: {first!r} and {second!r}" for key, (first, second) in self.differences.items())]

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                {
                    "path": str(side.path),
                    "early_end": side.early_end,
                    "trials": [
                        {"name": entry.name, "objective": entry.objective}
                        | {name: getattr(entry, name) for name in FIGURES}
                        for entry in side.trials
                    ],
                }
                for side in self.sides
            ],
            "faster": self.faster,
            "differences": {key: list(values) for key, values in self.differences.items()},
        }


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values; tables that may be repeated are values."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
