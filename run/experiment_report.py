"""OUT/report.html of an experiment: claims, tables and figures in one file that needs nothing else."""

import html
from collections.abc import Sequence
from pathlib import Path

from run import claims
from run.claims import Verdict
from run.matrix import Result
from run.report import html_table, page


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


def configuration(result: Result) -> str:
    """A run's configuration, folded away."""
    cell = result.cell
    return (
        f"<details><summary>configuration of {html.escape(cell.title)}</summary>"
        f"<pre>{html.escape(cell.source.read_text())}</pre></details>"
    )
