"""`kofn experiment`: carry out an experiment file, or repeat the experiment in a folder."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kofn.experiments.artefact import check_folder, prepare
from kofn.experiments.cells import Cell, cells_of
from kofn.experiments.engine import TaskEngine
from kofn.experiments.estimate import EARLY, expected
from kofn.experiments.experiment_file import MODES, ExperimentFile
from kofn.experiments.modes import COSTS, carry_out, check, check_here, duration
from kofn.experiments.outcome import conclude
from kofn.experiments.reader import EXPERIMENT, Experiment
from kofn.report.table import make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import InterruptedRun
from kofn.run.lab.choice import laboratory
from kofn.run.options import lab_options, set_option
from kofn_common.config.errors import ConfigError
from kofn_common.json_text import json_text
from kofn_common.results.folder import point_latest

EXAMPLES = """
\b
Examples:
  kofn experiment question.toml                  everything in the file; again to continue after Ctrl-C
  kofn experiment question.toml --dry-run        the cells, and how long they take
  kofn experiment question.toml --mode run --seeds 3 --out runs/real
  kofn experiment question.toml --only job.workers=8 --only contender=progress,all
  kofn experiment runs/question                  repeat the experiment in this folder, and compare the numbers
  kofn experiment examples/experiments/k.toml --dry-run
  kofn report runs/question                      table, claims and report again

\b
Exit codes: 0 every cell is finished, every training had identical replicas and every gradient conserved; 1 otherwise; 2
the file or the command line is wrong; 130 stopped by a signal. Claims and missed targets are printed, and do not count.
"""


OPTIONS = (
    click.option("--mode", metavar="MODE", help=f"{', '.join(MODES)}, or module:function.  [default: the file's]"),
    click.option("--seeds", type=click.IntRange(min=1), metavar="N", help="Seeds 1 to N.  [default: the file's]"),
    click.option(
        "--only",
        multiple=True,
        metavar="AXIS=VALUE,...",
        help="Run only these values of an axis, or these contenders; may be repeated.",
    ),
    set_option,
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the results; finished cells in it are not repeated.  [default: runs/NAME]",
    ),
    click.option("--dry-run", is_flag=True, help="Print the cells and their expected duration; run nothing."),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        default=len(os.sched_getaffinity(0)),
        show_default="this machine's",
        metavar="N",
        help="Cells at a time, unless they are run for real; jobs, or workers, of a new cluster.",
    ),
    click.option(
        "--cluster",
        metavar="WHERE",
        help="A Dask cluster: tcp://HOST:PORT, or a class, dask_jobqueue:SLURMCluster for example. Its machines need"
        " the same folders.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The findings as JSON on stdout, the rest on stderr."),
)


def experiment_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of an experiment."""
    function = lab_options(function)
    for option in reversed(OPTIONS):
        function = option(function)
    return function


@click.command(epilog=EXAMPLES)
@click.argument("path", type=click.Path(path_type=Path, exists=True), metavar="FILE")
@experiment_options
def command(*, path: Path, **options: Any) -> None:
    """Answer a question by many trainings: every combination of axes, contenders and seeds of an experiment file.

    FILE is an experiment file (docs/reference/experiment.md), or the folder of an experiment. An unfinished experiment
    in a folder is continued. A finished experiment is repeated in a new folder, with the CPU times of the old one if it
    is simulated, and the numbers of both are compared.
    """
    with ending("experiment"):
        code = run_file(path, **options)
    sys.exit(code)


def run_file(
    path: Path,
    *,
    mode: str | None,
    seeds: int | None,
    only: Sequence[str],
    settings: Sequence[str],
    out: Path | None,
    dry_run: bool,
    processes: int,
    cluster: str | None,
    lab: Path | None,
    slurm: bool,
    as_json: bool,
) -> int:
    """Carry out an experiment with the options of a command line; return the exit code."""
    console = make_console(stderr=as_json)
    machines = laboratory(lab, slurm=slurm)
    engine = TaskEngine(processes=processes, cluster=cluster, lab=machines)
    engine.check()
    original = _finished(path) if path.is_dir() else None
    source = path / EXPERIMENT if path.is_dir() else path
    file = ExperimentFile.load(source, settings, mode=mode, seeds=seeds)
    file = file.only(_choices(only, file.choices))
    if cluster is not None and file.section.mode == "run":
        raise ConfigError(f"--cluster {cluster} needs --mode simulate or scale: real runs need this machine")
    if machines is not None and file.section.mode != "run":
        raise ConfigError(f"a laboratory needs --mode run, got {file.section.mode}")
    folder = out or _default(path, file, original)
    if cluster is not None:
        folder = folder.absolute()
    cells = cells_of(file, folder)
    check(file, cells)
    if dry_run:
        check_folder(file, folder)
        _show(file, cells, folder, processes, console, as_json=as_json)
        return 0
    check_here(file, cells, machines)
    file = prepare(file, folder)
    if original is not None:
        _take_costs(original.folder, folder)
    code = _go_through(file, folder, engine, console, as_json=as_json)
    if original is not None and code == 0:
        _compare(original, folder, console)
    return code


def _go_through(file: ExperimentFile, folder: Path, engine: TaskEngine, console: Console, *, as_json: bool) -> int:
    """Carry out the unfinished cells, and conclude; return the exit code."""
    experiment = Experiment(folder)
    cells, left = experiment.cells, experiment.left
    before = f", {len(cells) - len(left)} of them finished before" if len(left) < len(cells) else ""
    say(console, f"{len(cells)} cells{before}; results in {folder}")
    failed = []
    try:
        for result in carry_out(file, folder, left, console, engine):
            if not result.ok:
                failed.append(f"{result.cell.title}: {result.error}")
    except InterruptedRun as error:
        if len(Experiment(folder).left) < len(cells):
            conclude(folder, console, as_json=as_json, early_end=str(error))
        raise InterruptedRun(f"{error}\nthe same command continues") from None
    point_latest(folder)
    return conclude(folder, console, as_json=as_json, failed=failed)


def _finished(folder: Path) -> Experiment | None:
    """Return the finished experiment in a folder; None if it is not finished."""
    if not (folder / EXPERIMENT).exists():
        raise ConfigError(
            f"{folder} must be an experiment file, or the folder of an experiment: it has no {EXPERIMENT}"
        )
    found = Experiment(folder)
    return None if found.left else found


def _default(path: Path, file: ExperimentFile, original: Experiment | None) -> Path:
    """Return the folder for the results: the unfinished experiment's, a new one for a repetition, or runs/NAME."""
    if path.is_dir() and original is None:
        return path
    name = file.section.name.replace(" ", "-")
    if original is None:
        return Path("runs") / name
    number = 1
    while (Path("runs") / f"{name}-again-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-again-{number}"


def _choices(only: Sequence[str], known: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the chosen values by axis. A known value may contain a comma."""
    found: dict[str, list[str]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals:
            raise ConfigError(f"--only must be AXIS=VALUE,..., got {text!r}")
        chosen = [values] if values in known.get(name, ()) else values.split(",")
        found.setdefault(name, []).extend(value.strip() for value in chosen)
    return found


def _take_costs(original: Path, folder: Path) -> None:
    """Copy the CPU times of a simulation, so that a repetition has equal numbers."""
    (folder / COSTS).mkdir(exist_ok=True)
    for path in (original / COSTS).glob("*.json") if (original / COSTS).is_dir() else ():
        (folder / COSTS / path.name).write_bytes(path.read_bytes())


def _compare(original: Experiment, folder: Path, console: Console) -> None:
    from kofn.experiments.repetition import compared  # noqa: PLC0415  # pandas' statistics

    found = compared(original, Experiment(folder))
    console.print()
    console.print(found.table)
    say(console, f"\n{found.words}")


def _show(
    file: ExperimentFile, cells: Sequence[Cell], folder: Path, processes: int, console: Console, *, as_json: bool
) -> None:
    """Print the cells, and how long they take."""
    at_a_time = 1 if file.section.mode == "run" else processes
    estimate = expected(file, cells, at_a_time)
    for cell in cells:
        if cell.seed == 1:
            say(console, f"{cell.point.title}")
    seeds = f"{file.section.seeds} seed{'s' * (file.section.seeds > 1)}"
    if estimate is None:
        about = "for an unknown time"
    elif estimate.early_s < estimate.most_s:
        early = f"{duration(estimate.early_s)} if every training reaches its target after {EARLY} iterations"
        about = f"at most about {duration(estimate.most_s)}, {early}"
    else:
        about = f"about {duration(estimate.most_s)}"
    mode = file.section.mode
    words = MODES.get(mode, f"by {mode}")
    say(console, f"{len(cells)} cells ({seeds}), {words}, {about}; results in {folder}")
    if as_json:
        estimate_s = estimate.most_s if estimate else None
        click.echo(json_text({"cells": [cell.title for cell in cells], "estimate_s": estimate_s}, indent=2))
