"""OUT/report.html of an experiment: claims, tables and figures in one file that needs nothing else."""

import html
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from run.evidence import Findings
from run.evidence_table import LEGEND, cells, headings
from run.experiment_plots import k_figure, times_figure
from run.matrix import Result
from run.plots import Series
from run.report import html_table, page, svg
from run.series import read_series
from run.verdicts import Verdict


def write_experiment(
    folder: Path,
    found: Sequence[Findings],
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    results: Sequence[Result],
) -> Path:
    """Write the report of what is there; its path."""
    parts = ["<h1>Is the chosen k the right one?</h1>"]
    parts += [f'<p class="bad">{html.escape(reason)}</p>' for reason in failures]
    parts += ["<h2>Claims</h2>", _claims(verdicts)]
    for one in found:
        parts += _scenario(one, [result for result in results if result.cell.scenario.name == one.scenario])
    path = folder / "report.html"
    path.write_text(page("kofn: experiment k", parts))
    return path


def _claims(verdicts: Sequence[Verdict]) -> str:
    rows = [[one.claim, "yes" if one.holds else "NO", one.numbers] for one in verdicts]
    return html_table(["claim", "holds", "numbers"], rows)


def _scenario(found: Findings, results: Sequence[Result]) -> list[str]:
    """One scenario's table and figures, and its first run's configuration."""
    done = [result for result in results if result.passes]
    return [
        f"<h2>{html.escape(found.scenario)}</h2>",
        f"<p>{len(done)} seeds. {html.escape(LEGEND)}</p>",
        html_table(headings(found), cells(found)),
        svg(times_figure(found)),
        *([svg(k_figure(found, _ks(found, done)))] if found.adaptive else []),
        f"<details><summary>configuration, seed {done[0].cell.seed}</summary>"
        f"<pre>{html.escape(done[0].cell.source.read_text())}</pre></details>",
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
