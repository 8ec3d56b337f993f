"""RUNDIR/report.html: summary, figures and configuration in one file that needs nothing else."""

import html
import io
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from run.config import Config
from run.events import read_happenings
from run.folder import JobFolder, RunFolder
from run.plots import PassSeries, accuracy_figure, compression_figure, iteration_figure, lambda_figure
from run.series import read_series
from run.summary import RunSummary, Summary

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } th, td { padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #ddd; }
td + td, th + th { text-align: right; } table + svg { margin-top: 2rem; }
pre { background: #f6f6f6; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } .bad { color: #b00020; font-weight: bold; }
"""


def write_report(folder: RunFolder, configs: Sequence[Config], summary: RunSummary) -> Path:
    """Write the report of a finished run; its path."""
    parts = [f"<h1>{html.escape(configs[0].run.name)}</h1>"]
    parts += [f'<p class="bad">{html.escape(reason)}</p>' for reason in summary.failures]
    parts += [f"<p>{html.escape(note)}</p>" for note in summary.notes]
    parts.append(_facts(folder))
    for job, config, result in zip(folder.jobs, configs, summary.jobs, strict=True):
        parts += [f"<h2>Job {job.id}</h2>"] * (len(folder.jobs) > 1)
        parts += _job(job, config, result)
    path = folder.path / "report.html"
    path.write_text(page(f"kofn: {configs[0].run.name}", parts))
    return path


def page(title: str, parts: Sequence[str]) -> str:
    """A whole document of these pieces of HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells of plain text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _job(folder: JobFolder, config: Config, summary: Summary) -> list[str]:
    passes = [read_series(entry, config.job.workers) for entry in folder.passes]
    return [
        _result(config, summary),
        _summary_table(summary),
        _events(folder),
        *(svg(figure) for figure in figures(passes, config.run.target_accuracy, compresses=summary.compresses)),
        "<h2>Configuration</h2>",
        "<p>What was run, with every default and the command line's choices:</p>",
        f"<pre>{html.escape(folder.effective.read_text())}</pre>",
        "<p>The file that was given:</p>",
        f"<pre>{html.escape(folder.config.read_text())}</pre>",
    ]


def figures(passes: Sequence[PassSeries], target: float, *, compresses: bool) -> list[Figure]:
    """Accuracy and compression, where there are such, and iteration time of all passes; blocking and k of each."""
    compression = [compression_figure(passes)] if compresses and any(entry.compression for entry in passes) else []
    accuracy = [accuracy_figure(passes, target)] if any(entry.accuracy.x.size for entry in passes) else []
    return [*accuracy, iteration_figure(passes), *compression, *map(lambda_figure, passes)]


def svg(figure: Figure) -> str:
    """A figure as an inline element."""
    text = io.StringIO()
    FigureCanvasAgg(figure)
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def _result(config: Config, summary: Summary) -> str:
    if summary.speedup is None:
        return ""
    first, baseline = summary.passes[0], summary.passes[-1]
    return (
        f"<p>{config.job.workers} workers reached {summary.target_accuracy:.1%} accuracy in "
        f"<b>{first.time_to_target_s:.1f} s</b> with <b>{html.escape(first.objective)}</b> and in "
        f"<b>{baseline.time_to_target_s:.1f} s</b> with <b>{html.escape(baseline.objective)}</b>: "
        f"a factor of {summary.speedup:.2f}.</p>"
    )


def _events(folder: JobFolder) -> str:
    """What was done to the run on purpose."""
    lines = [f"{entry.objective}: {line.words}" for entry in folder.passes for line in read_happenings(entry.events)]
    return f"<p>Events:<br>{'<br>'.join(map(html.escape, lines))}</p>" if lines else ""


def _facts(folder: RunFolder) -> str:
    record = folder.record()
    passes = ", ".join(objective for objective, _ in record.passes)
    facts = f"{record.started}; switch {record.target}, hosts by {record.driver}; passes {passes}; results in "
    return f"<p>{html.escape(facts)}<code>{html.escape(str(folder.path.resolve()))}</code></p>"


def _summary_table(summary: Summary) -> str:
    return html_table(["", *summary.headings()], summary.rows())
