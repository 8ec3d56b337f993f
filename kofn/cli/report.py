"""`kofn report`: write the summary and the report of a run or an experiment again, from the files in its folder."""

import sys
from pathlib import Path

import click

from kofn.experiments.outcome import conclude as conclude_experiment
from kofn.experiments.reader import EXPERIMENT, check_results
from kofn.report.table import make_console
from kofn.run.conclusion import conclude
from kofn.run.ending import ending
from kofn.run.seeds import conclude_seeds
from kofn.run.state import running
from kofn_common.results.folder import RunFolder


def _goes_on(folder: Path) -> bool:
    """Return whether the run in the folder, or the run of one of its seeds, goes on."""
    run = running()
    return run is not None and folder in (Path(run.folder), *Path(run.folder).parents)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs/latest"))
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on stdout, the rest on stderr.")
@click.option("--details", is_flag=True, help="Show every row of the summary.")
def command(*, folder: Path, as_json: bool, details: bool) -> None:
    """Write the report of a run or an experiment again, from the files in its folder, and show the summary.

    FOLDER is the folder of a run or an experiment, by default runs/latest. A run may have been stopped or killed, or be
    the current run: the report has what the workers of an unfinished trial have written. An experiment's report has its
    finished cells.

    \b
    Examples:
      kofn report                        the latest run
      kofn report --details              with every row of the summary
      kofn report runs/mine --json | jq .trials
      kofn report runs/question          the table, claims and figures of an experiment

    \b
    Exit codes: those of the run (kofn run --help), 1 if the run did not end; 2 FOLDER is no run and no experiment.
    """
    with ending("report"):
        if (folder / EXPERIMENT).exists():
            sys.exit(conclude_experiment(folder, make_console(stderr=as_json), as_json=as_json))
        check_results(folder)
        found = RunFolder.open(folder, several_seeds=True)
        early_end = "it is still running" if _goes_on(found.path.resolve()) else found.record().early_end
        if found.record().seeds:
            sys.exit(conclude_seeds(found, make_console(stderr=as_json), as_json=as_json, early_end=early_end))
        console = make_console(stderr=as_json)
        code = conclude(found, found.configs(), console, as_json=as_json, early_end=early_end, details=details)
    sys.exit(code)
