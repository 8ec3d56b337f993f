"""`kofn simulate`: one configuration's trials in virtual time, with the files, summary and report of a run."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import msgspec
import threadpoolctl
from msgspec.structs import replace
from rich.console import Console

from kofn.report.summary import TrialSummary
from kofn.report.table import PlainTable, make_console
from kofn.run.conclusion import AtEarlyEnd, conclude, conclude_early, load_report, noted_end, summarised
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.jobs import overridden
from kofn.run.options import record_option, set_option
from kofn.run.plan import DEFAULT_CONFIG, RunPlan, make_plan, prepare
from kofn.run.seeds import run_seeds
from kofn.run.stragglers import record_stragglers
from kofn.run.topology import wanted_topology
from kofn.sim.against import Pair, pairs, real_run
from kofn.sim.against import table as compared
from kofn.sim.clock import VirtualClock
from kofn.sim.costs import Costs
from kofn.sim.learning import Learning
from kofn.sim.machine_costs import machine_costs
from kofn.sim.native import library
from kofn.sim.ring import RingSimulation
from kofn.sim.scale.simulation import simulate_scale
from kofn.sim.schedules import SimulatedSchedule, simulate_schedules
from kofn.sim.schedules import table as schedules_table
from kofn.sim.simulation import Simulation
from kofn.sim.times import ScaledTimes, SimulatedTimes, table
from kofn.sim.trial import VirtualTrial
from kofn.sim.worker_model import LearningModel, TimingModel, TrainingModel
from kofn_common.collectives.job_collective import load_collective, servers_of
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import SWITCH
from kofn_common.config.objectives import check_objective
from kofn_common.config.schema import Config
from kofn_common.forked import forked
from kofn_common.json_text import json_text
from kofn_common.results.folder import JobFolder, RunFolder, TrialFolder
from kofn_common.results.record import SIMULATED, read_record
from kofn_common.rpc.document import document
from kofn_controller.job.journal import Journal
from kofn_controller.job.status_message import status_message
from kofn_controller.policy.control_loop import ControlLoop
from kofn_host.training import Metrics, alone
from kofn_host.workload import straggler_class, workload_class

EXAMPLES = """
\b
Examples:
  kofn simulate                                      the default experiment, in virtual time
  kofn simulate mine.toml --trial progress --trial all the same file as for kofn run
  kofn simulate mine.toml --costs runs/x/costs.json  with the CPU times of an earlier simulation: the same results
  kofn simulate --against runs/latest                a real run and its simulation, side by side
  kofn simulate --times                              no training: the time of iterations, and the chosen k
  kofn simulate --scale --set job.workers=100000 --set compress.codec=int32
                                                     no training and no packets: any number of workers
  kofn simulate mine.toml --times --set schedule.family=auto     the time of iterations by the best schedules

\b
Exit codes: 0 every trial reached its target and is consistent (with --times: every trial ended), 1 otherwise, also if
a trial was not over after run.trial_deadline_s of virtual time, 2 the configuration or the command line is wrong, 130
stopped by a signal.
"""

MANAGEMENT = "172.16.0.0/12"
"""The management network in the folder's description, large enough for all workers; no address is used."""


@click.command(epilog=EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option(
    "--trial",
    "objectives",
    multiple=True,
    metavar="OBJECTIVE",
    help="An objective, as for kofn run; repeat it for more trials.  [default: as for kofn run]",
)
@set_option
@record_option
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results.  [default: as for kofn run]")
@click.option(
    "--cores",
    type=click.IntRange(min=0),
    help="Processors that all hosts share; 0: a processor for every host.  [default: this machine's]",
)
@click.option(
    "--costs",
    type=click.Path(path_type=Path),
    help="CPU times of a worker's steps, JSON.  [default: this machine's, measured once and kept]",
)
@click.option("--measure", "anew", is_flag=True, help="Measure this machine's CPU times again, and keep them.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Simulate the finished run in this folder, and compare.",
)
@click.option("--times", is_flag=True, help="No training and no files: a packet for each worker and iteration.")
@click.option(
    "--scale",
    is_flag=True,
    help="As --times, by iterations instead of packets: up to a million workers, and run.seeds seeds.",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on stdout, progress on stderr.")
@click.option("--quiet", is_flag=True, help="No progress.")
def command(
    *,
    config: Path | None,
    objectives: tuple[str, ...],
    settings: tuple[str, ...],
    record: Path | None,
    out: Path | None,
    cores: int | None,
    costs: Path | None,
    anew: bool,
    against: Path | None,
    times: bool,
    scale: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run an experiment in virtual time: no network, no waiting, no root.

    CONFIG is a file for kofn run. Estimator, policy, protocol, ledger, model and data are those of a real run. Links
    and the slots of a switch, a tree or a parameter server are modelled; job.collective "ring" has a model of the time
    of its steps in place of packets. The CPU times of a worker's steps are measured on this machine, by the first
    simulation of a configuration; later simulations take the same times (--measure).
    Not simulated: kill and start of [[event]], late joiners, custom topologies, faults at the switch, several jobs, and
    the other collectives. A workload takes model.compute_ms for a gradient, however long it really takes.
    With [schedule], --times gives the time of an iteration by the model of docs/explanation/schedule.md. --scale also
    has a model of learning (docs/explanation/scale.md).
    """
    console = make_console(stderr=as_json, quiet=quiet)
    with ending("simulate"):
        if scale:
            files = {"--out": out, "--costs": costs, "--against": against, "--record-stragglers": record}
            _refuse_beside("--scale", {"--times": times, "--cores": cores, "--measure": anew, **files})
            scaled = simulate_scaled(config or DEFAULT_CONFIG, objectives, settings, console)
            _show(scaled, table(scaled), as_json=as_json)
            return
        if costs is not None:
            _refuse_beside(f"--costs {costs}", {"--measure": anew})
        real: tuple[TrialSummary, ...] = ()
        if against is not None:
            if config is not None or settings:
                given = config or f"--set {settings[0]}"
                raise ConfigError(f"--against {against} and {given}: the run's own configuration is simulated")
            config, real = real_run(against)
            objectives = objectives or tuple(entry.objective for entry in real)
        if record is not None and times:
            raise ConfigError(f"--record-stragglers {record} and --times: these simulations write no files")
        sources = () if config is None else (config,)
        plan = make_plan(
            *sources, out=out, objectives=objectives, settings=settings, record=record, as_json=as_json, quiet=quiet
        )
        if times and plan.shared.schedule.family is not None:
            schedules = simulate_schedules(plan.shared)
            _show(schedules, schedules_table(schedules), as_json=as_json)
            return
        check(plan.shared)
        known = _known_costs(plan.shared, costs, cores, anew=anew)
        if times:
            if note := known().load_note:
                say(console, note)
            results = simulate_times(plan.shared, known(), console)
            _show(results, table(results), as_json=as_json)
            return
        if plan.shared.run.seeds > 1 and against is None:
            sys.exit(
                run_seeds(plan, make_console(stderr=as_json), lambda run, _: execute(run, console, known, apart=True))
            )
        at_early_end = conclude_early(make_console(stderr=as_json), as_json=as_json)
        folder = execute(plan, console, known, at_early_end, apart=True)
        record_stragglers(folder, plan.record, console)
        if against is not None:
            found = pairs(real, summarised(folder, plan.configs).jobs[0].trials)
            _show(found, compared(found), as_json=as_json)
            _say_loads(folder.path, against)
            return
        sys.exit(conclude(folder, plan.configs, make_console(stderr=as_json), as_json=as_json))


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Raise ConfigError if one of the other options is given, too."""
    for other, value in others.items():
        if value is not None and value is not False:
            raise ConfigError(f"{option} and {other} must not both be given")


def _say_loads(*folders: Path) -> None:
    """Print the remarks of runs on loaded machines."""
    for folder in folders:
        if load := read_record(folder).load:
            say(make_console(stderr=True), f"{folder}: {load}")


def execute(
    plan: RunPlan,
    console: Console,
    known: Callable[[], Costs],
    at_early_end: AtEarlyEnd | None = None,
    *,
    apart: bool = False,
) -> RunFolder:
    """Simulate until the last worker's end; return the run's folder. Raise ConfigError for settings that are not
    simulated.

    `known` returns the costs, and is called once the folder exists. With `apart`, trials are simulated at the same
    time, in separate processes, if this process may be forked.
    """
    config = plan.shared
    check(config)
    drawn = replace(config, network=replace(config.network, management=MANAGEMENT))
    folder = prepare(
        plan,
        wanted_topology(
            drawn, plan.jobs[0].source, hosts=config.job.workers, servers=servers_of([config.job.collective])
        ),
    )
    folder.update_record(driver=SIMULATED)
    with noted_end(folder, at_early_end), threadpoolctl.threadpool_limits(1):  # small matrices: threads would only wait
        library()  # compiled once, for all trials
        costs = known()
        costs.save(folder.costs)
        folder.update_record(load=costs.load_note)
        trials = [partial(_simulate_trial, config, entry, costs, console) for (entry,) in folder.trials]
        if config.run.alone:
            trials[0] = partial(_beside, partial(_simulate_alone, config, folder.jobs[0], costs), trials[0])
        with forked(trials) if apart else nullcontext(trial() for trial in trials) as ended:
            for number in range(1, len(trials) + 1):
                if apart and number == len(trials):  # a processor is idle during the last trial
                    load_report()
                next(ended)
                folder.update_record(finished=number)
    return folder


def _known_costs(config: Config, path: Path | None, cores: int | None, *, anew: bool) -> Callable[[], Costs]:
    """Return a function that returns the costs: those in a file, or this machine's."""
    if path is not None:
        loaded = Costs.load(path, config.job.collective)
        return lambda: _with_cores(loaded, cores)
    return cache(lambda: _with_cores(_in_child(partial(machine_costs, config, anew=anew)), cores))


def _in_child(measured: Callable[[], Costs]) -> Costs:
    """Return the result of a call in another process. A measurement trains, perhaps in threads, and a process that has
    trained must not be forked."""
    with forked([measured]) as results:
        return next(results)


def _with_cores(costs: Costs, cores: int | None) -> Costs:
    return costs if cores is None else replace(costs, cores=cores)


def check(config: Config) -> None:
    """Raise ConfigError for settings that are not simulated."""
    if not load_collective(config.job.collective).simulated:
        raise ConfigError(
            f"job.collective must be 'switch', 'server' or 'ring' in a simulation, got {config.job.collective!r}:"
            " kofn run has them all"
        )
    workload_class(config).check(config)
    straggler_class(config).check(config)
    for event in config.event:
        if event.objective is None:
            raise ConfigError("event.kill and event.start are not simulated: event.objective is")
    if any(fault.exchange for fault in config.fault):
        raise ConfigError("fault.exchange is not simulated: no controller begins a new generation there")
    if config.job.start_workers not in (None, config.job.workers):
        raise ConfigError("job.start_workers is not simulated: all workers start together")
    if other := [fault.where for fault in config.fault if fault.where != "host"]:
        raise ConfigError(f"fault.where must be 'host' in a simulation, got {other[0]!r}")
    if config.cpu:
        raise ConfigError(
            "cpu.share is not simulated, because no real time passes: kofn run --record-stragglers writes its"
            " effect to a file for model.trace"
        )
    if config.schedule.family is not None:
        raise ConfigError(
            f"schedule.family is {config.schedule.family!r}: only --times simulates schedules, and gives the time of"
            " iterations"
        )
    if config.network.topology is not None:
        raise ConfigError("network.topology is not simulated: a star with network.link_mbps is")


def check_scaled(config: Config) -> None:
    """Raise ConfigError for settings that are not simulated by iterations."""
    check(config)
    if config.job.collective != SWITCH:
        raise ConfigError(f"job.collective must be {SWITCH!r} with --scale, got {config.job.collective!r}")
    if config.fault:
        raise ConfigError("fault and --scale must not both be given: --scale simulates no packets")


def simulate_times(config: Config, costs: Costs, console: Console) -> list[SimulatedTimes]:
    """Simulate the times of iterations and the choices of k, for each objective; up to run.max_iterations."""
    results = []
    for objective in config.run.trials:
        models = [TimingModel(config) for _ in range(config.job.workers)]
        begin = time.perf_counter()
        simulation = _simulation(config, objective, models, costs, None)
        simulation.run(_progress(console, objective, begin))
        results.append(SimulatedTimes.of(simulation, time.perf_counter() - begin))
    return results


def simulate_scaled(
    path: Path, objectives: tuple[str, ...], settings: tuple[str, ...], console: Console
) -> list[ScaledTimes]:
    """Simulate by iterations, for each objective and seed."""
    config = overridden(Config.load(path, settings, scale=True), objectives=objectives)
    check_scaled(config)
    for name in config.run.trials:
        check_objective(name, config.job.workers, "--trial")
    results = []
    for name in config.run.trials:
        begin = said = time.perf_counter()

        def progress(iteration: int, virtual_s: float, name: str = name, begin: float = begin) -> None:
            nonlocal said
            if (now := time.perf_counter()) - said >= 1:
                said = now
                say(console, f"trial {name}: iteration {iteration}, {virtual_s:.1f} s in {now - begin:.1f} s")

        results += simulate_scale(config, name, progress)
    return results


def _simulate_trial(config: Config, entry: TrialFolder, costs: Costs, console: Console) -> None:
    """Simulate one objective, with the files of its workers and its controller."""
    begin = time.perf_counter()
    learning = Learning(config)
    with ExitStack() as files:
        metrics = [files.enter_context(Metrics(entry.metrics(rank))) for rank in range(config.job.workers)]
        kind = TrainingModel if load_collective(config.job.collective).ledger else LearningModel
        models = [kind(config, rank, learning, lines) for rank, lines in enumerate(metrics)]
        virtual_s = _train(config, entry, models, costs, console)
    passed_s = time.perf_counter() - begin
    say(console, f"trial {entry.objective}: {virtual_s:.1f} s in {passed_s:.1f} s; results in {entry.path}")


def _beside(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _simulate_alone(config: Config, job: JobFolder, costs: Costs) -> None:
    """Simulate one worker that trains alone, on a separate processor."""
    now_s = 0.0

    def wait_until(end_s: float) -> None:
        nonlocal now_s
        now_s = end_s + costs.wake_s + costs.apply_s

    job.alone.path.mkdir(parents=True, exist_ok=True)
    with Metrics(job.alone.metrics(0)) as lines:
        alone.train(config, lines, lambda: now_s, wait_until)


def _train(
    config: Config, entry: TrialFolder, models: Sequence[LearningModel], costs: Costs, console: Console
) -> float:
    """Simulate to the end, write the last line of each worker's metrics, and return the duration in virtual
    seconds."""
    simulation = _simulation(config, entry.objective, models, costs, entry.decisions)
    progress = _progress(console, entry.objective, time.perf_counter())

    def look(control_loop: ControlLoop, virtual_s: float) -> None:
        progress(control_loop, virtual_s)
        status = (
            {"time": virtual_s} | document(status_message(control_loop)) | {"job": config.job.id, "uptime_s": virtual_s}
        )
        statuses.write(json_text(status) + "\n")

    with simulation.journal, entry.status.open("w") as statuses:
        simulation.run(look)
    if simulation.events:
        entry.events.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in simulation.events))
    for rank, model in enumerate(models):
        model.close(simulation.totals(rank))
    return simulation.clock.time()


def _simulation(
    config: Config, objective: str, models: Sequence[Any], costs: Costs, journal: Path | None
) -> VirtualTrial:
    """Return a trial in virtual time; `models` fit the collective: by packets, or by the time model of a ring."""
    kind = Simulation if load_collective(config.job.collective).ledger else RingSimulation
    config = replace(config, policy=replace(config.policy, objective=objective))
    clock = VirtualClock()
    return kind(config=config, models=models, costs=costs, clock=clock, journal=Journal(journal, clock.time))


def _progress(console: Console, objective: str, begin: float) -> Callable[[ControlLoop, float], None]:
    """Return a function that reports a simulation's progress about every second."""
    said = begin

    def show(control_loop: ControlLoop, virtual_s: float) -> None:
        nonlocal said
        if (now := time.perf_counter()) - said >= 1:
            said = now
            say(
                console,
                f"trial {objective}: iteration {control_loop.iteration}, {virtual_s:.1f} s in {now - begin:.1f} s",
            )

    return show


def _show(found: Sequence[SimulatedTimes | Pair | SimulatedSchedule], shown: PlainTable, *, as_json: bool) -> None:
    """Show results as a table, or as JSON on stdout."""
    if as_json:
        click.echo(json_text([result.to_dict() for result in found], indent=2))
    else:
        make_console().print(shown)
