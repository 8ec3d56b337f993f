"""OUT/report.html of an experiment: claims and further elements, in one self-contained file.

Experiments yield elements; templates/experiment.html formats them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from kofn.experiments import claims
from kofn.experiments.claims import Verdict
from kofn.experiments.matrix import CellResult
from kofn.experiments.tables import TextTable
from kofn.report.figures import TrialSeries
from kofn.report.page import render
from kofn.report.series import read_series
from kofn_common.results.worker_metrics import read_trial


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Preformatted text that a click on its summary shows."""

    summary: str
    text: str


Element = str | Heading | TextTable | Figure | Folded
"""A string is a paragraph; a table is shown without its title."""

_KINDS = {str: "paragraph", Heading: "heading", TextTable: "table", Figure: "figure", Folded: "folded"}
"""The name of an element's kind in templates/experiment.html."""


def write_page(
    folder: Path,
    command: str,
    question: str,
    *,
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    elements: Iterable[Element],
) -> Path:
    """Write the report of a command's matrix: its question, failures, claims and elements; return its path."""
    shown = (Heading("Claims"), claims.table(verdicts), *claims.explanation(verdicts), *elements)
    text = render(
        "matrix.html",
        "kofn.experiments",
        title=command,
        heading=question,
        failures=failures,
        elements=[(_KINDS[type(element)], element) for element in shown],
    )
    path = folder / "report.html"
    path.write_text(text)
    return path


def configuration(result: CellResult) -> Folded:
    return Folded(f"configuration of {result.cell.title}", result.cell.source.read_text())


def series(result: CellResult) -> TrialSeries:
    """Return the series of a run's only trial, for figures. Raise RunError if a worker's file is missing."""
    (folder,) = result.cell.job().trials
    return read_series(folder, read_trial(folder, result.cell.config.job.workers), folder.objective)
