"""`kofn schedule`: which schedules a run has tried, what each cost, and which is in force."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from kofn.report.reader import read
from kofn.report.schedules import ScheduleInForce
from kofn.report.table import PlainTable, make_console
from kofn.run.ending import ending
from kofn_common.config.errors import ConfigError

HEADINGS = ("trial", "job", "family", "threshold", "front", "from", "iterations", "iteration", "")
TEXTS = ("trial", "family", "")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs/latest"))
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(folder: Path, as_json: bool) -> None:
    """Show the schedules of the run in FOLDER, finished or current.  [default: runs/latest]

    A row for each that was in force, with the median time of its iterations at the slowest worker, without blocking.
    The threshold is in KiB of float32.

    \b
    Examples:
      kofn schedule
      kofn schedule runs/mine --json | jq '.[] | select(.last)'
      kofn export runs/mine --to trace        timelines for ui.perfetto.dev

    \b
    Exit codes: 0 done, 2 FOLDER is no run's, or the run has no [schedule].
    """
    with ending("schedule"):
        found = ScheduleInForce.of(read(folder).metrics)
        if not found:
            raise ConfigError(f"{folder} has no schedule: [schedule] in its configuration is needed")
        if as_json:
            click.echo(json.dumps([asdict(one) for one in found], indent=2))
        else:
            make_console().print(PlainTable(HEADINGS, [_cells(one) for one in found], texts=TEXTS))


def _cells(one: ScheduleInForce) -> list[str]:
    threshold = f"{one.schedule.threshold * 4 / 1024:,.4g} KiB"
    took = f"{1000 * one.iteration_s:.1f} ms"
    front = str(one.schedule.front) if one.schedule.family.has_front else "-"
    which = (one.trial, str(one.job), one.schedule.name, threshold, front)
    return [*which, str(one.first), str(one.iterations), took, "in force" if one.last else ""]
