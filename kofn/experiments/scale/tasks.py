"""The tasks of a sweep. A task is a simulation of one combination of the axes' values, with one seed.

OUT/world.toml     the configuration that the axes change
OUT/tasks.jsonl    a line for each task that has ended, with its row or its error
OUT/results.csv    the table: a row for each task, in the order of the axes

A task depends on nothing but the world and its values. So every machine simulates the same row, to the last digit if
NumPy is the same and the processor has the same vector instructions.
"""

import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kofn.experiments.engine import TaskEngine
from kofn.experiments.trials import frame
from kofn.sim.scale.simulation import simulate_scale
from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import in_words
from kofn_common.config.schema import Config
from kofn_common.json_text import json_text

WORLD, ENDED, RESULTS = "world.toml", "tasks.jsonl", "results.csv"

CHOICE, LAW, SEED, WORKERS = "choice", "straggler.law", "run.seed", "job.workers"
"""Axes with a special meaning; other axes are keys of the configuration."""

Value = str | int | float

Axes = Mapping[str, Sequence[Value]]
"""The values of each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTask:
    """One simulation in a world, given as TOML."""

    world: str
    values: tuple[tuple[str, Value], ...]  # by axis

    @property
    def key(self) -> str:
        return json_text(dict(self.values))

    def config(self) -> Config:
        """Return the task's configuration, with the objective as the only trial. Raise ConfigError for a wrong
        value."""
        document, values = tomllib.loads(self.world), dict(self.values)
        wanted, law = values.pop(CHOICE, None), values.pop(LAW, None)
        settings: dict[str, dict[str, Value]] = {}
        for name, value in values.items():
            section, _, field = name.partition(".")
            settings.setdefault(section, {})[field] = value
        for entry in document.get("straggler", ()) if law is not None else ():
            entry["law"] = law
        config = Config.of(document, settings, scale=True)
        if wanted is None:
            return config
        name = wanted if isinstance(wanted, str) else f"fixed:{max(round(wanted * config.job.workers), 1)}"
        return Config.of(
            document, settings | {"run": settings.get("run", {}) | {"trials": [name], "seeds": 1}}, scale=True
        )

    def row(self) -> dict[str, Any]:
        """Simulate the task, and return the row of its results."""
        config = self.config()
        (found,) = simulate_scale(config, config.run.trials[0], lambda iteration, virtual_s: None)
        row = found.to_dict()
        del row["wall_s"]
        return dict(self.values) | row


def tasks(world: str, axes: Axes) -> list[ScaleTask]:
    """Return every combination of the axes' values; the last axis changes first."""
    return [
        ScaleTask(world=world, values=tuple(zip(axes, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def carried_out(task: ScaleTask) -> dict[str, Any]:
    """Carry out a task; return its line for ENDED."""
    try:
        return {"task": task.key, "row": task.row()}
    except Exception as error:  # no error of a task may stop the other tasks
        return failed(task, in_words(error))


def failed(task: ScaleTask, reason: str) -> dict[str, Any]:
    return {"task": task.key, "error": reason}


def run(wanted: Sequence[ScaleTask], folder: Path, engine: TaskEngine, ended: Callable[[int, int], None]) -> None:
    """Carry out the tasks without a row in the folder; `ended` gets the number of ended tasks and of all tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    world = folder / WORLD
    if world.exists() and world.read_text() != wanted[0].world:
        raise ConfigError(f"{world} must be the world of this sweep, got another world: choose another --out")
    world.write_text(wanted[0].world)
    if (folder / ENDED).exists():
        (folder / ENDED).write_text(_whole_lines(folder))  # an interrupted sweep may have left a part of a line
    known = rows(folder)
    left = [task for task in wanted if task.key not in known]
    with (folder / ENDED).open("a") as lines:
        for number, (_, line) in enumerate(engine.results(carried_out, left, failed), 1):
            lines.write(json_text(line) + "\n")
            lines.flush()
            ended(len(wanted) - len(left) + number, len(wanted))


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of finished tasks, by key. A task whose line is incomplete is not finished."""
    return {line["task"]: line["row"] for line in _lines(folder) if "row" in line}


def failures(folder: Path, wanted: Sequence[ScaleTask]) -> list[str]:
    """Return the keys of tasks without a row, with the task's latest error."""
    known, errors = rows(folder), {line["task"]: line["error"] for line in _lines(folder) if "error" in line}
    return [f"{task.key}: {errors.get(task.key, 'not run yet')}" for task in wanted if task.key not in known]


def table(folder: Path, wanted: Sequence[ScaleTask]) -> pd.DataFrame:
    """Return the finished tasks' rows, in the order of the tasks."""
    known = rows(folder)
    return frame([known[task.key] for task in wanted if task.key in known])


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    if (folder / ENDED).exists():
        yield from map(json.loads, _whole_lines(folder).splitlines())


def _whole_lines(folder: Path) -> str:
    text = (folder / ENDED).read_text()
    return text[: text.rfind("\n") + 1]
