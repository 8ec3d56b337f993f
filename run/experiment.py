"""`kofn experiment`: what the choice of k is worth, on the real system, over several seeds.

Runs a matrix of scenarios and seeds (run/matrix.py), says what comes of it as tables, claims and a report.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from run.display import say
from run.ending import ending
from run.errors import ConfigError, InterruptedRun
from run.evidence import Findings, find_row
from run.evidence_table import LEGEND, WIDTH, table, verdict_lines
from run.folder import RunFolder, default_path, point_latest
from run.matrix import Cell, Result, Scenario, cells, names, read_cells, run_cells
from run.options import set_option
from run.preconditions import check_machine
from run.runner import Plan, execute
from run.state import another_run, running
from run.summary import PassSummary
from run.verdicts import verdicts

SEEDS = 5
"""How often each scenario is run, where the command line does not say."""

EXAMPLES = """
\b
Examples:
  kofn experiment k --out runs/k                     everything: hours; repeat it to go on after Ctrl-C
  kofn experiment k --scenario one-slow --seeds 1    a few minutes
  kofn experiment k --simulate                       in virtual time: minutes
  kofn experiment k --scenario graded --objective fixed:3 --objective round
  kofn experiment k --simulate --set model.learning_rate=0.05
  kofn experiment k --out runs/k --report-only       tables, claims and report of what is there
  kofn run run/experiments/graded.toml               one scenario once, with the live table and a report

\b
Exit codes: 0 every training reached its target (where a scenario asks for that), with identical replicas and every
gradient conserved; 1 not so; 2 the command line is wrong; 130 stopped by a signal. Claims do not count: they are said.
"""


@click.group()
def command() -> None:
    """Experiments over many runs."""


@command.command(epilog=EXAMPLES)
@click.option("--scenario", "chosen", multiple=True, metavar="NAME", help="May be repeated.  [default: all]")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=SEEDS, show_default=True, metavar="N", help="Seeds 1 to N."
)
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    help="May be repeated: fixed:K, all or one that chooses k.  [default: each scenario's run.passes]",
)
@set_option
@click.option("--target", type=click.Choice(["embedded", "bmv2"]), help="The switch.  [default: network.target]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; what is finished in it is not run again.  [default: runs/experiment-k-TIME]",
)
@click.option("--simulate", "simulated", is_flag=True, help="In virtual time (kofn simulate), not on the real system.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON on stdout, everything else on stderr.")
@click.option("--report-only", is_flag=True, help="Run nothing: say what the results in --out show.")
def k(
    *,
    chosen: tuple[str, ...],
    seeds: int,
    objectives: tuple[str, ...],
    settings: tuple[str, ...],
    target: str | None,
    out: Path | None,
    simulated: bool,
    as_json: bool,
    report_only: bool,
) -> None:
    """Is the chosen k the right one? Time to the target accuracy with every fixed k and with those that choose k.

    Each scenario of run/experiments/ is run with several seeds, all objectives on the same seed and blocking events.
    """
    console = _console(stderr=as_json)
    with ending("experiment k"):
        if report_only and (out is None or not out.is_dir()):
            raise ConfigError(f"--report-only needs --out with the folder of an experiment, not {out or 'none'}")
        if not (report_only or simulated) and running() is not None:
            raise another_run()
        wanted = list(dict.fromkeys(chosen or names()))
        scenarios = [Scenario.load(name, settings).overridden(target=target, objectives=objectives) for name in wanted]
        folder = out or default_path("experiment-k")
        matrix = cells(scenarios, seeds, folder)
        results = list(read_cells(matrix) if report_only else _run(matrix, folder, console, simulated=simulated))
        code = conclude(folder, results, console, as_json=as_json)
    sys.exit(code)


def _console(*, stderr: bool) -> Console:
    """A terminal as it is; anything else as wide as the table."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH)


def _run(matrix: Sequence[Cell], folder: Path, console: Console, *, simulated: bool) -> Iterable[Result]:
    """On the real system, or in virtual time."""
    if not simulated:
        check_machine(matrix[0].config.network.target)
    trainings = sum(len(cell.config.run.passes) for cell in matrix)
    say(console, f"{len(matrix)} runs, {trainings} trainings; results in {folder}")
    try:
        yield from run_cells(matrix, _simulate if simulated else execute, console)
    except InterruptedRun as error:
        raise InterruptedRun(f"{error}\nthe same command with --out {folder} goes on from there") from None
    point_latest(folder)


def _simulate(plan: Plan, console: Console) -> RunFolder:
    """As `execute`, in virtual time."""
    from sim.runner import execute as simulate  # noqa: PLC0415  # the model and its libraries

    return simulate(plan, console)


def conclude(folder: Path, results: Sequence[Result], console: Console, *, as_json: bool) -> int:
    """Tables, claims and report of what is there; the exit code."""
    from run.experiment_report import write_experiment  # noqa: PLC0415  # matplotlib takes half a second

    found = findings(results)
    said = verdicts(found)
    for one in found:
        console.print(table(one))
        console.print()
    say(console, f"{LEGEND}\n")
    for line in verdict_lines(said):
        say(console, line)
    failures = [f"{result.cell.title}: {result.error}" for result in results if not result.passes]
    failures += [reason for one in found for reason in one.failures()]
    document = {
        "ok": not failures,
        "failures": failures,
        "claims": [asdict(one) for one in said],
        "scenarios": [asdict(one) for one in found],
    }
    text = json.dumps(_finite(document), indent=2)
    (folder / "experiment.json").write_text(text + "\n")
    if found:
        say(console, f"report: {write_experiment(folder, found, said, failures, results)}")
    for reason in failures:
        say(Console(stderr=True), f"kofn experiment k: {reason}", style="red")
    if as_json:
        click.echo(text)
    return 1 if failures else 0


def findings(results: Sequence[Result]) -> list[Findings]:
    """Scenario by scenario, in the order of the results; a scenario without any is left out."""
    by_scenario: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.passes:
            by_scenario[result.cell.scenario.name].append(result)
    return [_findings(several) for several in by_scenario.values()]


def _findings(results: Sequence[Result]) -> Findings:
    """One scenario's."""
    scenario = results[0].cell.scenario
    passes: dict[str, list[PassSummary]] = defaultdict(list)
    for entry in (entry for result in results for entry in result.passes):
        passes[entry.objective].append(entry)
    return Findings(
        scenario=scenario.name,
        shifting=scenario.shifting,
        stationary=scenario.stationary,
        workers=scenario.config.job.workers,
        target_accuracy=scenario.config.run.target_accuracy,
        may_miss=scenario.may_miss,
        late=scenario.config.policy.late,
        rows=tuple(find_row(objective, several) for objective, several in passes.items()),
    )


def _finite(value: Any) -> Any:
    """JSON has no infinity: null, for what never came."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and math.isinf(value) else value
