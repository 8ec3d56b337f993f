"""`kofn doctor`: checks from the machine to the sums that workers get, and the name of the first check that fails."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import click
from msgspec.structs import replace
from rich.console import Console

from kofn.doctor.checks import Check, CheckError, Finding, first_failure, walk
from kofn.doctor.hosts import Hosts
from kofn.doctor.machine import machine_checks
from kofn.doctor.machines import LAB_CHECKS, examine_lab, named, rows
from kofn.doctor.network import ControlPlane
from kofn.doctor.remote import RemoteChecks, RemoteJob
from kofn.doctor.running import RunningChecks
from kofn.doctor.small_network import SmallNetwork
from kofn.report.table import PlainTable, make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.lab.lab_file import Lab
from kofn.run.plan import DEFAULT_CONFIG
from kofn.run.signals import cancel_on_signal, stopped_by
from kofn.run.state import another_run, hold, running
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_common.json_text import json_text
from kofn_common.rpc.address import checked_address
from kofn_common.wire.sizes import WORKERS_MAX

Found = TypeVar("Found")
Show: TypeAlias = Callable[[Finding], None]

EXAMPLES = """
\b
Examples:
  kofn doctor                        this machine, with the default experiment's settings
  kofn doctor mine.toml              with the settings and the topology of mine.toml
  kofn doctor --target bmv2          with simple_switch_grpc
  kofn doctor job.toml --remote --rank 0 --switch 192.0.2.1 --controller 192.0.2.1:50052 --certs certs
  kofn doctor --lab lab.toml         the machines of a laboratory
  kofn doctor --json | jq .failed    the name of the first check that fails, or null

\b
Exit codes: 0 every check holds, 1 a check fails, 2 the configuration is wrong, 130 stopped by a signal.
"""


@click.command(epilog=EXAMPLES)
@click.argument("config", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, required=False)
@click.option("--target", type=click.Choice(["embedded", "bmv2"]), help="The switch.  [default: network.target]")
@click.option(
    "--driver", type=click.Choice(["auto", "mininet", "netns"]), help="Makes the hosts.  [default: network.driver]"
)
@click.option("--remote", is_flag=True, help="Check the way from this worker's machine to the job's other machines.")
@click.option("--rank", type=click.IntRange(0, WORKERS_MAX - 1), default=0, help="With --remote: this worker's rank.")
@click.option("--switch", metavar="HOST", help="With --remote: the switch's machine, as for kofn worker.")
@click.option(
    "--controller", type=checked_address, metavar="HOST:PORT", help="With --remote: the controller, as for kofn worker."
)
@click.option("--certs", type=click.Path(path_type=Path), help="With --remote: the folder of this worker.")
@click.option(
    "--p4runtime",
    type=checked_address,
    metavar="HOST:PORT",
    help="With --remote, on the controller's machine: the address of the switch's P4Runtime server.",
)
@click.option("--p4runtime-certs", type=click.Path(path_type=Path), help="With --remote: as for kofn controller.")
@click.option(
    "--lab", type=click.Path(path_type=Path), metavar="FILE", help="Check the machines of the laboratory in FILE."
)
@click.option("--json", "as_json", is_flag=True, help="All findings as JSON on stdout, progress on stderr.")
def command(
    *,
    config: Path,
    target: str | None,
    driver: str | None,
    remote: bool,
    rank: int,
    switch: str | None,
    controller: str | None,
    certs: Path | None,
    p4runtime: str | None,
    p4runtime_certs: Path | None,
    lab: Path | None,
    as_json: bool,
) -> None:
    """Run every check, from root's rights to exact sums at every worker, and name the first check that fails.

    The command makes a small network and removes it again. During a run it makes no network, but checks the
    controller, the switch and the workers of the run.

    --lab checks all machines of a laboratory at the same time: ssh, this checkout, root, tools, other networks, clock,
    MTU.

    --remote checks each hop of a job on several machines, with the arguments of `kofn worker`: the worker's
    certificates, the way to the switch, the tunnel's UDP port, the MTU of the whole way, the clocks, the controller's
    TCP port, TLS and token, P4Runtime. The command makes a tunnel for the time of the checks, unless the worker has a
    tunnel; the job does not notice.
    """
    others = {
        "--rank": rank or None,
        "--switch": switch,
        "--controller": controller,
        "--certs": certs,
        "--p4runtime": p4runtime,
        "--p4runtime-certs": p4runtime_certs,
    }
    if not remote and (given := [option for option, value in others.items() if value is not None]):
        raise click.UsageError(f"{', '.join(given)} needs --remote")
    console = make_console(stderr=as_json)
    if lab is not None:
        if remote:
            raise click.UsageError("--lab and --remote must not both be given")
        with ending("doctor"):
            by_machine = asyncio.run(_until_signal(examine_lab(Lab.load(lab), _settings(config, target, driver))))
        console.print(PlainTable(["machine", *LAB_CHECKS], rows(by_machine), texts=LAB_CHECKS))
        _conclude(named(by_machine), console, as_json=as_json)
    if remote:
        if switch is None or controller is None:
            raise click.UsageError("--remote needs --switch HOST and --controller HOST:PORT")
        with ending("doctor"):
            job = RemoteJob(
                config=_settings(config, target, driver),
                source=config,
                rank=rank,
                switch=switch,
                controller=controller,
                certs=certs,
                p4runtime=p4runtime,
                p4runtime_certs=p4runtime_certs,
            )
            findings = examine_remote(job, console)
        _conclude(findings, console, as_json=as_json)
    with ending("doctor"):
        findings = examine(_settings(config, target, driver), config, console)
    _conclude(findings, console, as_json=as_json)


def _settings(source: Path, target: str | None, driver: str | None) -> Config:
    """Return the configuration with the command line's choices."""
    config = Config.load(source)
    network = replace(config.network, target=target or config.network.target, driver=driver or config.network.driver)
    return replace(config, network=network)


def _conclude(findings: list[Finding], console: Console, *, as_json: bool) -> NoReturn:
    failed = first_failure(findings)
    if failed is None:
        say(console, f"kofn doctor: all is well ({len(findings)} checks)")
    else:
        say(console, f"kofn doctor: {failed.name} fails: {failed.detail}")
        say(console, f"what to do: {failed.advice}")
    if as_json:
        name = failed.name if failed else None
        checks = [finding.document() for finding in findings]
        click.echo(json_text({"ok": failed is None, "failed": name, "checks": checks}, indent=2))
    sys.exit(0 if failed is None else 1)


def examine(config: Config, source: Path, console: Console) -> list[Finding]:
    """Run every check, and show its finding."""

    def show(finding: Finding) -> None:
        say(console, finding.text())

    if (run := running()) is not None and run.command == "doctor":
        raise another_run()
    if run is not None:
        return asyncio.run(_until_signal(walk(RunningChecks(run).checks(), show)))
    with tempfile.TemporaryDirectory(prefix="kofn-doctor-") as folder, contextlib.ExitStack() as stack:
        return asyncio.run(_until_signal(_everything(config, source, Path(folder), stack, show)))


def examine_remote(job: RemoteJob, console: Console) -> list[Finding]:
    """Check each hop, and show its finding."""
    remote = RemoteChecks(job)
    try:
        return asyncio.run(_until_signal(walk(remote.checks(), lambda finding: say(console, finding.text()))))
    finally:
        remote.close()


async def _everything(
    config: Config, source: Path, folder: Path, stack: contextlib.ExitStack, show: Show
) -> list[Finding]:
    """Check the machine, the network and the hosts, and remove the network at the end."""
    small = SmallNetwork(config, source, folder)

    async def alone() -> str:
        try:
            stack.enter_context(hold(folder, "doctor"))
        except KofnError as error:
            raise CheckError(str(error), "kofn stop ends it") from None
        return "no run is going on, and no run can start until kofn doctor ends"

    checks = [*machine_checks(config), Check(name="alone", check=alone)]
    try:
        return await walk([*checks, *ControlPlane(small).checks(), *Hosts(small).checks()], show)
    finally:
        await small.close()


async def _until_signal(walking: Coroutine[Any, Any, Found]) -> Found:
    """Return the findings of a walk. Raise InterruptedRun if a signal came."""
    task = asyncio.current_task()
    assert task is not None
    signals = cancel_on_signal(task)
    try:
        return await walking
    except asyncio.CancelledError:
        if not signals:
            raise
        raise stopped_by(signals[0]) from None
