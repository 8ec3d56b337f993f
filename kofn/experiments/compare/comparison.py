"""Runs a comparison: captures gradients, measures ceilings, runs all cells, and reports.

A ceiling is the highest rate that this machine carries; a cell is a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kofn.experiments.claims import judge
from kofn.experiments.compare import switches
from kofn.experiments.compare.arms import contender_arms
from kofn.experiments.compare.ceiling import Ceiling, Ceilings, measure
from kofn.experiments.compare.claims import CLAIMS
from kofn.experiments.compare.columns import own_columns
from kofn.experiments.compare.estimate import assumed
from kofn.experiments.compare.models import GradientModel, capture, large
from kofn.experiments.compare.plan import Axes, ComparisonPlan
from kofn.experiments.compare.tables import LEGEND, arm_document, run_documents, setting_table
from kofn.experiments.conduct import gone_through
from kofn.experiments.findings import Findings, conclude
from kofn.experiments.kept_options import write_options
from kofn.experiments.matrix import CellResult, check_cells, duration, read_cells
from kofn.experiments.trials import read_trials
from kofn.report.table import PlainTable
from kofn.run.display import say
from kofn.run.preconditions import check_machine
from kofn.run.runner import execute
from kofn.run.state import another_run, running
from kofn_common.config.errors import ConfigError
from kofn_common.json_text import json_text

QUESTION = "Parameter server, ring, all workers in the network, a fixed k, a chosen k: which is how fast?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison with all runs in one folder; `notes` go into the report."""

    axes: Axes
    folder: Path
    models: Sequence[GradientModel]
    notes: Sequence[str]
    console: Console
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options on the command line, which are written into the folder."""

    def show(self, *, as_json: bool) -> None:
        """Print the plan without a run; unmeasured ceilings are assumed."""
        known, ceilings = Ceilings.read(self.folder, self.axes.target).known, self._ceilings()
        plan = self._planned(ceilings)
        for workers, ceiling in ceilings.items():
            say(self.console, f"{'' if workers in known else 'assumed, not measured yet: '}{ceiling.words}")
        self._tell(plan)
        if as_json:
            names = [cell.title for cell in plan.cells]
            click.echo(json_text({"runs": names, "estimate_s": plan.estimate_s, "left_s": plan.left_s}, indent=2))

    def run(self, *, as_json: bool) -> int:
        """Run all unfinished cells; return the exit code."""
        if running() is not None:
            raise another_run()
        check_machine(self.axes.target)
        self._planned(self._ceilings())  # fails on invalid options before any measurement
        self.folder.mkdir(parents=True, exist_ok=True)
        reference = large(self.folder)
        for model in {model.name: model for model in (reference, *self.models)}.values():
            if capture(model):
                say(self.console, f"gradients of {model.title} captured in {model.replay}")
        check_cells(self._planned(self._ceilings()).cells)
        write_options(self.folder, self.options)
        say(self.console, "the highest rates of this machine:")
        target, workers = self.axes.target, self.axes.workers
        ceilings = measure(self.folder, target, workers, reference, execute, self.console)
        plan = self._planned(ceilings)
        self._tell(plan)
        results = list(gone_through(plan.cells, self.folder, execute, self.console))
        return self._conclude(plan, ceilings, results, as_json=as_json)

    def read(self, *, as_json: bool) -> int:
        """Report finished runs; return the exit code."""
        known = Ceilings.read(self.folder, self.axes.target).known
        for workers in self.axes.workers:
            if workers not in known:
                raise ConfigError(f"{self.folder} has no comparison of {workers} workers")
        ceilings = {number: known[number] for number in self.axes.workers}
        plan = self._planned(ceilings)
        return self._conclude(plan, ceilings, list(read_cells(plan.cells)), as_json=as_json)

    def _ceilings(self) -> dict[int, Ceiling]:
        """Return ceilings by number of workers; unmeasured ceilings are assumed."""
        known = Ceilings.read(self.folder, self.axes.target).known
        return {workers: known.get(workers) or assumed(workers) for workers in self.axes.workers}

    def _planned(self, ceilings: Mapping[int, Ceiling]) -> ComparisonPlan:
        return ComparisonPlan.of(self.axes, self.folder, self.models, ceilings)

    def _tell(self, plan: ComparisonPlan) -> None:
        """Print the matrix, and its estimated duration."""
        for note in (*self.notes, *plan.notes):
            say(self.console, note)
        self.console.print(PlainTable(["model", "stragglers", "workers", "Mbit/s", "contenders"], plan.rows()))
        for model, names in plan.contenders().items():
            say(self.console, f"{model}: {', '.join(names)}")
        switch_runs = len(plan.cells) - self.axes.seeds * len(plan.points)
        seeds = f"{self.axes.seeds} seed{'s' * (self.axes.seeds > 1)}"
        extra = f", and {switch_runs} runs that compare the switches" if switch_runs else ""
        say(
            self.console,
            f"{len(plan.cells) - switch_runs} runs ({seeds}){extra}: about {duration(plan.estimate_s)}, of which about "
            f"{duration(plan.left_s)} are left; results in {self.folder}",
        )

    def _conclude(
        self, plan: ComparisonPlan, ceilings: Mapping[int, Ceiling], results: Sequence[CellResult], *, as_json: bool
    ) -> int:
        """Print tables and claims; write CSV, JSON and report."""
        notes = [*self.notes, *(ceiling.words for ceiling in ceilings.values()), *plan.notes]

        def find(done: Sequence[CellResult]) -> Findings:
            return findings(done, plan, notes)

        return conclude("compare", self.folder, results, find, self.console, as_json=as_json, document="compare.json")


def findings(done: Sequence[CellResult], plan: ComparisonPlan, notes: Sequence[str]) -> Findings:
    """Return the findings of finished runs. The runs that are at none of the plan's points compare the switches."""
    runs = [result for result in done if result.cell.scenario.name in plan.points]
    switch_runs = [result for result in done if result.cell.scenario.name not in plan.points]
    trials = read_trials("compare", runs, lambda trial: own_columns(plan.points[trial.cell.scenario.name], trial))
    found = contender_arms(trials, plan.points)

    def elements() -> Iterable[Any]:
        from kofn.experiments.compare import report  # noqa: PLC0415  # matplotlib takes half a second

        return report.elements(found, notes, runs)

    return Findings(
        question=QUESTION,
        trials=trials,
        tables=list(map(setting_table, found)),
        legend=LEGEND,
        verdicts=[*judge(CLAIMS, found), *switches.verdicts(switch_runs)],
        failures=[reason for rivals in found for arm in rivals.values() for reason in arm.problems()],
        document={
            "notes": list(notes),
            "rows": [arm_document(arm, rivals) for rivals in found for arm in rivals.values()],
            "runs": run_documents(trials),
        },
        elements=elements,
    )
