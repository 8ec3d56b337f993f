"""The end of an experiment, also of a part of it: table and claims on the terminal, results.csv, JSON and report."""

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from kofn.experiments import claims
from kofn.experiments.answer import answer, shown_columns, tables
from kofn.experiments.cells import RowFile
from kofn.experiments.reader import Experiment
from kofn.report.table import make_console
from kofn.run.display import report_line, say
from kofn_common.json_text import json_text
from kofn_common.results.provenance import Provenance

RESULTS, DOCUMENT = "results.csv", "experiment.json"


def conclude(folder: Path, console: Console, *, as_json: bool, failed: Sequence[str] = (), early_end: str = "") -> int:
    """Show and write the results so far; return the exit code: 1 if a cell is missing or a training is not sound.

    `failed` has the reasons of failed cells; `early_end` is the reason why cells were not run.
    """
    experiment = Experiment(folder)
    left = experiment.left
    failures = [*failed, *(_left(experiment, early_end) if len(left) > len(failed) else ())]
    if len(left) == len(experiment.cells):
        _say_failures(failures)
        return 1
    failures += experiment.failures
    provenance = _provenance(folder)
    experiment.summary.to_csv(folder / RESULTS, index=False)
    shown = list(tables(experiment))
    for table in shown:
        console.print(table)
        console.print()
    verdicts = claims.verdicts(experiment)
    for line in (answer(experiment), *claims.lines(verdicts)):
        say(console, line)
    document = {
        "ok": not failures,
        "answer": answer(experiment),
        "failures": failures,
        "cells": len(experiment.cells),
        "finished": len(experiment.cells) - len(left),
        "claims": verdicts,
        "table": experiment.table(*shown_columns(experiment)).to_dict("records"),
        "provenance": msgspec.to_builtins(provenance),
    }
    text = json_text(document, indent=2)
    (folder / DOCUMENT).write_text(text + "\n")

    def write() -> Path:
        from kofn.experiments.experiment_page import write_page  # noqa: PLC0415  # matplotlib takes half a second

        write_page(experiment, shown, verdicts, failures, provenance)
        return folder / "report.html"

    say(console, report_line(write))
    _say_failures(failures)
    if as_json:
        click.echo(text)
    return 1 if failures else 0


def _left(experiment: Experiment, early_end: str) -> list[str]:
    """Return why cells are missing: the errors of some of them, and the number of the others."""
    known = RowFile(experiment.folder).errors() if experiment.file.rows_only else {}
    errors = [f"{cell.title}: {known[cell.name]}" for cell in experiment.left if cell.name in known]
    rest = len(experiment.left) - len(errors)
    reason = f": {early_end}" if early_end else ""
    return [*errors, *([f"{rest} of {len(experiment.cells)} cells were not run{reason}"] if rest else [])]


def _say_failures(failures: Sequence[str]) -> None:
    for reason in failures:
        say(make_console(stderr=True), f"kofn experiment: {reason}", style="red")


def _provenance(folder: Path) -> Provenance:
    """Return the origin of the results; the first conclusion stores it."""
    path = folder / "provenance.json"
    if not path.exists():
        path.write_bytes(msgspec.json.format(msgspec.json.encode(Provenance.here())) + b"\n")
    return msgspec.json.decode(path.read_bytes(), type=Provenance)
