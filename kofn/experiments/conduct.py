"""The common part of the commands of `kofn experiment`: the options, and the matrix of runs, which is run or read.

Each experiment defines its scenarios and evaluates their trials.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kofn.experiments.engine import TaskEngine
from kofn.experiments.findings import Find, conclude
from kofn.experiments.kept_options import given_options, with_kept_options, write_options
from kofn.experiments.matrix import (
    IN_TURN,
    CarryOut,
    Cell,
    CellResult,
    Scenario,
    cells,
    check_cells,
    read_cells,
    run_cells,
)
from kofn.report.table import make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import InterruptedRun
from kofn.run.options import set_option
from kofn.run.plan import RunPlan
from kofn.run.preconditions import check_machine
from kofn.run.runner import execute
from kofn.run.state import another_run, running
from kofn_common.config.errors import ConfigError
from kofn_common.config.suggestion import did_you_mean
from kofn_common.results.folder import RunFolder, default_path, point_latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The options of every experiment's command line."""

    chosen: tuple[str, ...]
    """Names of scenarios; empty: all."""
    seeds: int
    settings: tuple[str, ...]
    target: str | None
    out: Path | None
    simulated: bool
    processes: int
    cluster: str | None
    as_json: bool
    report_only: bool


def processes_option(words: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --processes; `words` are its help."""
    return click.option(
        "--processes",
        type=click.IntRange(min=1),
        default=len(os.sched_getaffinity(0)),
        show_default="this machine's",
        metavar="N",
        help=words,
    )


def experiment_options(*, name: str, seeds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the options of every experiment, which a command takes as `choices`; `seeds` is the default of --seeds."""
    options = (
        click.option("--scenario", "chosen", multiple=True, metavar="NAME", help="May be repeated.  [default: all]"),
        click.option(
            "--seeds", type=click.IntRange(min=1), default=seeds, show_default=True, metavar="N", help="Seeds 1 to N."
        ),
        set_option,
        click.option(
            "--target", type=click.Choice(["embedded", "bmv2"]), help="The switch.  [default: network.target]"
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path, file_okay=False),
            help=f"Folder for the results; runs that are finished in it are not repeated.  [default: runs/{name}-TIME]",
        ),
        click.option(
            "--simulate", "simulated", is_flag=True, help="In virtual time (kofn simulate), not on the real system."
        ),
        processes_option("Simulations at a time; jobs, or workers, of a new cluster."),
        click.option(
            "--cluster",
            metavar="WHERE",
            help="Simulate on a Dask cluster: tcp://HOST:PORT, or a class, dask_jobqueue:SLURMCluster for example. Its"
            " machines need the same folders.",
        ),
        click.option("--json", "as_json", is_flag=True, help="The findings as JSON on stdout, the rest on stderr."),
        click.option(
            "--report-only",
            is_flag=True,
            help="Run nothing: print the findings of the results in --out, with the options that made these results.",
        ),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        @with_kept_options
        def bundled(**given: Any) -> None:
            common = {field.name: given.pop(field.name) for field in fields(Choices)}
            command(choices=Choices(**common), **given)

        for option in reversed(options):
            option(bundled)
        return bundled

    return decorate


def conduct(
    experiment: str,
    choices: Choices,
    scenarios: Callable[[], Sequence[Scenario]],
    find: Find,
    *,
    lean: bool = False,
) -> None:
    """Run or read the matrix, and show the findings; end the process with the command's exit code.

    With `lean`, a simulated run does not keep the workers' lines and sums, because a repetition gives the same lines
    and sums.
    """
    console = make_console(stderr=choices.as_json)
    with ending(f"experiment {experiment}"):
        if choices.report_only:
            check_results(choices.out, "an experiment")
        wanted = scenarios()
        if not (choices.report_only or choices.simulated) and running() is not None:
            raise another_run()
        folder = choices.out or default_path(f"experiment-{experiment}")
        if choices.cluster is not None:
            folder = folder.absolute()
        matrix = cells(wanted, choices.seeds, folder)
        ran = read_cells(matrix) if choices.report_only else _run(matrix, folder, console, choices, lean=lean)
        code = conclude(f"experiment {experiment}", folder, list(ran), find, console, as_json=choices.as_json)
    sys.exit(code)


def check_results(out: Path | None, of: str) -> Path:
    """Return the folder that --report-only reads; `of` names the folder's content. Raise ConfigError if the folder is
    missing."""
    if out is None or not out.is_dir():
        raise ConfigError(f"--report-only needs --out with the folder of {of}, not {out or 'none'}")
    return out


def known(chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the chosen names, each once, or all. Raise ConfigError for an unknown name."""
    for name in chosen:
        if name not in names:
            meant = did_you_mean(name, names)
            raise ConfigError(f"--scenario must be among {', '.join(names)}, got {name!r}{meant}")
    return list(dict.fromkeys(chosen or names))


def _run(
    matrix: Sequence[Cell], folder: Path, console: Console, choices: Choices, *, lean: bool
) -> Iterator[CellResult]:
    """Run on the real system, or in virtual time."""
    engine = TaskEngine(processes=choices.processes, cluster=choices.cluster)
    engine.check()
    if choices.cluster is not None and not choices.simulated:
        raise ConfigError(f"--cluster {choices.cluster} needs --simulate: real runs need this machine")
    check_cells(matrix)
    trainings = sum(cell.trainings for cell in matrix)
    say(console, f"{len(matrix)} runs, {trainings} trainings; results in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    write_options(folder, given_options())
    if choices.simulated:
        return _simulated(matrix, folder, console, engine, lean=lean)
    check_machine(matrix[0].config.network.target)
    return gone_through(matrix, folder, execute, console)


def _simulated(
    matrix: Sequence[Cell], folder: Path, console: Console, engine: TaskEngine, *, lean: bool
) -> Iterator[CellResult]:
    """Simulate the cells; cells with the same number of workers have the same costs."""
    from kofn.sim.machine_costs import known_costs  # noqa: PLC0415  # the model and its libraries

    by_workers = {cell.config.job.workers: cell.config for cell in matrix}
    costs = {workers: known_costs(folder / f"costs-{workers}w.json", config) for workers, config in by_workers.items()}
    for note in {known.load_note for known in costs.values()} - {""}:
        say(console, note)
    for result in gone_through(matrix, folder, functools.partial(_simulate, costs), console, engine=engine):
        if lean:
            result.cell.drop()
        yield result


def gone_through(
    matrix: Sequence[Cell], folder: Path, carry_out: CarryOut, console: Console, *, engine: TaskEngine = IN_TURN
) -> Iterator[CellResult]:
    """Run all unfinished cells; the error of an interruption tells how to continue."""
    with going_on(folder):
        yield from run_cells(matrix, carry_out, console, engine=engine)
    point_latest(folder)


@contextlib.contextmanager
def going_on(folder: Path) -> Iterator[None]:
    """Tell how to continue after an interruption of the body."""
    try:
        yield
    except InterruptedRun as error:
        raise InterruptedRun(f"{error}\nthe same command with --out {folder} continues") from None


def _simulate(costs: Mapping[int, Any], plan: RunPlan, console: Console) -> RunFolder:
    """Carry out a plan in virtual time; `costs` are sim.costs.Costs by number of workers."""
    from kofn.sim.runner import execute as simulate  # noqa: PLC0415  # the model and its libraries

    return simulate(plan, console, lambda: costs[plan.shared.job.workers])
