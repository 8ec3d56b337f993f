"""`kofn experiment zero`: the cost and the savings of few bits in a sharded training."""

import sys
from pathlib import Path

import click

from kofn.experiments.conduct import check_results, going_on, processes_option
from kofn.experiments.kept_options import given_options, with_kept_options, write_options
from kofn.experiments.zero.contenders import CONTENDERS, REFERENCE
from kofn.experiments.zero.convergence import show, train_all, trainings
from kofn.experiments.zero.network_contenders import NETWORK
from kofn.experiments.zero.network_report import show_network
from kofn.experiments.zero.results import ZeroResults
from kofn.experiments.zero.tables import LEGEND
from kofn.experiments.zero.training import TASKS
from kofn.report.table import make_console
from kofn.run.ending import ending
from kofn.run.options import FiniteRange
from kofn_common.config.suggestion import did_you_mean
from kofn_common.results.folder import default_path

EXAMPLES = """
\b
Examples:
  kofn experiment zero --convergence                         everything: about an hour
  kofn experiment zero --convergence --task mlp --out runs/mlp; kofn experiment zero --network --out runs/mlp
  kofn experiment zero --memory
  kofn experiment zero --convergence --task digits           minutes
  kofn experiment zero --convergence --task digits --contender "stage 2, 1 bit" --seeds 5

\b
Exit codes: 0 all workers had the same parameters and every gradient was conserved; 1 otherwise; 2 the command line is
wrong; 130 stopped by a signal. Claims are printed and do not count.
"""


@click.command(epilog=EXAMPLES)
@click.option("--convergence", "question", flag_value="convergence", help="Steps to the loss of uncompressed Adam.")
@click.option("--network", "question", flag_value="network", help="Times and bytes of steps at real links.")
@click.option("--memory", "question", flag_value="memory", help="Memory of a worker, measured and by the formulas.")
@click.option(
    "--task",
    "tasks",
    type=click.Choice([*TASKS]),
    multiple=True,
    help="Of --convergence; may be repeated.  [default: digits, gpt]",
)
@click.option("--contender", "chosen", multiple=True, metavar="NAME", help="May be repeated.  [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Seeds 1 to N.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Of each training.  [default: the task's]")
@click.option(
    "--mbps",
    "rates",
    type=FiniteRange(min=1),
    multiple=True,
    default=(50.0, 200.0),
    show_default=True,
    metavar="RATE",
    help="Of --network: rates of the links; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the results; finished trainings in it are not repeated.  [default: runs/experiment-zero-TIME]",
)
@processes_option("Trainings at a time.")
@click.option(
    "--report-only",
    is_flag=True,
    help="Train nothing: print the findings of the results in --out, with the options that made these results.",
)
@with_kept_options
def zero(
    *,
    question: str | None,
    tasks: tuple[str, ...],
    chosen: tuple[str, ...],
    seeds: int,
    steps: int | None,
    rates: tuple[float, ...],
    out: Path | None,
    processes: int,
    report_only: bool,
) -> None:
    """Measure the cost and savings of few bits in a sharded training: four workers, stages 1 to 3, 32, 8 and 1 bits.

    --convergence: steps to the loss of uncompressed Adam, with all workers and with three of four and a stash. Other
    contenders are 32 bits with a frozen variance; DeepSpeed's two-sided scheme; and one bit without error feedback,
    without mask and floor, and by majority alone. The tasks are digits in NumPy, and a small GPT in PyTorch (in a
    checkout). All workers run in one process, with separate ledgers and codecs. Blocks are summed by the slots' rules;
    there is no network.

    --network: times and bytes of steps at real links (needs root and PyTorch) for a perceptron with 1.1 million
    parameters (task mlp), beside float32 and the two-sided scheme over gloo, and PyTorch's own sharded optimizers.

    --memory: memory of 2, 4 and 8 workers by stage, kind and bits, measured and by the formulas (needs PyTorch).
    """
    if question is None:
        raise click.UsageError("--convergence, --network or --memory must be given")
    console, known = make_console(), NETWORK if question == "network" else CONTENDERS
    for name in chosen:
        if name not in known:
            meant = did_you_mean(name, known) or f": {'; '.join(known)} are known"
            raise click.UsageError(f"no contender {name!r}{meant}")
    if question == "memory" and report_only:
        raise click.UsageError("--report-only is not for --memory, of which no results are kept")
    with ending("experiment zero"):
        if question == "memory":
            from kofn.experiments.zero.memory import show_memory  # noqa: PLC0415  # only --memory needs it

            sys.exit(0 if show_memory(console) else 1)
        if report_only:
            check_results(out, "an experiment")
        folder = out or default_path("experiment-zero")
        results = ZeroResults.at(folder)
        if not report_only:
            write_options(folder, given_options())
        if question == "network":
            names = list(chosen) or list(NETWORK)
            sound = show_network(results, names, rates, folder, console, report_only=report_only)
        else:
            names = [name for name in CONTENDERS if not chosen or name in (*chosen, REFERENCE)]
            every = [trainings(task, names, seeds, steps) for task in tasks or ("digits", "gpt")]
            with going_on(folder):
                for asked in every if not report_only else ():
                    train_all(results, asked, processes)
            sound = all([show(results, asked, console) for asked in every])
            console.print(LEGEND)
        console.print(f"results: {results.path.parent}")
    sys.exit(0 if sound else 1)
