"""The cells of an experiment. A cell of a run or a simulation is an ordinary run in a folder of its own.

OUT/cells/POINT/seed-N.toml   the configuration, for `kofn run`
OUT/cells/POINT/seed-N/       the run's folder
OUT/rows.jsonl                in other modes, a line for each cell that has ended, with its row or its error

A run is finished when it has a summary; a finished cell is not repeated. The remains of an interrupted run are removed
before its repetition.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import structs

from kofn.experiments.experiment_file import ExperimentFile, Point, mapped_paths
from kofn.report.summary import TrialSummary, stored_trials
from kofn.run.plan import RunPlan, make_plan
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.json_text import json_text
from kofn_common.results.errors import ResultsError
from kofn_common.results.folder import RunFolder, TrialFolder

CELLS, ROWS = "cells", "rows.jsonl"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A point with one seed; `name` is POINT/seed-N."""

    point: Point
    seed: int
    name: str
    out: Path
    modules: Path
    """The folder of plug-ins that the configuration names without a folder."""
    scale: bool

    @property
    def title(self) -> str:
        return f"{self.point.title}, seed {self.seed}"

    @property
    def labels(self) -> dict[str, object]:
        """The columns that name the cell in the results."""
        return {**self.point.axes, "contender": self.point.contender, "seed": self.seed}

    @property
    def folder(self) -> Path:
        return self.out / CELLS / self.name

    @property
    def source(self) -> Path:
        return self.folder.with_suffix(".toml")

    @cached_property
    def config(self) -> Config:
        """The configuration; paths in the experiment's folder are relative to the folder of `source`."""
        return self._at_home(self.point.config(self.seed, scale=self.scale))

    @property
    def other_configs(self) -> list[Config]:
        return [self._at_home(config) for config in self.point.other_configs(self.seed)]

    def plan(self) -> RunPlan:
        """Write the configuration, and return the plan of its run. ConfigError names the conflict."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        sources = [
            self.source,
            *(self.folder.with_name(f"{self.folder.name}-job-{config.job.id}.toml") for config in self.other_configs),
        ]
        for source, config in zip(sources, (self.config, *self.other_configs), strict=True):
            source.write_text(to_toml(config))
        return make_plan(*sources, out=self.folder, quiet=True)

    @property
    def trial(self) -> TrialFolder:
        """The folder of the only trial of the first job."""
        jobs = [self.config.job.id, *(config.job.id for config in self.other_configs)]
        (folder,) = RunFolder.at(self.folder, self.config.run.trials, jobs).jobs[0].trials
        return folder

    def stored(self) -> TrialSummary | None:
        """Return the results of a finished run; None for an unfinished run. Raise ConfigError if the run had another
        configuration."""
        several = bool(self.point.others)
        try:
            given = RunFolder.open(self.folder).jobs[0].config.read_text()
            (trial,) = stored_trials(self.folder, several=several, partial=self.point.may_fail)
        except (OSError, ValueError, ResultsError, ConfigError):
            return None
        if given != to_toml(self.config):
            raise ConfigError(
                f"{self.folder} holds the results of another configuration: choose another --out, or remove that folder"
            )
        return trial

    def drop(self) -> None:
        """Remove the workers' sums, which have been checked, and lines."""
        trial = self.trial
        trial.samples.unlink(missing_ok=True)
        for rank in range(self.config.job.workers):
            trial.sums(rank).unlink(missing_ok=True)
            trial.metrics(rank).unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        """A hash of the configuration, and of the values for the file's functions."""
        own = json_text(self.point.own) if self.point.own else ""
        return hashlib.sha256(f"{to_toml(self.config)}{own}".encode()).hexdigest()[:16]

    def _at_home(self, config: Config) -> Config:
        """Return the configuration with relative paths in the experiment's folder."""
        named = config.at_home(self.modules)
        paths = {
            "job": {"modules": named.job.modules},
            "model": {"replay": named.model.replay, "trace": named.model.trace},
            "torch": {"script": named.torch.script},
            "network": {"topology": named.network.topology and str(named.network.topology)},
        }
        changed = mapped_paths(paths, self._relative)
        topology = changed["network"]["topology"]
        return structs.replace(
            named,
            job=structs.replace(named.job, **changed["job"]),
            model=structs.replace(named.model, **changed["model"]),
            torch=structs.replace(named.torch, **changed["torch"]),
            network=structs.replace(named.network, topology=topology and Path(topology)),
        )

    def _relative(self, path: str) -> str:
        inside = Path(path).is_relative_to(self.out.resolve())
        return os.path.relpath(path, self.folder.parent.resolve()) if inside else path


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of a cell; without `ok` the cell failed."""

    cell: Cell
    ok: bool
    error: str = ""


def cells_of(file: ExperimentFile, out: Path) -> list[Cell]:
    """Return all cells, seed by seed, so that an interrupted experiment has results of every point."""
    points = file.points()
    names = _slugs([point.title for point in points])
    return [
        Cell(point=point, seed=seed, name=f"{name}/seed-{seed}", out=out, modules=file.modules, scale=file.rows_only)
        for seed in range(1, file.section.seeds + 1)
        for point, name in zip(points, names, strict=True)
    ]


def _slugs(titles: Sequence[str]) -> list[str]:
    """Return a folder's name for each title; names that would be alike have numbers."""
    taken: dict[str, int] = {}
    found = []
    for title in titles:
        words = re.sub(r"[^\w.+-]+", "-", re.sub(r"\b\w+\.(\w+) = ", r"\1-", title)).strip("-.").lower()[:120] or "cell"
        taken[words] = taken.get(words, 0) + 1
        found.append(words if taken[words] == 1 else f"{words}-{taken[words]}")
    return found


def clear(cell: Cell) -> RunPlan:
    """Remove the remains of an interrupted run; return the plan of a new one."""
    shutil.rmtree(cell.folder, ignore_errors=True)
    return cell.plan()


class RowFile:
    """The rows of cells that are not runs."""

    def __init__(self, out: Path) -> None:
        self.path = out / ROWS

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rows of finished cells, by name and configuration."""
        return {(line["cell"], line["config"]): line["row"] for line in self._lines() if "row" in line}

    def errors(self) -> dict[str, str]:
        """Return the latest error of cells, by name."""
        return {line["cell"]: line["error"] for line in self._lines() if "error" in line}

    def add(self, cell: Cell, **found: object) -> None:
        with self.path.open("a") as lines:
            lines.write(json_text({"cell": cell.name, "config": cell.digest, **found}) + "\n")

    def repair(self) -> None:
        """Cut an incomplete last line, which an interruption has left."""
        if self.path.exists():
            self.path.write_text(self._whole())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            yield from map(json.loads, self._whole().splitlines())

    def _whole(self) -> str:
        text = self.path.read_text()
        return text[: text.rfind("\n") + 1]
