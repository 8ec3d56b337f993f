"""A real run and its simulation side by side, to show how accurate the simulation is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kofn.report.summary import TrialSummary, stored_trials
from kofn.report.table import PlainTable
from kofn_common.config.errors import ConfigError
from kofn_common.results.errors import ResultsError
from kofn_common.results.folder import RunFolder

FIGURES = {
    "time to target": ("time_to_target_s", "{:.2f} s", 1.0),
    "iterations to target": ("iterations_to_target", "{:.0f}", 1.0),
    "mean iteration": ("mean_iteration_s", "{:.1f} ms", 1e3),
}
"""The compared figures by name: the summary's field, a cell's format, and the factor from the field's unit, seconds or
iterations, to the cell's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The results of an objective's real trial and of its simulated trial."""

    real: TrialSummary
    simulated: TrialSummary

    def ratio(self, field: str) -> float | None:
        """Return the simulated value of a field divided by the real value; None if either value is missing."""
        real, simulated = getattr(self.real, field), getattr(self.simulated, field)
        return simulated / real if real and simulated else None

    def to_dict(self) -> dict[str, Any]:
        """Return the compared figures, and their ratios, for JSON."""
        return {"objective": self.real.objective} | {
            field: {
                "real": getattr(self.real, field),
                "simulated": getattr(self.simulated, field),
                "ratio": self.ratio(field),
            }
            for field, _, _ in FIGURES.values()
        }


def real_run(path: Path) -> tuple[Path, tuple[TrialSummary, ...]]:
    """Return a run's configuration and its trials' summaries. Raise ConfigError unless `path` is a finished run of one
    job."""
    try:
        effective = RunFolder.at(path, ()).jobs[0].effective
        if not (trials := stored_trials(path)):
            raise ResultsError("it has no trial")
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, ResultsError) as error:
        raise ConfigError(f"--against {path}: not the folder of a finished run of one job: {error}") from error
    if not effective.exists():
        raise ConfigError(f"--against {path}: the folder must be that of a run of one job, got no {effective.name}")
    return effective, trials


def pairs(real: Sequence[TrialSummary], simulated: Sequence[TrialSummary]) -> list[Pair]:
    """Pair the simulated trials with the real trials of the same objectives."""
    by_name = {entry.objective: entry for entry in real}
    return [Pair(real=by_name[entry.objective], simulated=entry) for entry in simulated if entry.objective in by_name]


def table(found: Sequence[Pair]) -> PlainTable:
    rows = [[f"{pair.real.objective}: {name}", *_cells(pair, name)] for pair in found for name in FIGURES]
    return PlainTable(["", "simulated", "real", "simulated / real"], rows)


def _cells(pair: Pair, name: str) -> list[str]:
    field, form, scale = FIGURES[name]
    values = (getattr(pair.simulated, field), getattr(pair.real, field))
    ratio = pair.ratio(field)
    return [
        *("-" if value is None else form.format(scale * value) for value in values),
        f"{ratio:.2f}" if ratio else "-",
    ]
