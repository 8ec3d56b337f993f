"""`kofn experiment zero`: what few bits cost a sharded training in steps."""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from rich.console import Console

from kofn.config.suggestion import did_you_mean
from kofn.experiments.zero.contenders import CONTENDERS, REFERENCE
from kofn.experiments.zero.tables import LEGEND, Trainings, arms, document, table
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
Exit codes: 0 all workers were alike and every gradient was conserved; 1 not so; 2 the command line is wrong.
"""


@click.command(epilog=EXAMPLES)
@click.option("--convergence", is_flag=True, required=True, help="Steps to the loss of uncompressed Adam.")
@click.option("--task", "tasks", type=click.Choice([*TASKS]), multiple=True, help="May be repeated.  [default: all]")
@click.option("--contender", "chosen", multiple=True, metavar="NAME", help="May be repeated.  [default: all]")
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Seeds 1 to N.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Of each training.  [default: the task's]")
@click.option(
    "--out", type=click.Path(path_type=Path), help="A folder for zero.json.  [default: runs/experiment-zero-TIME]"
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=len(os.sched_getaffinity(0)),
    show_default="this machine's",
    metavar="N",
    help="Trainings at a time.",
)
def zero(
    *,
    convergence: bool,
    tasks: tuple[str, ...],
    chosen: tuple[str, ...],
    seeds: int,
    steps: int | None,
    out: Path | None,
    processes: int,
) -> None:
    """What do few bits cost a sharded training? Steps to the loss of uncompressed Adam.

    Four workers, stages 1 to 3 in 8 bits and 1, all of them and three of four with a stash; DeepSpeed's two-sided
    scheme; and one bit without error feedback, without mask and floor, and by majority alone. Digits in NumPy, and a
    small GPT in PyTorch (in a checkout). All workers are in one process, with their own ledgers and codecs, and blocks
    are summed by the slots' rules; there is no network.
    """
    for name in chosen:
        if name not in CONTENDERS:
            known = did_you_mean(name, CONTENDERS) or f": {'; '.join(CONTENDERS)} are known"
            raise click.UsageError(f"no contender {name!r}{known}")
    names = [name for name in CONTENDERS if not chosen or name in (*chosen, REFERENCE)]
    folder = out or default_path("experiment-zero")
    folder.mkdir(parents=True, exist_ok=True)
    console, sound, documents = make_console(), True, dict[str, object]()
    for task in tasks or TASKS:
        found = arms(_trained(task, names, range(1, seeds + 1), steps, processes))
        console.print(table(f"{task}: {steps or TASKS[task].steps} steps, {seeds} seeds", found))
        sound = sound and all(arm.sound for arm in found)
        documents[task] = [document(arm) for arm in found]
    console.print(LEGEND)
    (folder / "zero.json").write_text(json.dumps(documents, indent=1))
    console.print(f"results: {folder / 'zero.json'}")
    sys.exit(0 if sound else 1)


def _trained(task: str, names: Iterable[str], seeds: Iterable[int], steps: int | None, processes: int) -> Trainings:
    """Each in a process, so that they go on at the same time."""
    console, wanted = Console(stderr=True), [(name, seed) for name in names for seed in seeds]
    found = dict[tuple[str, int], Learned]()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("forkserver")) as pool:
        futures = {pool.submit(_train, task, name, seed, steps): (name, seed) for name, seed in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            name, seed = futures[future]
            found[name, seed] = future.result()
            console.print(f"{task} {number} of {len(wanted)}: {name}, seed {seed}", highlight=False)
    return {each: found[each] for each in wanted}


def _train(task: str, name: str, seed: int, steps: int | None) -> Learned:
    return train(TASKS[task], CONTENDERS[name], seed, steps)
