"""`kofn run`: one configuration, or several jobs on one switch, from the first check to the report.

The order: check the machine, write the run folder, make the network, run the trials one after another, remove the
network, compare the trials. In every case, the network and all its processes are gone afterwards.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from kofn.report.table import make_console
from kofn.run.clean import remove_certificates
from kofn.run.commands import Commands
from kofn.run.conclusion import AtEarlyEnd, conclude, conclude_early, noted_end
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.errors import LeftoversError, RunError
from kofn.run.lab.choice import laboratory
from kofn.run.machine_load import load_note
from kofn.run.native import NativeBuild, builds
from kofn.run.network import EmulatedHost, NetworkClient
from kofn.run.options import lab_options, record_option, set_option
from kofn.run.page import Watched, page
from kofn.run.plan import RunPlan, make_plan, prepare
from kofn.run.preconditions import check_machine, check_management, check_needs, check_ports, check_space
from kofn.run.resume import go_back, plan_resumed, reopen
from kofn.run.seeds import run_seeds
from kofn.run.signals import cancel_on_signal, ignored, stopped_by
from kofn.run.state import hold
from kofn.run.stragglers import record_stragglers
from kofn.run.topology import wanted_topology
from kofn.run.trial import Trial
from kofn_common.collectives.job_collective import servers_of
from kofn_common.config.errors import ConfigError, KofnError
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder, check_new
from kofn_common.results.ranks import FEW
from kofn_common.rpc.errors import SecurityError

EXAMPLES = """
\b
Examples:
  kofn run                                    the default experiment
  kofn run mine.toml --out runs/mine          your own experiment, with its results in runs/mine
  kofn run --trial throughput --trial fixed:2 other objectives; the last one is the baseline
  kofn run --target bmv2                      with simple_switch_grpc
  kofn run --set model.learning_rate=0.05     another value for a key of the configuration
  kofn run --set network.trace=1              the first packet's way through the program, in the trial's logs/switch.log
  kofn run --trial all --set job.collective=ring     a ring of the workers in place of the switch's sums
  kofn run mine.toml --torch train.py         a script of your own in PyTorch, by torchrun
  kofn run one.toml other.toml                two jobs at once on one switch
  kofn run --web --port 8080                  the live page at a port of your choice
  kofn run --lab lab.toml                     on the machines of a laboratory
  kofn run --slurm                            on the nodes of a Slurm allocation
  kofn run --resume runs/latest               go on after a crash, with run.checkpoint_every
  kofn run --json | jq .trials                the summary for another program

\b
Exit codes: 0 every trial reached its target and is consistent (with model.replay: is consistent),
1 otherwise, or if an objective or a process failed, 2 the configuration or the command line is wrong,
130 stopped by a signal.
"""


@click.command(epilog=EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path), nargs=-1)
@click.option("--target", type=click.Choice(["embedded", "bmv2"]), help="The switch.  [default: network.target]")
@click.option(
    "--driver", type=click.Choice(["auto", "mininet", "netns"]), help="Makes the hosts.  [default: network.driver]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the results.  [default: runs/NAME-YYYYmmdd-HHMMSS]"
)
@click.option(
    "--trial",
    "objectives",
    multiple=True,
    metavar="OBJECTIVE",
    help="progress, throughput, all, fixed:K, RULE:K or a plug-in; repeat it for more trials; the last one is the "
    "baseline.  [default: run.trials; where that is not given, policy.objective and all]",
)
@click.option(
    "--torch",
    "script",
    type=click.Path(path_type=Path),
    help="A script in PyTorch that torchrun starts at each worker: torch.script, from the working folder on.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Continue the interrupted run in FOLDER from its newest checkpoint (run.checkpoint_every).",
)
@set_option
@record_option
@lab_options
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on stdout, progress on stderr.")
@click.option("--quiet", is_flag=True, help="No live table and no passed checks: events, stalls and the results.")
@click.option("--web/--no-web", default=None, help="Serve the live page.  [default: on a terminal]")
@click.option("--port", type=click.IntRange(0, 65535), help="The page's port at 127.0.0.1.  [default: a free one]")
def command(
    *,
    config: tuple[Path, ...],
    target: str | None,
    driver: str | None,
    out: Path | None,
    objectives: tuple[str, ...],
    script: Path | None,
    resume: Path | None,
    settings: tuple[str, ...],
    record: Path | None,
    lab: Path | None,
    slurm: bool,
    as_json: bool,
    quiet: bool,
    web: bool | None,
    port: int | None,
) -> None:
    """Train once for each trial, through the switch or by another job.collective, and compare the trials.

    CONFIG is a TOML file; without CONFIG the default experiment runs. The default experiment has four workers, one of
    which is blocked; half-way this worker recovers, and another worker slows down. The trials are source, progress and
    all.

    Several CONFIGs are jobs at the same time on one switch, each with separate workers, slots and k. The first CONFIG's
    sections [run] and [network] hold for all jobs; job.id must differ.
    """
    console = make_console(stderr=as_json)
    with ending("run"):
        machines = laboratory(lab, slurm=slurm)
        if resume is not None:
            if any((config, target, driver, out, objectives, script, record)):
                raise ConfigError(
                    "--resume must be alone, or with --lab, --slurm or --set job.workers=N: the folder has the "
                    "configuration"
                )
            plan = plan_resumed(resume, settings=settings, lab=machines, as_json=as_json, quiet=quiet)
        else:
            plan = make_plan(
                *config,
                target=target,
                driver=driver,
                out=out,
                objectives=objectives,
                settings=(*settings, *([f"torch.script={str(script.resolve())!r}"] if script else [])),
                record=record,
                lab=machines,
                as_json=as_json,
                quiet=quiet,
            )
        plan = replace(plan, page_port=page_port(web, port, console))
        sys.exit(carry_out(plan, console))


def page_port(web: bool | None, port: int | None, console: Console) -> int | None:
    """Return the port of the page, None for no page. Raise ConfigError if a port contradicts --no-web."""
    if web is False and port is not None:
        raise ConfigError(f"--port {port} and --no-web must not both be given")
    there = console.is_terminal and importlib.util.find_spec("uvicorn") is not None
    wanted = there if web is None and port is None else web is not False
    if not wanted:
        return None
    importlib.import_module("kofn.web.server")  # a missing package is reported before anything is made
    return port or 0


def carry_out(plan: RunPlan, console: Console, errors: Console | None = None) -> int:
    """Carry out the whole run; return its exit code."""
    check(plan)
    if plan.shared.run.seeds > 1:
        return run_seeds(plan, console, execute)
    folder = execute(plan, console, conclude_early(console, as_json=plan.as_json, errors=errors))
    with ignored():
        record_stragglers(folder, plan.record, console)
        return conclude(folder, plan.configs, console, as_json=plan.as_json, errors=errors)


def execute(plan: RunPlan, console: Console, at_early_end: AtEarlyEnd | None = None) -> RunFolder:
    """Run until the last worker's end, and return the folder with the results."""
    check(plan)
    topology = wanted_topology(
        plan.shared,
        plan.jobs[0].source,
        hosts=sum(config.job.workers for config in plan.configs),
        servers=servers_of(config.job.collective for config in plan.configs),
    )
    check_space(plan.folder)
    remove_certificates()
    with hold(plan.folder):
        check_ports(plan.shared.network, plan.page_port, len(plan.shared.switches))
        if plan.lab is None:
            check_management(plan.shared.network)
        load = load_note()
        folder = reopen(plan, topology) if plan.resume else prepare(plan, topology)
        folder.update_record(load=load or folder.record().load)
        native = NativeBuild(builds(plan.shared.network, plan.data_plane.compiled.blob) if plan.lab is None else [])
        try:
            with (
                noted_end(folder, at_early_end),
                certificates(plan, folder) as certs,
                page(folder.path, plan.page_port, console) as watched,
            ):
                asyncio.run(train(plan, folder, native, certs, console, watched))
        except LeftoversError:
            raise
        except KofnError as error:
            raise type(error)(f"{error}\n{_kept(folder, plan.configs)}") from None
    return folder


def check(plan: RunPlan) -> None:
    """Raise RunError or ConfigError if the results have no place, or the machine lacks a requirement."""
    if not plan.resume:
        check_new(plan.folder)
    if plan.lab is None:
        check_machine(plan.shared.network.target)
    else:
        plan.lab.placed(plan.configs)  # or an error
    for config in plan.configs:
        check_needs(config)


@contextlib.contextmanager
def certificates(plan: RunPlan, folder: RunFolder) -> Iterator[Path | None]:
    """Yield the folder of certificates and tokens for this run's processes, and remove the folder afterwards. Yield
    None if network.tls is false."""
    if not plan.shared.network.tls:
        yield None
        return
    from kofn_common.rpc.certificates import make_certificates  # noqa: PLC0415  # needs kofn[certs]

    shutil.rmtree(folder.certificates, ignore_errors=True)  # a power cut may have left certificates
    try:
        make_certificates(folder.certificates, {config.job.id: config.job.workers for config in plan.configs})
        yield folder.certificates
    except SecurityError as error:
        raise RunError(str(error)) from None
    finally:
        shutil.rmtree(folder.certificates, ignore_errors=True)


async def train(
    plan: RunPlan, folder: RunFolder, native: NativeBuild, certs: Path | None, console: Console, watched: Watched
) -> None:
    """Make the network, run the trials, remove the network. Raise InterruptedRun if a signal came."""
    task = asyncio.current_task()
    assert task is not None
    signals = cancel_on_signal(task)
    try:
        await _train(plan, folder, native, certs, console, watched)
    except asyncio.CancelledError:
        if not signals:
            raise
        raise stopped_by(signals[0]) from None


def _listed(hosts: Mapping[str, EmulatedHost]) -> str:
    """Return hosts with their addresses; if there are many, the first and the last host."""
    names = [f"{name} {host.ip}" for name, host in hosts.items()]
    return ", ".join(names) if len(names) <= FEW else f"{len(names)} hosts, {names[0]} to {names[-1]}"


async def _train(
    plan: RunPlan, folder: RunFolder, native: NativeBuild, certs: Path | None, console: Console, watched: Watched
) -> None:
    begin = time.monotonic()
    settings = plan.shared.network
    network = await _network(plan, folder, certs)
    try:
        folder.update_record(driver=network.ready.driver)
        if not plan.quiet:
            up = f"network up in {time.monotonic() - begin:.1f} s ({network.ready.driver})"
            say(console, f"{up}: {_listed(network.ready.hosts)}")
            if not native.done:
                say(console, "compiling switch and workers to native code: the next run finds it in the cache")
        commands = Commands(
            network=settings,
            topology=folder.topology,
            certificates=certs,
            switches=len(plan.shared.switches),
            packets_port=plan.data_plane.port,
        )
        ended = folder.record().finished
        for number, (entry, *_) in list(enumerate(folder.trials))[ended:]:
            if not plan.quiet:
                say(
                    console,
                    f"trial {entry.objective} ({number + 1} of {len(folder.trials)}): results in {entry.shared}",
                )
            trial = Trial(
                network, commands, folder, plan.configs, number=number, native=native, console=console, watched=watched
            )
            resumed = [*map(go_back, folder.trials[number])] if plan.resume and number == ended else ()
            if resumed:
                await network.share(entry.shared)
            await trial.run(check=plan.check and number == 0, quiet=plan.quiet, resumed=resumed)
            folder.update_record(finished=number + 1)
    finally:
        folder.update_record(machines=network.records)
        await network.stop()


async def _network(plan: RunPlan, folder: RunFolder, certs: Path | None) -> NetworkClient:
    """Make the network, on this machine or on those of a laboratory."""
    if plan.lab is not None:
        from kofn.run.lab.start import start_network  # noqa: PLC0415  # a run on one machine needs none of it

        return await start_network(plan.lab, folder, plan.configs, certs)
    settings = plan.shared.network
    return await NetworkClient.start(
        folder.topology,
        driver=settings.driver,
        management=settings.management,
        coalesced=settings.coalesced,
        log=folder.path / "boot.log",
    )


def _kept(folder: RunFolder, configs: Sequence[Config]) -> str:
    """Return one line about the remains of an unfinished run."""
    lines = sum(
        path.read_bytes().count(b"\n")
        for job, config in zip(folder.jobs, configs, strict=True)
        for entry in job.trials
        for rank in range(config.job.workers)
        if (path := entry.metrics(rank)).exists()
    )
    return f"kept in {folder.path}: logs and {lines} lines of worker metrics; everything else is removed"
