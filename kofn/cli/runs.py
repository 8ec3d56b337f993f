"""`kofn runs`: list runs, remove old runs, and show two runs side by side."""

from pathlib import Path

import click

from kofn.report.run_list import HEADINGS, TEXTS, ListedRun, find_run, list_runs, prunable, remove
from kofn.report.side_by_side import RunSide, SideBySide
from kofn.report.table import PlainTable, make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn.run.state import running
from kofn_common.json_text import json_text

KEEP = 20

folder_option = click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="The folder of the runs."
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")


@click.group(invoke_without_command=True)
@folder_option
@click.option("--prune", is_flag=True, help="Remove all but the newest runs; never runs/latest or a current run.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=KEEP,
    show_default=True,
    metavar="N",
    help="With --prune: the number of runs to keep.",
)
@click.option("--dry-run", is_flag=True, help="With --prune: print the runs that would be removed; remove nothing.")
@json_option
@click.pass_context
def command(context: click.Context, *, folder: Path, prune: bool, keep: int, dry_run: bool, as_json: bool) -> None:
    """List the runs and experiments in runs/: date, command, trials, result and size.

    \b
    Examples:
      kofn runs
      kofn runs --json | jq '.[] | select(.result != "ok")'
      kofn runs --prune --keep 5 --dry-run
      kofn runs compare mine-20261123-035240 latest

    \b
    Exit codes: 0 done, 2 the command line is wrong, or there is no such folder.
    """
    if context.invoked_subcommand is not None:
        return
    with ending("runs"):
        active = running()
        runs = list_runs(folder, Path(active.folder) if active else None)
        shown = prunable(runs, keep) if prune else runs
        for run in shown if prune and not dry_run else ():
            remove(run)
        if as_json:
            click.echo(json_text([run.to_dict() for run in shown], indent=2))
        elif prune:
            _say_pruned(shown, len(runs), dry_run=dry_run)
        else:
            make_console().print(PlainTable(HEADINGS, [run.cells for run in runs], texts=TEXTS, cut=True))


def _say_pruned(gone: list[ListedRun], before: int, *, dry_run: bool) -> None:
    done = "would be removed" if dry_run else "removed"
    for run in gone:
        say(make_console(), f"{done}: {run.path} ({run.when}, {run.size_bytes / 1e6:,.1f} MB)")
    size = sum(run.size_bytes for run in gone)
    say(make_console(), f"{len(gone)} of {before} {done}, {size / 1e6:,.1f} MB; {before - len(gone)} kept")


@command.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@folder_option
@json_option
def compare(*, first: str, second: str, folder: Path, as_json: bool) -> None:
    """Show two runs side by side: times to the target, k, bytes, and the differences of their configurations.

    A and B are folders of runs, or their names in runs.  Trials that were changed by hand have no ratio.

    \b
    Exit codes: 0 done, 2 A or B is not a run, or has no summary.
    """
    with ending("runs compare"):
        left, right = (RunSide.read(find_run(name, folder)) for name in (first, second))
        found = SideBySide(sides=(left, right))
        if as_json:
            click.echo(json_text(found.to_dict(), indent=2))
            return
        make_console().print(found.table())
        for line in found.words():
            say(make_console(), line)
