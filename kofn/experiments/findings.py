"""The findings of an experiment, on the terminal and in its folder: tables, claims, JSON, results.csv and report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pandas as pd
from rich.console import Console

from kofn.experiments import claims, trials
from kofn.experiments.claims import Verdict
from kofn.experiments.matrix import CellResult
from kofn.experiments.tables import TextTable
from kofn.report.table import make_console
from kofn.run.display import report_line, say
from kofn_common.json_text import json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings from an experiment's trials; without trials, only failures."""

    question: str
    trials: pd.DataFrame
    tables: Sequence[TextTable]
    legend: str
    verdicts: Sequence[Verdict]
    failures: Sequence[str]
    document: Mapping[str, Any]
    """The part of the JSON document beside failures and claims. The time of an event that never came is infinite."""
    elements: Callable[[], Iterable[Any]]
    """The report's elements below its claims: page.Element."""


Find = Callable[[Sequence[CellResult]], Findings]
"""A function that returns the findings from results, which all have trials."""


def conclude(
    command: str,
    folder: Path,
    results: Sequence[CellResult],
    find: Find,
    console: Console,
    *,
    as_json: bool,
    document: str = "experiment.json",
) -> int:
    """Show tables and claims of the results; write `document`, results.csv and report; return the exit code."""
    done = [result for result in results if result.trials]
    found = find(done)
    _show(found, console)
    failures = [f"{result.cell.title}: {result.error}" for result in results if not result.trials]
    failures += found.failures
    text = json_text(
        {"ok": not failures, "failures": failures, "claims": list(found.verdicts), **found.document}, indent=2
    )
    (folder / document).write_text(text + "\n")
    if done:
        trials.write(found.trials, folder)
        say(console, report_line(lambda: _report(command, folder, found, failures)))
    for reason in failures:
        say(make_console(stderr=True), f"kofn {command}: {reason}", style="red")
    if as_json:
        click.echo(text)
    return 1 if failures else 0


def _show(found: Findings, console: Console) -> None:
    for table in found.tables:
        console.print(table)
        console.print()
    say(console, f"{found.legend}\n")
    for line in claims.lines(found.verdicts):
        say(console, line)


def _report(command: str, folder: Path, found: Findings, failures: Sequence[str]) -> Path:
    from kofn.experiments.page import write_page  # noqa: PLC0415  # matplotlib takes half a second

    return write_page(
        folder, command, found.question, verdicts=found.verdicts, failures=failures, elements=found.elements()
    )
