"""`python -m kofn_controller`: the controller of one or several jobs on one switch, or on a tree of switches."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import finsy as fy
import msgspec

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import AUTHORITY, SWITCH_HOST
from kofn_common.rpc.security import CONTROLLER, Credentials
from kofn_controller.errors import ControllerError, StartError
from kofn_controller.job.jobs import Jobs
from kofn_controller.job.journal import Journal
from kofn_controller.job.service import serve
from kofn_controller.job.session import JobSession
from kofn_controller.p4runtime.data_plane import data_plane_of
from kofn_controller.p4runtime.layout import SlotLayout, lay_out
from kofn_controller.p4runtime.links import make_links
from kofn_controller.p4runtime.program import SwitchCredentials
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.topology import read_topology
from kofn_controller.policy.control_loop import ControlLoop

_LOG = logging.getLogger(__name__)

EXIT_CANNOT_START = 2
STOP_GRACE_S = 0.5


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "configs",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="A run's TOML file; repeated: one for each job.",
)
@click.option("--topology", required=True, type=click.Path(path_type=Path), help="The network's topology.json.")
@click.option(
    "--objective",
    help="progress, throughput, all, fixed:K, RULE:K or a plug-in, for every job; else policy.objective.",
)
@click.option(
    "--p4runtime",
    multiple=True,
    default=["127.0.0.1:50051"],
    show_default=True,
    help="The switch's P4Runtime server; repeated: of a tree, the root's and then each leaf's.",
)
@click.option("--listen", multiple=True, default=["127.0.0.1:50052"], show_default=True, help="May be repeated.")
@click.option("--wait", default=20.0, show_default=True, help="Seconds to wait for the switch.")
@click.option("--decisions", type=click.Path(path_type=Path), help="Append decisions and samples, as JSON lines.")
@click.option("--certs", type=click.Path(path_type=Path), help="The folder of `kofn certs`; without it: plaintext.")
@click.option(
    "--p4runtime-certs", type=click.Path(path_type=Path), help="The folder of `kofn certs --p4runtime`; else plaintext."
)
@click.option("--log", type=click.Path(path_type=Path), help="Append the log here instead of writing it to stderr.")
def main(
    configs: tuple[Path, ...],
    topology: Path,
    objective: str | None,
    p4runtime: tuple[str, ...],
    listen: tuple[str, ...],
    wait: float,
    decisions: Path | None,
    certs: Path | None,
    p4runtime_certs: Path | None,
    log: Path | None,
) -> None:
    """Measure the workers, choose k, push it, until SIGTERM or SIGINT. Exit code 2 if the controller cannot start."""
    try:
        _log_to(log)
        settings = [_settings(path, objective) for path in configs]
        network = read_topology(topology)
        layouts = lay_out([config.job for config in settings], network.hosts)
        credentials = Credentials.load(certs, CONTROLLER, [config.job.id for config in settings])
        with Journal(decisions) as journal:
            jobs = Jobs(all=[_session(*pair, journal) for pair in zip(settings, layouts, strict=True)])
            links = make_links(
                network,
                [session.slots for session in jobs.all],
                addresses=p4runtime,
                device_id=settings[0].network.device_id,
                plane=data_plane_of(config.job.collective for config in settings),
                credentials=_switch_credentials(p4runtime_certs),
            )
            asyncio.run(_run(jobs, links, listen, wait, credentials))
    except (ControllerError, ConfigError, SecurityError) as error:
        print(f"controller: {error}", file=sys.stderr)
        sys.exit(EXIT_CANNOT_START)


def _switch_credentials(folder: Path | None) -> SwitchCredentials:
    """Return the credentials of a client that may program the switch; SecurityError names a missing file."""
    if folder is None:
        return None
    files = {name: folder / name for name in (AUTHORITY, "client.pem", "client.key")}
    for path in files.values():
        if not path.is_file():
            raise SecurityError(f"{path}: no such file: `kofn certs DIR --p4runtime` makes it")
    return fy.GRPCCredentialsTLS(
        cacert=files[AUTHORITY],
        cert=files["client.pem"],
        private_key=files["client.key"],
        target_name_override=SWITCH_HOST,
    )


def _session(config: Config, layout: SlotLayout, journal: Journal) -> JobSession:
    control_loop = ControlLoop(
        workers=config.job.workers,
        policy=config.policy,
        average=config.model.average,
        racks=config.job.racks,
    )
    slots = Slots(layout=layout, k=control_loop.k)
    return JobSession(
        job=config.job, control_loop=control_loop, journal=journal, slots=slots, objectives=config.objectives
    )


def _log_to(path: Path | None) -> None:
    """Log one line for each event, with milliseconds, to a file or to stderr."""
    try:
        handler = logging.FileHandler(path) if path else logging.StreamHandler()
    except OSError as error:
        raise StartError(f"--log {path}: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _settings(path: Path, objective: str | None) -> Config:
    """Return the configuration with the command line's objective."""
    config = Config.load(path)
    if objective is None:
        return config
    settings = msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, objective=objective))
    settings.check()
    return settings


async def _run(
    jobs: Jobs, links: Sequence[SwitchLink], listen: tuple[str, ...], wait_s: float, credentials: Credentials | None
) -> None:
    """Run the links, the jobs and the server until a signal. Raise StartError if a switch does not answer within
    `wait_s` seconds, EntryError if an entry does not fit the P4 program."""
    server, _ = serve(jobs, links, listen, credentials)
    ended = _signals()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in (*(link.run() for link in links), jobs.run())]
            if await _ready(links, wait_s, ended):
                await server.start()
                _log_start(jobs, listen, credentials)
                await ended.wait()
            for task in tasks:
                task.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await server.stop(STOP_GRACE_S)
    if not ended.is_set():
        link = next(link for link in links if not link.ready.is_set())
        raise StartError(
            f"no switch at {link.address} after {wait_s:g} s ({link.fault or 'no answer'}): "
            "`make run` starts everything, `python -m kofn_switch` a switch; --p4runtime gives another address"
        )


def _log_start(jobs: Jobs, listen: tuple[str, ...], credentials: Credentials | None) -> None:
    """Log the jobs, the addresses and the encryption."""
    protection = "plaintext" if credentials is None else "mutual TLS"
    for session in jobs.all:
        addresses = ", ".join(listen)
        goal = session.control_loop.goal.name
        _LOG.info("job %d, objective %s, listening at %s (%s)", session.job.id, goal, addresses, protection)


def _signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def _ready(links: Sequence[SwitchLink], wait_s: float, ended: asyncio.Event) -> bool:
    """Return True once all switches are installed; False if that takes longer than `wait_s`, or a signal comes
    first."""
    waits = [asyncio.create_task(_installed(links)), asyncio.create_task(ended.wait())]
    try:
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return all(link.ready.is_set() for link in links) and not ended.is_set()


async def _installed(links: Sequence[SwitchLink]) -> None:
    for link in links:
        await link.ready.wait()


if __name__ == "__main__":
    for variable in ("grpc_proxy", "http_proxy", "https_proxy"):
        os.environ.pop(variable, None)  # a proxy cannot reach local addresses
    main()
