"""OUT/report.html and OUT/compare.csv of a comparison; every figure says which commands regenerate it."""

import csv
import html
from collections.abc import Sequence
from pathlib import Path

from run.claims import Verdict
from run.compare.evidence import Measured, Row, by_setting
from run.compare.plots import accuracy_figure, setting_figure
from run.compare.table import LEGEND, cells, command, headings, record
from run.experiment_report import write_experiment
from run.report import html_table, svg
from run.series import read_series

QUESTION = "Parameter server, ring, all workers in the network, a fixed k, a chosen k: which is how fast?"


def write_report(
    folder: Path, rows: Sequence[Row], notes: Sequence[str], verdicts: Sequence[Verdict], failures: Sequence[str]
) -> Path:
    """Write the report of runs that are finished; its path."""
    return write_experiment(
        folder,
        "compare",
        QUESTION,
        verdicts,
        failures,
        *(f"<p>{html.escape(note)}</p>" for note in notes),
        f"<p>{html.escape(LEGEND)}</p>",
        *(part for several in by_setting(rows).values() for part in _setting(several)),
    )


def write_csv(path: Path, runs: Sequence[Measured]) -> None:
    """A line a run; what there is not is empty."""
    lines = [record(run) for run in runs]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)


def _setting(rows: Sequence[Row]) -> list[str]:
    """Table and figures of one setting, and what regenerates them."""
    parts = [f"<h2>{html.escape(rows[0].setting.title)}</h2>", html_table(headings(rows), cells(rows))]
    parts += [svg(setting_figure(rows)), _commands([run for row in rows for run in row.runs])]
    if rows[0].trained:
        first = [row.runs[0] for row in rows]
        curves = {
            run.point.contender.name: read_series(run.folder, run.point.setting.workers).accuracy for run in first
        }
        parts += [svg(accuracy_figure(curves, first[0].target_accuracy)), _commands(first)]
    return parts


def _commands(runs: Sequence[Measured]) -> str:
    """Folded away."""
    lines = "\n".join(html.escape(command(run)) for run in runs)
    return f"<details><summary>regenerate this figure ({len(runs)} runs)</summary><pre>{lines}</pre></details>"
