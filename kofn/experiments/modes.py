"""Carries out the cells of an experiment: for real, in virtual time, or by a function that returns a row."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from kofn.experiments.cells import Cell, CellResult, RowFile, clear
from kofn.experiments.engine import TaskEngine
from kofn.experiments.experiment_file import HOOKS, RUN, SCALE, SIMULATE, ExperimentFile, Point
from kofn.experiments.result_columns import scaled_trial
from kofn.report.table import make_console
from kofn.run.conclusion import summarised
from kofn.run.display import say
from kofn.run.errors import InterruptedRun, LeftoversError
from kofn.run.lab.lab_file import Lab
from kofn.run.plan import RunPlan
from kofn.run.plugins import check_objectives, check_plugins
from kofn.run.preconditions import check_machine, check_needs
from kofn.run.runner import execute
from kofn.run.signals import deferred
from kofn.run.state import another_run, running
from kofn_common.config.errors import ConfigError, KofnError
from kofn_common.config.plugins import in_words, look_in
from kofn_common.results.folder import RunFolder

COSTS = "costs"
"""The folder with the CPU times of simulations, in the experiment's folder."""

TOLD = 100
"""If there are more cells than this, only some of them have a line of progress."""


def check(file: ExperimentFile, cells: Sequence[Cell]) -> None:
    """Raise ConfigError for a missing plug-in, file or package of any cell, for what its mode cannot do, or without a
    cell, before the first cell."""
    if not cells:
        raise ConfigError(f"{file.path} must have a cell, got none: --only, or {file.section.cells}, leaves all out")
    for cell in cells:
        if cell.seed == 1:
            file.blame(cell.point, functools.partial(_check_point, file.section.mode, cell))


def _check_point(mode: str, cell: Cell, point: Point) -> None:
    """Raise ConfigError if the cell, with this point, misses something, or its mode cannot do it."""
    from kofn.sim import runner as simulation  # noqa: PLC0415  # the model and its libraries

    config = replace(cell, point=point).config.at(cell.source.parent)
    if mode == SCALE:
        simulation.check_scaled(config)
        check_objectives(config)
    if mode == SIMULATE:
        simulation.check(config)
    if mode in (RUN, SIMULATE):
        check_plugins(config)
        check_needs(config)


def check_here(file: ExperimentFile, cells: Sequence[Cell], lab: Lab | None = None) -> None:
    """Raise RunError if cells are left to run for real and this machine cannot run them: there is another run, or root
    or a tool is missing. Raise ConfigError if a laboratory has no place for a worker."""
    left = [cell for cell in cells if not (cell.folder / "summary.json").exists()] if file.section.mode == RUN else []
    if left and running() is not None:
        raise another_run()
    if lab is not None:
        for cell in left:
            lab.placed([cell.config])
        return
    for target in dict.fromkeys(cell.config.network.target for cell in left):
        check_machine(target)


def carry_out(
    file: ExperimentFile, out: Path, left: Sequence[Cell], console: Console, engine: TaskEngine
) -> Iterator[CellResult]:
    """Carry out the unfinished cells, and yield their results; the failure of a cell does not stop the others."""
    if not left:
        return
    results = _results(file, out, left, console, engine)
    for result in _told(left, results, console):
        if result.ok and file.section.lean and not file.rows_only:
            result.cell.drop()
        yield result


def _results(
    file: ExperimentFile, out: Path, left: Sequence[Cell], console: Console, engine: TaskEngine
) -> Iterator[CellResult]:
    """Yield the results of cells in the file's mode."""
    mode = file.section.mode
    if mode == RUN:
        run = functools.partial(_executed, engine.lab)
        yield from (_run(run, cell, console, check=number == 0) for number, cell in enumerate(left))
    elif mode == SIMULATE:
        yield from engine.in_order(functools.partial(_simulated, known_costs(out, left, console)), left, _lost)
    else:
        yield from _rows(mode, out, left, engine)


def known_costs(out: Path, cells: Sequence[Cell], console: Console) -> dict[str, Any]:
    """Return the CPU times of each cell's configuration, by the hash of what they depend on. They are in the
    experiment's folder, where a repetition finds them."""
    from kofn.sim.machine_costs import costs_key, known_costs  # noqa: PLC0415  # the model and its libraries

    wanted = {costs_key(cell.config): cell for cell in cells}
    (out / COSTS).mkdir(exist_ok=True)
    found = {}
    for number, (key, cell) in enumerate(wanted.items(), 1):
        path = out / COSTS / f"{key}.json"
        if not path.exists() and len(wanted) > 1:
            say(console, f"CPU times of a worker's steps: {number} of {len(wanted)}")
        found[key] = known_costs(path, cell.config.at(cell.source.parent))
    if others := max((costs.others for costs in found.values() if costs.busy), default=0.0):
        say(
            console,
            "the CPU times of a worker's steps were measured on a busy machine (other processes used"
            f" {others:.0%} of the cores): a quiet machine and another --out give better ones",
        )
    return found


def scale_row(cell: Cell) -> dict[str, Any]:
    """Simulate by iterations; return the row of the results."""
    from kofn.sim.scale.simulation import simulate_scale  # noqa: PLC0415  # the model and its libraries

    (found,) = simulate_scale(cell.config, cell.config.run.trials[0], lambda iteration, virtual_s: None)
    return scaled_trial().row(found)


def _simulated(costs: dict[str, Any], cell: Cell) -> CellResult:
    """Carry out a cell in virtual time."""
    from kofn.sim.machine_costs import costs_key  # noqa: PLC0415  # the model and its libraries
    from kofn.sim.runner import execute as simulate  # noqa: PLC0415

    known = costs[costs_key(cell.config)]
    return _run(lambda plan, console: simulate(plan, console, lambda: known), cell, make_console(quiet=True))


def _executed(lab: Lab | None, plan: RunPlan, console: Console) -> RunFolder:
    return execute(replace(plan, lab=lab), console)


def _run(
    run: Callable[[RunPlan, Console], RunFolder], cell: Cell, console: Console, *, check: bool = False
) -> CellResult:
    """Carry out a cell's run; with `check`, measure the network first. The run's failure is a result."""
    try:
        plan = replace(clear(cell), check=check)
        folder = run(plan, console)
        with deferred():
            summarised(folder, plan.configs)
    except (InterruptedRun, LeftoversError):
        raise
    except KofnError as error:
        ok = cell.point.may_fail and _summarised_part(cell, plan)
        return CellResult(cell=cell, ok=ok, error="" if ok else f"FAILED: {error}")
    return CellResult(cell=cell, ok=True)


def _summarised_part(cell: Cell, plan: RunPlan) -> bool:
    """Summarise a run that a process's failure ended; return whether its trial has finished an iteration."""
    try:
        folder = RunFolder.open(cell.folder)
    except ConfigError:
        return False
    return bool(summarised(folder, plan.configs, folder.record().early_end).jobs[0].trials)


def _rows(mode: str, out: Path, left: Sequence[Cell], engine: TaskEngine) -> Iterator[CellResult]:
    """Call the mode's function for each cell, and keep the rows."""
    file = RowFile(out)
    file.repair()
    call = functools.partial(_row, mode, str(left[0].modules))
    for place, (row, error) in engine.results(call, left, lambda _, reason: ({}, reason)):
        cell = left[place]
        file.add(cell, **({"error": error} if error else {"row": row}))
        yield CellResult(cell=cell, ok=not error, error=error and f"FAILED: {error}")


def _row(mode: str, modules: str, cell: Cell) -> tuple[dict[str, Any], str]:
    """Return a cell's row, or its error."""
    try:
        look_in(modules)
        function = scale_row if mode == SCALE else HOOKS.load(mode)
        return dict(function(cell)), ""
    except Exception as error:  # no error of a cell may stop the other cells
        return {}, in_words(error)


def _lost(cell: Cell, reason: str) -> CellResult:
    return CellResult(cell=cell, ok=False, error=f"FAILED: {reason}")


def _told(left: Sequence[Cell], results: Iterator[CellResult], console: Console) -> Iterator[CellResult]:
    """Pass on results, with a line for each, and the time that is left by the mean of the ended cells."""
    begin = time.monotonic()
    every = max(1, len(left) // TOLD)
    if len(left) <= TOLD:
        say(console, f"[1/{len(left)}] {left[0].title}", style="bold")
    for number, result in enumerate(results, 1):
        spent_s = time.monotonic() - begin
        about = duration(spent_s / number * (len(left) - number))
        if not result.ok:
            say(console, f"{result.cell.title}: {result.error}", style="red")
        if number % every == 0 or number == len(left):
            rest = f", about {about} left" if number < len(left) else ""
            done = f"{'done' if result.ok else 'FAILED'} after {duration(spent_s)}{rest}"
            say(console, f"[{number}/{len(left)}] {result.cell.title}: {done}")
        yield result


def duration(time_s: float) -> str:
    """Return a duration as text."""
    if time_s < 90:
        return f"{time_s:.0f} s"
    return f"{time_s / 60:.0f} min" if time_s < 5400 else f"{time_s / 3600:.1f} h"
