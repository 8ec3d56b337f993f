"""`kofn certs`: a folder of certificates and tokens, for a control plane that is started by hand."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from kofn_common.json_text import json_text
from kofn_common.numerals import is_numeral
from kofn_common.rpc.errors import SecurityError
from kofn_common.rpc.names import CONTROLLER, OPERATOR, worker_name
from kofn_common.wire.sizes import JOB_MAX, WORKERS_MAX

EXIT_REFUSED = 2
P4RUNTIME = "p4runtime"
"""The folder with the files of a switch and its controller."""


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, int]:
    """Parse values of the form ID:WORKERS; return the number of workers by job. BadParameter names the wrong value."""
    sizes: dict[int, int] = {}
    for value in values:
        job, _, workers = value.partition(":")
        if not (is_numeral(job) and is_numeral(workers)):
            raise click.BadParameter(f"must be two numbers, 1:4 for the four workers of job 1, got {value!r}")
        if not (1 <= int(job) <= JOB_MAX and 1 <= int(workers) <= WORKERS_MAX):
            raise click.BadParameter(f"must be a job of 1 to {JOB_MAX} and 1 to {WORKERS_MAX} workers, got {value!r}")
        if int(job) in sizes:
            raise click.BadParameter(f"must name each job once, got {value!r} after another value for job {int(job)}")
        sizes[int(job)] = int(workers)
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """The certificates that one machine gets. `p4runtime` has "server" if the machine has a switch, and "client" if it
    has a controller."""

    name: str
    processes: tuple[str, ...]
    p4runtime: tuple[str, ...]
    jobs: tuple[int, ...]


_MACHINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*)=(\S+)")
_RANKS = re.compile(r"(?:(\d+):)?(\d+)(?:-(\d+))?")


def _machine(text: str, jobs: dict[int, int]) -> _Machine:
    """Parse NAME=WHAT,WHAT. Raise BadParameter if the text has another form."""
    if (found := _MACHINE.fullmatch(text)) is None:
        raise click.BadParameter(f"must be NAME=WHAT,WHAT, as in worker0=0,1, got {text!r}", param_hint="--machine")
    processes: list[str] = []
    p4runtime: list[str] = []
    served: set[int] = set()
    for what in found[2].split(","):
        if what in (CONTROLLER, OPERATOR):
            processes.append(what)
            served |= jobs.keys()
            p4runtime += ["client"] if what == CONTROLLER else []
        elif what == "switch":
            p4runtime.append("server")
        else:
            job, ranks = _ranks(what, jobs)
            processes += [worker_name(job, rank) for rank in ranks]
            served.add(job)
    return _Machine(name=found[1], processes=tuple(processes), p4runtime=tuple(p4runtime), jobs=tuple(sorted(served)))


def _ranks(what: str, jobs: dict[int, int]) -> tuple[int, range]:
    found = _RANKS.fullmatch(what)
    if found is None:
        allowed = "controller, operator, switch, or workers: 3 or 0-3 of the first job, 2:0-3 of job 2"
        raise click.BadParameter(f"WHAT must be {allowed}, got {what!r}", param_hint="--machine")
    job = int(found[1] or min(jobs))
    ranks = range(int(found[2]), int(found[3] or found[2]) + 1)
    if job not in jobs or not ranks or ranks[-1] >= jobs[job]:
        there = ", ".join(f"{number}:0-{workers - 1}" for number, workers in jobs.items())
        raise click.BadParameter(f"workers must be among {there}, got {what!r}", param_hint="--machine")
    return job, ranks


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    *("--job", "jobs"),
    metavar="ID:WORKERS",
    multiple=True,
    default=["1:4"],
    show_default=True,
    callback=_sizes,
    help="May be repeated.",
)
@click.option("--p4runtime", is_flag=True, help="Make DIR/p4runtime, too: for a switch and its controller.")
@click.option(
    *("--machine", "bundles"),
    metavar="NAME=WHAT,...",
    multiple=True,
    help="Make DIR/machines/NAME, too: the files of that machine. WHAT: controller, operator, switch, 0, 1-3, 2:0-3.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(folder: Path, jobs: dict[int, int], p4runtime: bool, bundles: tuple[str, ...], as_json: bool) -> None:
    """Make certificates for the controller, the commands and every worker, and a token for each job.

    `kofn run` makes them by itself; this command is for processes that are started by hand, or on several machines.
    With --machine a machine gets a separate folder: ca.pem, NAME.pem and NAME.key of its processes, the job's token,
    and with --p4runtime the files of the switch or of the switch's client. DIR must be empty or missing. The
    authority's key is not kept, so no file can be added later: make a new folder.

    \b
    Examples:
      kofn certs certs                          job 1 with four workers
      kofn certs certs --job 1:8 --job 2:4      two jobs
      kofn certs certs --machine s=controller --machine a=0,1 --machine b=2-3
      kofn certs certs --p4runtime              for a switch on another machine than its controller, too
      kofn status --certs certs                 ask a controller that has them

    \b
    Exit codes: 0 done, 2 DIR is not empty or cannot be written.
    """
    from kofn_common.rpc.certificates import (  # noqa: PLC0415  # needs kofn[certs]
        VALID,
        make_bundle,
        make_certificates,
        make_p4runtime_bundle,
        make_p4runtime_certificates,
    )

    machines = [_machine(text, jobs) for text in bundles]
    if not p4runtime and any("server" in machine.p4runtime for machine in machines):
        raise click.BadParameter("a switch has certificates with --p4runtime only", param_hint="--machine")
    try:
        files = make_certificates(folder, jobs)
        if p4runtime:
            make_p4runtime_certificates(folder / P4RUNTIME)
        for machine in machines:
            bundle = make_bundle(folder, machine.name, machine.processes, machine.jobs)
            if p4runtime and machine.p4runtime:
                make_p4runtime_bundle(folder / P4RUNTIME, bundle / P4RUNTIME, machine.p4runtime)
    except SecurityError as error:
        click.echo(f"kofn certs: {error}", err=True)
        sys.exit(EXIT_REFUSED)
    if as_json:
        named = {str(job): workers for job, workers in jobs.items()}
        document = {"folder": str(folder.resolve()), "jobs": named, "valid_days": VALID.days, "files": files}
        click.echo(json_text(document, indent=2))
        return
    for machine in machines:
        click.echo(f"{folder / 'machines' / machine.name}: all that {machine.name} needs")
    click.echo(f"{folder}: {len(files)} files, valid for {VALID.days} days, for the controller, the operator, and:")
    for job, workers in jobs.items():
        click.echo(f"  job {job}: a token and {workers} worker{'s' if workers > 1 else ''}")
