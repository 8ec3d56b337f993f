"""`kofn experiment scale`: sweeps over k, workers, racks, laws and any key, on this machine or a cluster."""

import sys
from pathlib import Path

import click
import pandas as pd

from kofn.experiments.conduct import going_on, processes_option
from kofn.experiments.engine import TaskEngine
from kofn.experiments.scale.tasks import CHOICE, LAW, RESULTS, SEED, WORKERS, Axes, Value, failures, run, table, tasks
from kofn.report.table import PlainTable, make_console
from kofn.run.display import say
from kofn.run.ending import ending
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import default_path

WORLD = Path(__file__).with_name("world.toml")

GROUPED = {
    "mean_iteration_s": ("iteration", 1e3, "{:.1f} ms"),
    "gradients": ("gradients", 1.0, "{:,.0f}"),
    "progress_per_s": ("progress", 1.0, "{:.3g}/s"),
}
"""The columns of the shown table, with their headings, factors and formats."""

EXAMPLES = """
\b
Examples:
  kofn experiment scale --workers 100,1000,10000 --k 0.5,0.9,1,throughput --seeds 5
  kofn experiment scale --workers 10000 --axis job.racks=100 --axis scale.rack_share=0,0.9 --k 0.9
  kofn experiment scale mine.toml --law poisson,pareto --axis network.link_mbps=100,1000 --out runs/laws
  kofn experiment scale --workers 100000 --seeds 100 --cluster dask_jobqueue:SLURMCluster --processes 64
  kofn experiment scale --workers 100000 --seeds 100 --cluster tcp://10.0.0.1:8786

\b
Exit codes: 0 every task has a row; 1 some tasks failed: the same --out runs them again; 2 the command line is wrong;
130 stopped by a signal.
"""


@click.command(epilog=EXAMPLES)
@click.argument("world", type=click.Path(path_type=Path), required=False)
@click.option("--workers", metavar="N,...", default="1000", show_default=True, help="Numbers of workers.")
@click.option("--k", metavar="K,...", default="0.5,0.9,1", show_default=True, help="Shares of n, or objectives.")
@click.option("--law", metavar="LAW,...", help="Laws of every [[straggler]].  [default: the world's]")
@click.option(
    "--axis", "more", metavar="SECTION.KEY=V,...", multiple=True, help="Values of any other key; may be repeated."
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Seeds 1 to N.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results; finished tasks in it are not repeated.  [default: runs/experiment-scale-TIME]",
)
@processes_option("Tasks at a time; jobs, or workers, of a new cluster.")
@click.option(
    "--cluster",
    metavar="WHERE",
    help="A Dask cluster: tcp://HOST:PORT, or a class, dask_jobqueue:SLURMCluster for example.",
)
def scale(
    *,
    world: Path | None,
    workers: str,
    k: str,
    law: str | None,
    more: tuple[str, ...],
    seeds: int,
    out: Path | None,
    processes: int,
    cluster: str | None,
) -> None:
    """Simulate every combination of the axes' values by iterations (kofn simulate --scale).

    WORLD is a configuration; by default all workers are blocked 10 ms on average. The table is OUT/results.csv.
    """
    console = make_console()
    with ending("experiment scale"):
        axes: dict[str, list[Value]] = {name: _values(text) for name, text in map(_axis, more)}
        axes = {WORKERS: _values(workers)} | ({LAW: _values(law)} if law else {}) | axes
        axes |= {CHOICE: _values(k), SEED: list(range(1, seeds + 1))}
        wanted = tasks((world or WORLD).read_text(), axes)
        for task in wanted[::seeds]:
            task.config()
        engine, folder = TaskEngine(processes=processes, cluster=cluster), out or default_path("experiment-scale")
        engine.check()
        say(console, f"{len(wanted)} tasks; results in {folder}")
        with going_on(folder):
            run(
                wanted,
                folder,
                engine,
                lambda number, of: say(console, f"[{number}/{of}]") if number % 100 == 0 else None,
            )
        found = table(folder, wanted)
        found.to_csv(folder / RESULTS, index=False)
        if len(found):
            console.print(shown(found, axes))
        failed = failures(folder, wanted)
        for line in failed:
            say(make_console(stderr=True), f"kofn experiment scale: {line}", style="red")
    sys.exit(1 if failed else 0)


def shown(found: pd.DataFrame, axes: Axes) -> PlainTable:
    """Return the table of means over the seeds."""
    by = [name for name in axes if name != SEED and len(axes[name]) > 1] or [WORKERS]
    means = (
        found.assign(**{CHOICE: found[CHOICE].astype(str)}).groupby(by, sort=False)[list(GROUPED)].mean().reset_index()
    )
    rows = [
        [
            *(str(row[name]) for name in by),
            *(form.format(factor * row[name]) for name, (_, factor, form) in GROUPED.items()),
        ]
        for _, row in means.iterrows()
    ]
    return PlainTable([*by, *(heading for heading, _, _ in GROUPED.values())], rows)


def _axis(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    if not equals or name.count(".") != 1:
        raise ConfigError(f"--axis must be SECTION.KEY=VALUE,..., got {text!r}")
    return name, values


def _values(text: str) -> list[Value]:
    """Return the values between commas: whole numbers, other numbers, or text."""
    return [_value(part.strip()) for part in text.split(",")]


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
