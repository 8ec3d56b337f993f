"""`kofn export`: results for other programs."""

from pathlib import Path

import click

from kofn.experiments.reader import read
from kofn.report.export import FORMATS, export
from kofn.run.ending import ending

EXAMPLES = """
\b
Examples:
  kofn export runs/latest                                 runs/latest/csv/metrics.csv, k.csv and others
  kofn export runs/question                               an experiment: with columns for axes, contender and seed
  kofn export runs/latest --to parquet --out tables       needs kofn[parquet]
  kofn export runs/latest --to tensorboard && tensorboard --logdir runs/latest/tensorboard

\b
Exit codes: 0 written, 1 a file is damaged or a package is missing, 2 FOLDER is no run and no experiment, or the folder
for the files is not empty.
"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(list(FORMATS)), default="csv", show_default=True, help="Format of the files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the files.  [default: FOLDER/FORMAT]")
def command(folder: Path, to: str, out: Path | None) -> None:
    """Write the data frames of the run or experiment in FOLDER as files for other programs.

    csv and parquet give a file for each data frame (docs/reference/python.md). tensorboard gives a folder of event
    files for each trial and worker, with a curve over the iterations for each column of `metrics` that has numbers,
    and for each number that a script has logged.
    trace gives a file of trace events for ui.perfetto.dev: what each worker computed, sent and waited for in a run with
    [schedule].
    """
    with ending("export"):
        for path in export(read(folder), to, out):
            click.echo(path)
