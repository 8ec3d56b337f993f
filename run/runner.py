"""`kofn run`: one configuration from the first check to the report.

The order: check the machine, write the run folder, make the network, run the passes one after another, remove the
network, compare the passes.  Whatever happens in between, the network and every process in it are gone afterwards.
"""

import asyncio
import contextlib
import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from run import terminal
from run.config import Config, check_objective
from run.errors import ConfigError, InterruptedRun, LeftoversError, RunError
from run.folder import RunFolder, default_path, point_latest
from run.live import say
from run.metrics import merge
from run.network import BOOT, SYSTEM_PYTHON, Network
from run.passes import Commands, Pass
from run.preconditions import check_machine
from run.report import write_report
from run.state import hold
from run.summary import summarise

DEFAULT_CONFIG = Path(__file__).with_name("default.toml")
SIGNALS = [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * (not terminal.hangups_ignored())
"""What ends a run; `nohup kofn run` outlives its terminal."""

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
    target: str
    driver: str
    objectives: tuple[str, ...]
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
    return Plan(
        source=source,
        config=config,
        target=target or config.network.target,
        driver=driver or config.network.driver,
        objectives=objectives or config.run.passes,
        folder=out or default_path(config.run.name),
        as_json=as_json,
        quiet=quiet,
    )


def carry_out(plan: Plan, console: Console) -> int:
    """The whole run; its exit code."""
    check_machine(plan.config, plan.target)
    with hold(plan.folder):
        folder = prepare(plan)
        try:
            asyncio.run(train(plan, folder, console))
        except LeftoversError:
            raise
        except RunError as error:
            raise type(error)(f"{error}\n{_kept(folder, plan.config.job.workers)}") from None
    with interruptible():  # the event loop took its signal handlers with it
        return conclude(plan, folder, console)


def prepare(plan: Plan) -> RunFolder:
    """Make the run folder with everything that says what is run; RunError if topology and job disagree."""
    topology = _topology(plan)
    _check_hosts(plan, topology)
    folder = RunFolder.create(plan.folder, plan.objectives)
    shutil.copyfile(plan.source, folder.config)
    folder.topology.write_text(topology)
    folder.write_record(target=plan.target, driver=plan.driver, workers=plan.config.job.workers)
    point_latest(plan.folder)
    return folder


async def train(plan: Plan, folder: RunFolder, console: Console) -> None:
    """Network up, passes, network down; InterruptedRun if a signal came."""
    signals: list[signal.Signals] = []
    task = asyncio.current_task()
    assert task is not None
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, _cancel_once, task, signals, number)
    try:
        await _train(plan, folder, console)
    except asyncio.CancelledError:
        if not signals:
            raise
        raise InterruptedRun(f"stopped by {signals[0].name}") from None


async def _train(plan: Plan, folder: RunFolder, console: Console) -> None:
    begin = time.monotonic()
    network = await Network.start(
        folder.topology,
        driver=plan.driver,
        management=plan.config.network.management,
        log=folder.path / "boot.log",
    )
    try:
        hosts = ", ".join(f"{name} {host.ip}" for name, host in network.ready.hosts.items())
        say(console, f"network up in {time.monotonic() - begin:.1f} s ({network.ready.driver}): {hosts}")
        commands = Commands(config=plan.config, folder=folder, target=plan.target)
        for number, entry in enumerate(folder.passes):
            title = f"{entry.objective} ({number + 1} of {len(folder.passes)})"
            say(console, f"pass {title}: results in {entry.path}")
            await Pass(network, commands, entry, console, title).run(check=number == 0, quiet=plan.quiet)
    finally:
        await network.stop()


def conclude(plan: Plan, folder: RunFolder, console: Console) -> int:
    """Merge the metrics, compare the passes, write the report; the exit code."""
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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Outside of the event loop: a signal raises InterruptedRun wherever the program is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _leave_terminal(signal.Signals(number))
        raise InterruptedRun(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel_once(task: asyncio.Task[None], received: list[signal.Signals], number: signal.Signals) -> None:
    """The first signal begins the orderly stop, later ones must not disturb it."""
    _leave_terminal(number)
    received.append(number)
    if len(received) == 1:
        task.cancel()


def _leave_terminal(number: signal.Signals) -> None:
    """After a hang-up the terminal is gone, and writing to it would fail."""
    if number == signal.SIGHUP:
        terminal.leave()


def _topology(plan: Plan) -> str:
    """The configured topology's text, or a star's."""
    network = plan.config.network
    if network.topology is not None:
        path = plan.source.parent / network.topology
        try:
            return path.read_text()
        except OSError as error:
            raise ConfigError(f"network.topology is {str(path)!r}: {error.strerror}") from error
    rate = [] if network.link_mbps is None else ["--mbps", str(network.link_mbps)]
    argv = [str(SYSTEM_PYTHON), str(BOOT), "--hosts", str(plan.config.job.workers), *rate, "--write-topology"]
    try:
        result = subprocess.run([*argv, "/dev/stdout"], check=True, capture_output=True, text=True, timeout=30)
    except subprocess.SubprocessError as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise RunError(f"mininet/boot.py could not write the topology: {detail.strip()}") from error
    return result.stdout


def _check_hosts(plan: Plan, topology: str) -> None:
    try:
        hosts = len(json.loads(topology)["hosts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"network.topology {plan.config.network.topology}: no JSON object with 'hosts'") from error
    if hosts != plan.config.job.workers:
        raise ConfigError(
            f"network.topology {plan.config.network.topology} has {hosts} hosts, job.workers is "
            f"{plan.config.job.workers}: they must be equal, every host is one worker"
        )


def _kept(folder: RunFolder, workers: int) -> str:
    """One line about what an unfinished run leaves."""
    lines = sum(
        path.read_bytes().count(b"\n")
        for entry in folder.passes
        for rank in range(workers)
        if (path := entry.metrics(rank)).exists()
    )
    return f"kept in {folder.path}: logs and {lines} lines of worker metrics; everything else is removed"
