"""`kofn slots`: the workers that are missing from the slots of a running switch."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click
import finsy as fy
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kofn.cli import show
from kofn.report.table import make_console
from kofn.run.options import FiniteRange
from kofn_common.json_text import json_text
from kofn_common.results.ranks import ranges
from kofn_common.rpc.address import checked_address, unknown_host
from kofn_controller.errors import InspectionError
from kofn_controller.p4runtime.occupancy import JobSlots, Slot, read_slots

EXIT_REFUSED = 2
EXIT_NO_SWITCH = 3
SHOWN = 40  # the most slots of a job that are shown without --all
MISSING_SHOWN = 8  # the most workers in the line about missing workers

EXAMPLES = """
\b
Examples:
  kofn slots                                  open slots, oldest first, and their missing workers
  kofn slots --all                            every slot that holds a block
  kofn slots --watch                          open slots, live, until Ctrl-C
  kofn slots --json | jq '.[0].slots[] | select(.state == "open") | .missing'

\b
Exit codes: 0 shown, 2 the switch cannot show its slots (as BMv2), 3 no switch answers.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--switch",
    "address",
    type=checked_address,
    default="127.0.0.1:50051",
    envvar="KOFN_SWITCH",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="The switch's P4Runtime address.",
)
@click.option(
    "--device-id", type=click.IntRange(min=0), default=0, show_default=True, help="The switch's P4Runtime device id."
)
@click.option("--job", type=click.IntRange(1, 255), metavar="N", help="The job's id.  [default: all jobs]")
@click.option("--all", "everything", is_flag=True, help="Show closed slots as well.")
@click.option("--watch", is_flag=True, help="Read repeatedly until Ctrl-C. --json: a line for each reading.")
@click.option(
    "--interval", type=FiniteRange(0.05, 3600), default=0.5, show_default=True, help="Seconds between readings."
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout, every slot.")
def command(
    *, address: str, device_id: int, job: int | None, everything: bool, watch: bool, interval: float, as_json: bool
) -> None:
    """Show which workers are missing from the slots of a running switch.

    A slot is open until k workers are in its sum, then closed until another block takes it. Workers that are missing
    from a closed slot came, or will come, too late. Slots are read one after another, 1,024 slots in about a second, so
    rows show different moments. The switch is only read; it must be the embedded switch, whose registers P4Runtime can
    read.
    """

    def look() -> list[JobSlots]:
        return _asked(address, device_id, job)

    if not watch:
        _print(look(), everything, as_json)
        return
    try:
        _follow(look, everything, as_json, interval)
    except KeyboardInterrupt:
        sys.exit(0)


def _asked(address: str, device_id: int, job: int | None) -> list[JobSlots]:
    try:
        return asyncio.run(read_slots(address, device_id, job))
    except InspectionError as error:
        _end(str(error), EXIT_REFUSED)
    except fy.P4ClientError as error:
        if error.code not in (fy.GRPCStatusCode.UNAVAILABLE, fy.GRPCStatusCode.DEADLINE_EXCEEDED):
            _end(f"the switch at {address} refuses: {error.message}", EXIT_REFUSED)
        advice = unknown_host(address) or "`make run` or `kofn run` starts a switch"
        _end(f"no switch answers at {address}: {advice}", EXIT_NO_SWITCH)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"kofn: {message}", err=True)
    sys.exit(code)


def _print(jobs: Sequence[JobSlots], everything: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json_text([document(job) for job in jobs], indent=2))
    else:
        show.output(sys.stdout, rendered(jobs, everything=everything))


def _follow(look: Callable[[], list[JobSlots]], everything: bool, as_json: bool, interval_s: float) -> None:
    if as_json or not sys.stdout.isatty():
        while True:
            jobs = look()
            if as_json:
                click.echo(json_text([document(job) for job in jobs]))
            else:
                _print(jobs, everything, as_json)
            time.sleep(interval_s)
    with Live(console=make_console(), auto_refresh=False) as live:
        while True:
            live.update(rendered(look(), everything=everything), refresh=True)
            time.sleep(interval_s)


def document(job: JobSlots) -> dict[str, Any]:
    """Return a job as JSON, with every slot that holds a block."""
    return {
        "job": job.job,
        "k": job.k,
        "workers": list(job.workers),
        "empty": sum(slot.state == "empty" for slot in job.slots),
        "slots": [
            {
                "slot": slot.slot,
                "iteration": slot.iteration,
                "block": slot.block,
                "state": slot.state,
                "present": list(slot.present),
                "missing": list(slot.missing),
            }
            for slot in job.slots
            if slot.state != "empty"
        ],
    }


def rendered(jobs: Sequence[JobSlots], *, everything: bool) -> RenderableType:
    """Return a headline and a table for each job."""
    if not jobs:
        return Text("no job: a controller has to admit one")
    return Group(*(part for job in jobs for part in _job(job, everything)))


def _job(job: JobSlots, everything: bool) -> list[RenderableType]:
    counts = {state: sum(slot.state == state for slot in job.slots) for state in ("open", "closed", "empty")}
    slots = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    parts: list[RenderableType] = [Text(f"job {job.job}: k = {job.k} of {len(job.workers)} workers; slots: {slots}")]
    wanted = [slot for slot in job.slots if slot.state == "open" or (everything and slot.state == "closed")]
    wanted.sort(key=lambda slot: (slot.iteration, slot.block))
    shown = wanted if everything else wanted[:SHOWN]
    if shown:
        parts.append(_table(shown))
    if len(wanted) > len(shown):
        parts.append(Text(f"... and {len(wanted) - len(shown):,} more: --all shows them"))
    missing = Counter(rank for slot in job.slots if slot.state == "open" for rank in slot.missing)
    if missing:
        most = sorted(missing, key=lambda rank: (-missing[rank], rank))[:MISSING_SHOWN]
        workers = ", ".join(f"worker {rank} in {missing[rank]:,}" for rank in most)
        parts.append(Text(f"missing from open slots: {workers}{', ...' if len(missing) > len(most) else ''}"))
    return parts


def _table(slots: Sequence[Slot]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("slot", "iteration", "block"):
        table.add_column(name, justify="right")
    for name in ("state", "in the sum", "missing"):
        table.add_column(name)
    for slot in slots:
        numbers = (str(slot.slot), str(slot.iteration), str(slot.block))
        table.add_row(*numbers, slot.state, _ranks(slot.present), _ranks(slot.missing))
    return table


def _ranks(ranks: Sequence[int]) -> str:
    return ranges(ranks) or "none"
