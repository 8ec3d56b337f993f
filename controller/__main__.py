"""`python -m controller`: one job's controller, beside its switch."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import click
import msgspec

from controller.decide import Decider
from controller.entries import Layout
from controller.errors import ControllerError, StartError
from controller.journal import Journal
from controller.push import Program, SwitchLink
from controller.service import serve
from controller.session import Session
from controller.topology import read_hosts
from run.config import Config
from run.errors import ConfigError

_LOG = logging.getLogger(__name__)

EXIT_CANNOT_START = 2
STOP_GRACE_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The run's TOML file.")
@click.option("--topology", required=True, type=click.Path(path_type=Path), help="The network's topology.json.")
@click.option("--objective", help="round, all or fixed:K; the configuration's policy.objective if not given.")
@click.option("--p4runtime", default="127.0.0.1:50051", show_default=True, help="The switch's P4Runtime server.")
@click.option("--listen", multiple=True, default=["127.0.0.1:50052"], show_default=True, help="May be repeated.")
@click.option("--wait", default=20.0, show_default=True, help="Seconds to wait for the switch.")
@click.option("--decisions", type=click.Path(path_type=Path), help="Append decisions and samples, as JSON lines.")
@click.option("--log", type=click.Path(path_type=Path), help="Append the log here instead of writing it to stderr.")
def main(
    config: Path,
    topology: Path,
    objective: str | None,
    p4runtime: str,
    listen: tuple[str, ...],
    wait: float,
    decisions: Path | None,
    log: Path | None,
) -> None:
    """Measure the workers, choose k, push it. Ends at SIGTERM or SIGINT; exit code 2: it could not start."""
    try:
        _log_to(log)
        settings = _settings(config, objective)
        layout = Layout(job=settings.job, hosts=read_hosts(topology))
        with Journal(decisions) as journal:
            asyncio.run(_run(settings, layout, journal, p4runtime, listen, wait))
    except (ControllerError, ConfigError) as error:
        print(f"controller: {error}", file=sys.stderr)
        sys.exit(EXIT_CANNOT_START)


def _log_to(path: Path | None) -> None:
    """One line an event, with milliseconds."""
    try:
        handler = logging.FileHandler(path) if path else logging.StreamHandler()
    except OSError as error:
        raise StartError(f"--log {path}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _settings(path: Path, objective: str | None) -> Config:
    """The configuration, with the command line's objective."""
    config = Config.load(path)
    if objective is None:
        return config
    settings = msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, objective=objective))
    settings.check()
    return settings


async def _run(
    config: Config, layout: Layout, journal: Journal, p4runtime: str, listen: tuple[str, ...], wait_s: float
) -> None:
    """Everything, until a signal ends it."""
    decider = Decider(workers=config.job.workers, policy=config.policy)
    link = SwitchLink(
        address=p4runtime, device_id=config.network.device_id, program=Program(), layout=layout, k=decider.k
    )
    session = Session(job=config.job.id, decider=decider, journal=journal, put=link.set_k)
    link.on_arrival = session.arrival
    server, _ = serve(session, link, listen)
    ended = _signals()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (link.run(), session.watch(), session.carry())]
            if await _ready(link, wait_s, ended):
                await server.start()
                _LOG.info("job %d, objective %s, listening at %s", session.job, decider.goal.name, ", ".join(listen))
                await ended.wait()
            for task in tasks:
                task.cancel()
    finally:
        await server.stop(STOP_GRACE_S)
    if not ended.is_set():
        raise StartError(
            f"no switch at {p4runtime} after {wait_s:g} s ({link.fault or 'no answer'}): "
            "`make run` starts everything, `python -m switch` a switch; --p4runtime gives another address"
        )


def _signals() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _ready(link: SwitchLink, wait_s: float, ended: asyncio.Event) -> bool:
    """True once the switch is installed; False when that takes too long, or the end comes first."""
    waits = [asyncio.create_task(event.wait()) for event in (link.ready, ended)]
    await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return link.ready.is_set() and not ended.is_set()


if __name__ == "__main__":
    for variable in ("grpc_proxy", "http_proxy", "https_proxy"):
        os.environ.pop(variable, None)  # no proxy knows our addresses
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what fails is said once, by us
    main()
