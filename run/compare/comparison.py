"""A comparison from its plan to its report: gradients, ceiling, the cells one after another, and what they show."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from run.compare import switches
from run.compare.ceiling import Ceiling, Ceilings, measure
from run.compare.estimate import assumed
from run.compare.evidence import Row, by_setting, measured
from run.compare.models import Model, capture, large
from run.compare.plan import Axes, Plan
from run.compare.table import LEGEND, cells, headings, medians, record
from run.compare.verdicts import verdicts
from run.conduct import Told, conclude, gone_through
from run.display import say
from run.errors import ConfigError
from run.matrix import Result, duration, read_cells
from run.preconditions import check_machine
from run.runner import execute
from run.state import another_run, running
from run.table import plain_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One folder's; `notes` are said and reported."""

    axes: Axes
    folder: Path
    models: Sequence[Model]
    notes: Sequence[str]
    console: Console

    def show(self, *, as_json: bool) -> None:
        """Say what would be run; nothing is, and what is not measured yet is assumed."""
        known, ceilings = Ceilings.read(self.folder, self.axes.target).known, self._ceilings()
        plan = self._planned(ceilings)
        for workers, one in ceilings.items():
            say(self.console, f"{'' if workers in known else 'assumed, not measured yet: '}{one.words}")
        self._tell(plan)
        if as_json:
            names = [cell.title for cell in plan.cells]
            click.echo(json.dumps({"runs": names, "estimate_s": plan.estimate_s, "left_s": plan.left_s}, indent=2))

    def run(self, *, as_json: bool) -> int:
        """Everything that is not finished; the exit code."""
        if running() is not None:
            raise another_run()
        check_machine(self.axes.target)
        self._planned(self._ceilings())  # what does not fit is said before anything is measured
        self.folder.mkdir(parents=True, exist_ok=True)
        reference = large(self.folder)
        for model in {model.name: model for model in (reference, *self.models)}.values():
            if capture(model):
                say(self.console, f"gradients of {model.title} captured in {model.replay}")
        say(self.console, "what this machine carries:")
        target, workers = self.axes.target, self.axes.workers
        ceilings = measure(self.folder, target, workers, reference, execute, self.console)
        plan = self._planned(ceilings)
        self._tell(plan)
        results = []
        for result in gone_through(plan.cells, self.folder, execute, self.console):
            _drop_books(result)
            results.append(result)
        return self._conclude(plan, ceilings, results, as_json=as_json)

    def read(self, *, as_json: bool) -> int:
        """What is finished; the exit code."""
        known = Ceilings.read(self.folder, self.axes.target).known
        for workers in self.axes.workers:
            if workers not in known:
                raise ConfigError(f"{self.folder}: no comparison of {workers} workers was begun there")
        ceilings = {number: known[number] for number in self.axes.workers}
        plan = self._planned(ceilings)
        return self._conclude(plan, ceilings, list(read_cells(plan.cells)), as_json=as_json)

    def _ceilings(self) -> dict[int, Ceiling]:
        """By number of workers, assumed where they are not measured yet."""
        known = Ceilings.read(self.folder, self.axes.target).known
        return {workers: known.get(workers) or assumed(workers) for workers in self.axes.workers}

    def _planned(self, ceilings: Mapping[int, Ceiling]) -> Plan:
        """All cells."""
        return Plan.of(self.axes, self.folder, self.models, ceilings)

    def _tell(self, plan: Plan) -> None:
        """The matrix, and how long it takes."""
        for note in (*self.notes, *plan.notes):
            say(self.console, note)
        self.console.print(plain_table(["model", "stragglers", "workers", "Mbit/s", "contenders"], plan.rows()))
        for model, names in plan.contenders().items():
            say(self.console, f"{model}: {', '.join(names)}")
        both = len(plan.cells) - self.axes.seeds * len(plan.points)
        seeds = f"{self.axes.seeds} seed{'s' * (self.axes.seeds > 1)}"
        extra = f", and {both} runs that compare the switches" if both else ""
        say(
            self.console,
            f"{len(plan.cells) - both} runs ({seeds}){extra}: about {duration(plan.estimate_s)}, of which about "
            f"{duration(plan.left_s)} are left; results in {self.folder}",
        )

    def _conclude(
        self, plan: Plan, ceilings: Mapping[int, Ceiling], results: Sequence[Result], *, as_json: bool
    ) -> int:
        """Tables, claims, CSV, JSON and report."""
        notes = [*self.notes, *(one.words for one in ceilings.values()), *plan.notes]

        def tell(done: Sequence[Result]) -> Told:
            return told(done, plan, notes)

        return conclude("compare", self.folder, results, tell, self.console, as_json=as_json, document="compare.json")


def told(done: Sequence[Result], plan: Plan, notes: Sequence[str]) -> Told:
    """What finished runs show."""
    runs = [
        measured(plan.points[name], result) for result in done if (name := result.cell.scenario.name) in plan.points
    ]
    by_name = {name: [run for run in runs if run.point.name == name] for name in plan.points}
    rows = [Row.of(several) for several in by_name.values() if several]
    said = [*verdicts(rows), *switches.verdicts([one for one in done if one.cell.scenario.name not in plan.points])]

    def write(folder: Path, failures: Sequence[str]) -> Path:
        from run.compare.report import write_csv, write_report  # noqa: PLC0415  # matplotlib takes half a second

        write_csv(folder / "compare.csv", runs)
        return write_report(folder, rows, notes, said, failures)

    return Told(
        tables=[
            plain_table(headings(several), cells(several), title=several[0].setting.title)
            for several in by_setting(rows).values()
        ],
        legend=LEGEND,
        verdicts=said,
        failures=[reason for run in runs for reason in run.problems()],
        document={
            "notes": list(notes),
            "rows": [
                medians(row, {other.contender.name: other for other in several})
                for several in by_setting(rows).values()
                for row in several
            ],
            "runs": [record(run) for run in runs],
        },
        write_report=write,
    )


def _drop_books(result: Result) -> None:
    """Of replayed gradients, once they are checked: hundreds of megabytes a run."""
    if result.cell.config.model.replay is not None:
        result.cell.drop(lines=False)
