"""`kofn schedule`: the schedules that a run has tried, their iteration times, and the schedule in force."""

from dataclasses import asdict
from pathlib import Path

import click

from kofn.report.reader import Run
from kofn.report.schedules import ScheduleInForce
from kofn.report.table import PlainTable, make_console
from kofn.run.ending import ending
from kofn_common.config.errors import ConfigError
from kofn_common.json_text import json_text

HEADINGS = ("trial", "job", "family", "threshold", "front", "from", "iterations", "iteration", "")
TEXTS = ("trial", "family", "")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs/latest"))
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(folder: Path, as_json: bool) -> None:
    """Show the schedules of the run in FOLDER, finished or current.  [default: runs/latest]

    A row is a schedule that was in force, with the median time of its iterations at the slowest worker, without
    blocking. The threshold is in KiB of float32.

    \b
    Examples:
      kofn schedule
      kofn schedule runs/mine --json | jq '.[] | select(.last)'
      kofn export runs/mine --to trace        timelines for ui.perfetto.dev

    \b
    Exit codes: 0 done, 2 FOLDER is not a run's folder, or the run has no [schedule].
    """
    with ending("schedule"):
        found = ScheduleInForce.of(Run(folder).metrics)
        if not found:
            raise ConfigError(f"{folder} has no schedule: the configuration must have [schedule]")
        if as_json:
            click.echo(json_text([asdict(schedule) for schedule in found], indent=2))
        else:
            make_console().print(PlainTable(HEADINGS, [_cells(schedule) for schedule in found], texts=TEXTS))


def _cells(entry: ScheduleInForce) -> list[str]:
    threshold = f"{entry.schedule.threshold * 4 / 1024:,.4g} KiB"
    took = f"{1000 * entry.iteration_s:.1f} ms"
    front = str(entry.schedule.front) if entry.schedule.family.has_front else "-"
    which = (entry.trial, str(entry.job), entry.schedule.name, threshold, front)
    return [*which, str(entry.first), str(entry.iterations), took, "in force" if entry.last else ""]
