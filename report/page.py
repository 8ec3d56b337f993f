"""RUNDIR/report.html: summary, figures and configuration in one file that needs nothing else.

Pages are Jinja2 templates, in templates/ of the package whose page it is; what is put into them is escaped.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kofn.config.schema import Config
from kofn.report.figures import TrialSeries, accuracy_figure, compression_figure, iteration_figure, lambda_figure
from kofn.report.series import read_series
from kofn.report.summary import RunSummary, Summary
from kofn.results.event_log import read_event_log
from kofn.results.folder import JobFolder, RunFolder
from kofn.results.worker_metrics import read_begun

TEMPLATES = "kofn.report"
"""The package whose templates all pages extend."""


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
        jobs=[_job(*one) for one in zip(folder.jobs, configs, summary.jobs, strict=True)],
    )
    path = folder.path / "report.html"
    path.write_text(text)
    return path


def render(template: str, package: str = TEMPLATES, **values: Any) -> str:
    """A page of this package: `title`, `heading` and `failures` are base.html's, other values the template's own."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, TEMPLATES))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["svg"] = svg
    return environment.get_template(template).render(**values)


def svg(figure: Figure) -> Markup:
    """A figure as an inline element."""
    text = io.StringIO()
    FigureCanvasAgg(figure)
    figure.savefig(text, format="svg", metadata={"Date": None})
    _, start, rest = text.getvalue().partition("<svg")
    return Markup(start + rest)


def _job(folder: JobFolder, config: Config, summary: Summary) -> dict[str, Any]:
    """What run.html shows of a job."""
    begun = [(entry, read) for entry in folder.trials if (read := read_begun(entry, config.job.workers))]
    trials = [
        read_series(entry, read, summarised.name)
        for (entry, read), summarised in zip(begun, summary.trials, strict=True)
    ]
    return {
        "id": folder.id,
        "workers": config.job.workers,
        "summary": summary,
        "events": [
            f"{entry.objective}: {line.words}" for entry in folder.trials for line in read_event_log(entry.events)
        ],
        "figures": figures(trials, config.run.target_accuracy, compresses=summary.compresses),
        "effective": folder.effective.read_text(),
        "given": folder.config.read_text(),
    }


def figures(trials: Sequence[TrialSeries], target: float, *, compresses: bool) -> list[Figure]:
    """Accuracy and compression, where there are such, and iteration time of all trials; blocking and k of each."""
    if not trials:
        return []
    compression = [compression_figure(trials)] if compresses and any(entry.compression for entry in trials) else []
    accuracy = [accuracy_figure(trials, target)] if any(entry.accuracy.x.size for entry in trials) else []
    return [*accuracy, iteration_figure(trials), *compression, *map(lambda_figure, trials)]
