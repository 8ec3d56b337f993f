"""OUT/report.html of an experiment: claims, tables and figures in one file that needs nothing else."""

import html
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from run import claims
from run.claims import Verdict
from run.evidence import Findings
from run.evidence_table import LEGEND, cells, headings
from run.experiment_plots import k_figure, times_figure
from run.matrix import Result, by_scenario
from run.plots import Series
from run.report import html_table, page, svg
from run.series import read_series


def write_experiment(
    folder: Path, command: str, question: str, verdicts: Sequence[Verdict], failures: Sequence[str], *parts: str
) -> Path:
    """Write the report of a command's matrix: its question, what failed, its claims, and parts of its own; its path."""
    page_parts = [f"<h1>{html.escape(question)}</h1>"]
    page_parts += [f'<p class="bad">{html.escape(reason)}</p>' for reason in failures]
    page_parts += ["<h2>Claims</h2>", html_table(claims.HEADINGS, claims.rows(verdicts)), *parts]
    path = folder / "report.html"
    path.write_text(page(f"kofn: {command}", page_parts))
    return path


def write_k(
    folder: Path,
    found: Sequence[Findings],
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    results: Sequence[Result],
) -> Path:
    """Write the report of `kofn experiment k`, of runs that are finished; its path."""
    parts: list[str] = []
    finished = by_scenario(results)
    for one in found:
        parts += _scenario(one, finished[one.scenario])
    return write_experiment(folder, "experiment k", "Is the chosen k the right one?", verdicts, failures, *parts)


def configuration(result: Result) -> str:
    """A run's configuration, folded away."""
    cell = result.cell
    return (
        f"<details><summary>configuration of {html.escape(cell.title)}</summary>"
        f"<pre>{html.escape(cell.source.read_text())}</pre></details>"
    )


def _scenario(found: Findings, results: Sequence[Result]) -> list[str]:
    """One scenario's table and figures, and its first run's configuration."""
    return [
        f"<h2>{html.escape(found.scenario)}</h2>",
        f"<p>{len(results)} seeds. {html.escape(LEGEND)}</p>",
        html_table(headings(found), cells(found)),
        svg(times_figure(found)),
        *([svg(k_figure(found, _ks(found, results)))] if found.adaptive else []),
        configuration(results[0]),
    ]


def _ks(found: Findings, results: Sequence[Result]) -> dict[str, list[Series]]:
    """k over the iterations, by objective, a series a seed."""
    adaptive = [row.objective for row in found.adaptive]
    ks: dict[str, list[Series]] = defaultdict(list)
    for result in results:
        for entry in result.cell.job().passes:
            if entry.objective in adaptive:
                ks[entry.objective].append(read_series(entry, found.workers).k)
    return ks
