"""RUNDIR/report.html: summary, figures and configuration in one self-contained file; RUNDIR/figures.

Pages are Jinja2 templates, in templates/ of each page's package; values are escaped.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from kofn.report.costs_figure import CostBar
from kofn.report.drawings import Drawing, drawings
from kofn.report.explained import explained
from kofn.report.figures import TrialSeries
from kofn.report.iteration_costs import LinkMeans
from kofn.report.marks import read_marks
from kofn.report.outages import Outages
from kofn.report.series import read_series
from kofn.report.summary import RunSummary, Summary, TrialSummary
from kofn.report.svg import svg
from kofn_common.config.schema import Config
from kofn_common.forked import forked
from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import JobFolder, RunFolder, TrialFolder
from kofn_common.results.record import SIMULATED, RunRecord
from kofn_common.results.worker_metrics import WorkerMetrics, read_begun

TEMPLATES = "kofn.report"
"""The package with the base template of all pages."""

COLUMNS = 4
"""The most trials beside each other in a table."""

FIGURES = "figures"
"""The folder of figures, in a run's folder."""


def write_report(folder: RunFolder, configs: Sequence[Config], summary: RunSummary) -> Path:
    """Write the report of a finished run and return its path."""
    record, name = folder.record(), configs[0].run.name
    text = render(
        "run.html",
        title=name,
        heading=name,
        failures=summary.failures,
        notes=summary.notes,
        record=record,
        trials=[objective for objective, _ in record.trials],
        results=folder.path.resolve(),
        seed=configs[0].run.seed,
        place=_place(record),
        provenance=record.rows,
        jobs=[_job(*job) for job in zip(folder.jobs, configs, summary.jobs, strict=True)],
    )
    path = folder.path / "report.html"
    path.write_text(text)
    return path


def _place(record: RunRecord) -> str:
    """Return where a run was carried out, in words."""
    if record.driver == SIMULATED:
        return "simulated, without switch and network"
    return f"switch {record.target}, network by {record.driver}"


def _tables(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield a table in parts that are not wider than a printed page. The parts have about equally many columns, and
    each part has the table's first column."""
    parts = ceil((len(headings) - 1) / COLUMNS)
    for part in range(parts):
        columns = [0, *range(1 + part * (len(headings) - 1) // parts, 1 + (part + 1) * (len(headings) - 1) // parts)]
        yield [headings[column] for column in columns], [[row[column] for column in columns] for row in rows]


def render(template: str, package: str = TEMPLATES, **values: Any) -> str:
    """Render a page of a package: `title`, `heading` and `failures` are for base.html, other values
    for the template."""
    return _environment(package).get_template(template).render(**values)


def load() -> None:
    """Compile the template of a run's page."""
    _environment(TEMPLATES).get_template("run.html")


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, TEMPLATES))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["svg"] = svg
    return environment


def job_drawings(folder: JobFolder, config: Config, summary: Summary) -> Iterator[Drawing]:
    """Yield the figures of a job's begun trials."""
    begun = [(entry, read) for entry in folder.trials if (read := read_begun(entry, config.job.workers))]
    trials = [
        trial_series(entry, read, config, trial)
        for (entry, read), trial in zip(begun, summary.trials, strict=False)  # a trial may begin after the summary
    ]
    bars = [_bar(trial, config.job.workers) for trial in summary.trials]
    return drawings(trials, bars, summary.metric, compresses=summary.compresses)


def trial_series(entry: TrialFolder, read: Sequence[WorkerMetrics], config: Config, trial: TrialSummary) -> TrialSeries:
    """Return all series of one trial, without its outages."""
    outages = Outages.of(read, read_event_log(entry.events))
    workers = outages.cut(read)
    return read_series(entry, workers, trial.name, read_marks(config, trial.interventions, workers, outages))


def _job(folder: JobFolder, config: Config, summary: Summary) -> dict[str, Any]:
    """Return a job's values for run.html; its figures are written beside the page."""
    into = folder.path / FIGURES / folder.stem
    rows = summary.rows()
    return {
        "id": folder.id,
        "workers": config.job.workers,
        "seed": config.run.seed,
        "summary": summary,
        "tables": [*_tables(["", *summary.headings()], rows)],
        "explained": explained([label for label, *_ in rows]),
        "events": [
            f"{entry.objective}: {line.words}" for entry in folder.trials for line in read_event_log(entry.events)
        ],
        "figures": _figures(list(job_drawings(folder, config, summary)), into, folder.path),
        "effective": folder.effective.read_text(),
        "given": folder.config.read_text(),
    }


def _figures(drawn: Sequence[Drawing], into: Path, beside: Path) -> list[dict[str, Any]]:
    """Return the values of each figure for run.html. The figures are written in parallel."""
    with forked(partial(drawing.write, into) for drawing in drawn) as written:
        return [
            {"svg": element, "caption": drawing.caption, "file": (into / drawing.name).relative_to(beside)}
            for drawing, element in zip(drawn, written, strict=True)
        ]


def _bar(trial: TrialSummary, workers: int) -> CostBar:
    return CostBar(
        name=trial.name,
        parts_s={f"{part}_s": time_s for part, time_s in trial.times_s.items()},
        links=LinkMeans.of(trial.link_bytes, workers, trial.iterations),
    )
