"""`kofn certs`: a folder of certificates and tokens, for a control plane that is started by hand."""

import json
import sys
from pathlib import Path

import click

from kofn.config.schema import JOB_MOST, WORKERS_MAX
from kofn.rpc.errors import SecurityError

EXIT_REFUSED = 2
P4RUNTIME = "p4runtime"
"""The folder in which a switch and its controller find theirs."""


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, int]:
    """ID:WORKERS, several times, as numbers by job; BadParameter says which is wrong."""
    sizes: dict[int, int] = {}
    for value in values:
        job, _, workers = value.partition(":")
        if not (job.isdecimal() and workers.isdecimal()):
            raise click.BadParameter(f"{value!r}: two numbers are expected, 1:4 for the four workers of job 1")
        if not (1 <= int(job) <= JOB_MOST and 1 <= int(workers) <= WORKERS_MAX):
            raise click.BadParameter(f"{value!r}: jobs 1 to {JOB_MOST} with 1 to {WORKERS_MAX} workers are allowed")
        if int(job) in sizes:
            raise click.BadParameter(f"{value!r}: job {int(job)} is there already, each job is given once")
        sizes[int(job)] = int(workers)
    return sizes


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
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(folder: Path, jobs: dict[int, int], p4runtime: bool, as_json: bool) -> None:
    """Make certificates for the controller, the commands and every worker, and a token for each job.

    `kofn run` does this by itself; this is for processes that are started by hand, or on several machines: a machine
    gets ca.pem, its own NAME.pem and NAME.key, and its job's token. DIR must be empty or not be there. No key of the
    authority is kept, so nothing can be added later: make a new folder.

    \b
    Examples:
      kofn certs certs                          job 1 with four workers
      kofn certs certs --job 1:8 --job 2:4      two jobs
      kofn certs certs --p4runtime              for a switch on another machine than its controller, too
      kofn status --certs certs                 ask a controller that has them

    \b
    Exit codes: 0 done, 2 DIR is not empty or cannot be written.
    """
    from kofn.rpc.certificates import VALID, make_certificates, make_p4runtime_certificates  # noqa: PLC0415  # needs kofn[certs]

    try:
        files = make_certificates(folder, jobs)
        if p4runtime:
            make_p4runtime_certificates(folder / P4RUNTIME)
    except SecurityError as error:
        click.echo(f"kofn certs: {error}", err=True)
        sys.exit(EXIT_REFUSED)
    if as_json:
        named = {str(job): workers for job, workers in jobs.items()}
        document = {"folder": str(folder.resolve()), "jobs": named, "valid_days": VALID.days, "files": files}
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{folder}: {len(files)} files, valid for {VALID.days} days: the controller's, the operator's, and of")
    for job, workers in jobs.items():
        click.echo(f"  job {job}: a token and {workers} worker{'s' if workers > 1 else ''}")
