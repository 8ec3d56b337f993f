"""RUNDIR/report.html: summary, figures and configuration in one file that needs nothing else; RUNDIR/figures/.

Pages are Jinja2 templates, in templates/ of the package whose page it is; what is put into them is escaped.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from kofn.config.schema import Config
from kofn.forked import forked
from kofn.report.costs_figure import CostBar
from kofn.report.drawings import Drawing, drawings
from kofn.report.explained import explained
from kofn.report.iteration_costs import LinkMeans
from kofn.report.marks import read_marks
from kofn.report.series import read_series
from kofn.report.summary import RunSummary, Summary, TrialSummary
from kofn.report.svg import svg
from kofn.results.event_log import read_event_log
from kofn.results.folder import JobFolder, RunFolder
from kofn.results.worker_metrics import read_begun

TEMPLATES = "kofn.report"
"""The package whose templates all pages extend."""

FIGURES = "figures"
"""The folder of figures, in a run's folder."""


def write_report(folder: RunFolder, configs: Sequence[Config], summary: RunSummary) -> Path:
    """Write the report of a finished run; its path."""
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
        provenance=record.provenance.rows(),
        jobs=[_job(*one) for one in zip(folder.jobs, configs, summary.jobs, strict=True)],
    )
    path = folder.path / "report.html"
    path.write_text(text)
    return path


def render(template: str, package: str = TEMPLATES, **values: Any) -> str:
    """A page of this package: `title`, `heading` and `failures` are base.html's, other values the template's own."""
    return _environment(package).get_template(template).render(**values)


def load() -> None:
    """Compile what a run's page is made of."""
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
    """A job's figures, as far as its trials came."""
    begun = [(entry, read) for entry in folder.trials if (read := read_begun(entry, config.job.workers))]
    trials = [
        read_series(entry, read, trial.name, read_marks(config, trial.interventions, read))
        for (entry, read), trial in zip(begun, summary.trials, strict=True)
    ]
    bars = [_bar(trial, config.job.workers) for trial in summary.trials]
    return drawings(trials, bars, summary.metric, compresses=summary.compresses)


def _job(folder: JobFolder, config: Config, summary: Summary) -> dict[str, Any]:
    """What run.html shows of a job; its figures are written beside the page."""
    into = folder.path / FIGURES / folder.stem
    rows = summary.rows()
    return {
        "id": folder.id,
        "workers": config.job.workers,
        "seed": config.run.seed,
        "summary": summary,
        "rows": rows,
        "explained": explained([label for label, *_ in rows]),
        "events": [
            f"{entry.objective}: {line.words}" for entry in folder.trials for line in read_event_log(entry.events)
        ],
        "figures": _figures(list(job_drawings(folder, config, summary)), into, folder.path),
        "effective": folder.effective.read_text(),
        "given": folder.config.read_text(),
    }


def _figures(drawn: Sequence[Drawing], into: Path, beside: Path) -> list[dict[str, Any]]:
    """What run.html shows of each, written at the same time."""
    with forked(partial(one.write, into) for one in drawn) as written:
        return [
            {"svg": element, "caption": one.caption, "file": (into / one.name).relative_to(beside)}
            for one, element in zip(drawn, written, strict=True)
        ]


def _bar(trial: TrialSummary, workers: int) -> CostBar:
    return CostBar(
        name=trial.name,
        parts_s={f"{part}_s": time_s for part, time_s in trial.times_s.items()},
        links=LinkMeans.of(trial.link_bytes, workers, trial.iterations),
    )
