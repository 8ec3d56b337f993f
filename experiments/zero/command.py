"""`kofn experiment zero`: what few bits cost a sharded training in steps."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from rich.console import Console

from kofn.config.suggestion import did_you_mean
from kofn.experiments.claims import judge, lines
from kofn.experiments.zero.claims import CLAIMS
from kofn.experiments.zero.contenders import CONTENDERS, REFERENCE
from kofn.experiments.zero.results import ShardedTraining, ZeroResults
from kofn.experiments.zero.tables import LEGEND, arms, table
from kofn.experiments.zero.training import TASKS, Learned, train
from kofn.report.table import make_console
from kofn.results.folder import default_path

EXAMPLES = """
\b
Examples:
  kofn experiment zero --convergence                         everything: about an hour
  kofn experiment zero --convergence --task digits           minutes
  kofn experiment zero --convergence --task digits --contender "stage 2, 1 bit" --seeds 5

\b
Exit codes: 0 all workers were alike and every gradient was conserved; 1 not so; 2 the command line is wrong. Claims
do not count: they are said.
"""


@click.command(epilog=EXAMPLES)
@click.option("--convergence", is_flag=True, required=True, help="Steps to the loss of uncompressed Adam.")
@click.option("--task", "tasks", type=click.Choice([*TASKS]), multiple=True, help="May be repeated.  [default: all]")
@click.option("--contender", "chosen", multiple=True, metavar="NAME", help="May be repeated.  [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Seeds 1 to N.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Of each training.  [default: the task's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; what is finished in it is not trained again.  [default: runs/experiment-zero-TIME]",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=len(os.sched_getaffinity(0)),
    show_default="this machine's",
    metavar="N",
    help="Trainings at a time.",
)
@click.option("--report-only", is_flag=True, help="Train nothing: what the results in --out show.")
def zero(
    *,
    convergence: bool,
    tasks: tuple[str, ...],
    chosen: tuple[str, ...],
    seeds: int,
    steps: int | None,
    out: Path | None,
    processes: int,
    report_only: bool,
) -> None:
    """What do few bits cost a sharded training? Steps to the loss of uncompressed Adam.

    Four workers, stages 1 to 3 in 8 bits and 1, with all of them and with three of four and a stash; 32 bits with a
    frozen variance; DeepSpeed's two-sided scheme; and one bit without error feedback, without mask and floor, and by
    majority alone. Digits in NumPy, and a small GPT in PyTorch (in a checkout). All workers are in one process, with
    their own ledgers and codecs, and blocks are summed by the slots' rules; there is no network.
    """
    for name in chosen:
        if name not in CONTENDERS:
            known = did_you_mean(name, CONTENDERS) or f": {'; '.join(CONTENDERS)} are known"
            raise click.UsageError(f"no contender {name!r}{known}")
    names = [name for name in CONTENDERS if not chosen or name in (*chosen, REFERENCE)]
    results, console, sound = ZeroResults.at(out or default_path("experiment-zero")), make_console(), True
    for task in tasks or TASKS:
        asked = [
            ShardedTraining(task=task, contender=name, seed=seed, steps=steps or TASKS[task].steps)
            for name in names
            for seed in range(1, seeds + 1)
        ]
        if not report_only:
            _train_all(results, [each for each in asked if each not in results.learned], processes)
        found = arms({(each.contender, each.seed): results.learned[each] for each in asked if each in results.learned})
        console.print(table(f"{task}: {asked[0].steps} steps, {seeds} seeds", found))
        console.print(
            "\n".join(lines(judge(CLAIMS, {arm.name: arm for arm in found}))), highlight=False, soft_wrap=True
        )
        sound = sound and all(arm.sound for arm in found)
    console.print(LEGEND)
    console.print(f"results: {results.path}")
    sys.exit(0 if sound else 1)


def _train_all(results: ZeroResults, asked: Sequence[ShardedTraining], processes: int) -> None:
    """Each in a process, so that they go on at the same time."""
    console = Console(stderr=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("forkserver")) as pool:
        futures = {pool.submit(_train, each): each for each in asked}
        for number, future in enumerate(as_completed(futures), 1):
            each = futures[future]
            results.add(each, future.result())
            console.print(f"{number} of {len(asked)}: {each.task}, {each.contender}, seed {each.seed}", highlight=False)


def _train(asked: ShardedTraining) -> Learned:
    return train(TASKS[asked.task], CONTENDERS[asked.contender], asked.seed, asked.steps)
