"""`kofn run`: one configuration from the first check to the report.

The order: check the machine, write the run folder, make the network, run the passes one after another, remove the
network, compare the passes.  Whatever happens in between, the network and every process in it are gone afterwards.
"""

import asyncio
import errno
import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
from msgspec.structs import replace
from rich.console import Console

from run import terminal
from run.config import Config, check_objective
from run.errors import ConfigError, InterruptedRun, LeftoversError, RunError
from run.folder import RunFolder, default_path, point_latest
from run.live import say
from run.metrics import merge
from run.network import Network
from run.passes import Commands, Pass
from run.preconditions import check_machine, check_ports
from run.signals import cancel_on_signal, deferred, interruptible, stopped_by
from run.state import hold
from run.summary import summarise
from run.topology import wanted_topology

DEFAULT_CONFIG = Path(__file__).with_name("default.toml")
EXAMPLES = """
\b
Examples:
  kofn run                                    the default experiment
  kofn run mine.toml --out runs/mine          your own, results in runs/mine
  kofn run --pass round --pass fixed:2        other objectives; the last one is the baseline
  kofn run --target bmv2                      with simple_switch_grpc
  kofn run --json | jq .passes                the summary for another program

\b
Exit codes: 0 every pass reached its target and is consistent, 1 not so or a process failed,
2 the configuration or the command line is wrong, 130 stopped by a signal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the command line and the configuration together ask for."""

    source: Path
    config: Config
    """The command line's choices are in it."""
    folder: Path
    as_json: bool
    quiet: bool


@click.command(epilog=EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, required=False)
@click.option("--target", type=click.Choice(["embedded", "bmv2"]), help="The switch.  [default: network.target]")
@click.option(
    "--driver", type=click.Choice(["auto", "mininet", "netns"]), help="What makes the hosts.  [default: network.driver]"
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the results.  [default: runs/NAME-YYYYmmdd-HHMMSS]"
)
@click.option(
    "--pass", "objectives", multiple=True, metavar="OBJECTIVE", help="round, all or fixed:K; repeat it for more passes."
)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on stdout, progress on stderr.")
@click.option("--quiet", is_flag=True, help="No live table.")
def command(
    *,
    config: Path,
    target: str | None,
    driver: str | None,
    out: Path | None,
    objectives: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Train through the switch, once for each pass, and compare the passes.

    CONFIG is a TOML file; without one the default experiment runs: four workers, one of them blocked, which recovers
    half-way while another one slows down; first with the k that the controller chooses, then with k = all workers.
    """
    console, errors = Console(stderr=as_json), Console(stderr=True)
    try:
        with interruptible(), terminal.watched():
            plan = make_plan(
                config, target=target, driver=driver, out=out, objectives=objectives, as_json=as_json, quiet=quiet
            )
            sys.exit(carry_out(plan, console))
    except ConfigError as error:
        say(errors, f"kofn run: {error}")
        sys.exit(2)
    except InterruptedRun as error:
        say(errors, f"kofn run: {error}")
        sys.exit(130)
    except RunError as error:
        say(errors, f"kofn run: {error}")
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        terminal.leave()  # it was closed a moment before its watcher saw it
        sys.exit(130)


def make_plan(
    source: Path,
    *,
    target: str | None = None,
    driver: str | None = None,
    out: Path | None = None,
    objectives: tuple[str, ...] = (),
    as_json: bool = False,
    quiet: bool = False,
) -> Plan:
    """Read the configuration and let the command line override it; ConfigError if anything is wrong."""
    config = Config.load(source)
    for objective in objectives:
        check_objective(objective, config.job.workers, "--pass")
    network, passes = config.network, objectives or config.run.passes
    network = replace(network, target=target or network.target, driver=driver or network.driver)
    return Plan(
        source=source,
        config=replace(config, network=network, run=replace(config.run, passes=passes)),
        folder=out or default_path(config.run.name),
        as_json=as_json,
        quiet=quiet,
    )


def carry_out(plan: Plan, console: Console) -> int:
    """The whole run; its exit code."""
    check_machine(plan.config.network.target)
    topology = wanted_topology(plan.config, plan.source)
    with hold(plan.folder):
        check_ports(plan.config.network)
        folder = prepare(plan, topology)
        try:
            asyncio.run(train(plan, folder, console))
        except LeftoversError:
            raise
        except RunError as error:
            raise type(error)(f"{error}\n{_kept(folder, plan.config.job.workers)}") from None
    with deferred():
        return conclude(plan, folder, console)


def prepare(plan: Plan, topology: str) -> RunFolder:
    """Make the run folder with everything that says what is run; ConfigError if it cannot be had."""
    folder = RunFolder.create(plan.folder, plan.config.run.passes)
    shutil.copyfile(plan.source, folder.config)
    folder.topology.write_text(topology)
    folder.write_record(plan.config, driver=plan.config.network.driver)
    point_latest(plan.folder)
    return folder


async def train(plan: Plan, folder: RunFolder, console: Console) -> None:
    """Network up, passes, network down; InterruptedRun if a signal came."""
    task = asyncio.current_task()
    assert task is not None
    signals = cancel_on_signal(task)
    try:
        await _train(plan, folder, console)
    except asyncio.CancelledError:
        if not signals:
            raise
        raise stopped_by(signals[0]) from None


async def _train(plan: Plan, folder: RunFolder, console: Console) -> None:
    begin = time.monotonic()
    network = await Network.start(
        folder.topology,
        driver=plan.config.network.driver,
        management=plan.config.network.management,
        log=folder.path / "boot.log",
    )
    try:
        folder.write_record(plan.config, driver=network.ready.driver)
        hosts = ", ".join(f"{name} {host.ip}" for name, host in network.ready.hosts.items())
        say(console, f"network up in {time.monotonic() - begin:.1f} s ({network.ready.driver}): {hosts}")
        commands = Commands(config=plan.config, folder=folder, target=plan.config.network.target)
        for number, entry in enumerate(folder.passes):
            title = f"{entry.objective} ({number + 1} of {len(folder.passes)})"
            say(console, f"pass {title}: results in {entry.path}")
            await Pass(network, commands, entry, console, title).run(check=number == 0, quiet=plan.quiet)
    finally:
        await network.stop()


def conclude(plan: Plan, folder: RunFolder, console: Console) -> int:
    """Merge the metrics, compare the passes, write the report; the exit code."""
    from run.report import write_report  # noqa: PLC0415  # matplotlib: half a second, and a word about its folders

    merge(folder, plan.config.job.workers)
    summary = summarise(folder, plan.config)
    (folder.path / "summary.json").write_text(json.dumps(summary.to_dict(), indent=2) + "\n")
    report = write_report(folder, plan.config, summary)
    console.print(summary.table())
    say(console, f"report: {report}")
    for reason in summary.failures:
        say(Console(stderr=True), f"kofn run: {reason}", style="red")
    if plan.as_json:
        click.echo(json.dumps(summary.to_dict(), indent=2))
    return 1 if summary.failures else 0


def _kept(folder: RunFolder, workers: int) -> str:
    """One line about what an unfinished run leaves."""
    lines = sum(
        path.read_bytes().count(b"\n")
        for entry in folder.passes
        for rank in range(workers)
        if (path := entry.metrics(rank)).exists()
    )
    return f"kept in {folder.path}: logs and {lines} lines of worker metrics; everything else is removed"
