"""Steps to the loss of uncompressed Adam: trainings in separate processes, and their results."""

from collections.abc import Iterable, Sequence

from rich.console import Console

from kofn.experiments.children import children
from kofn.experiments.claims import judge, lines
from kofn.experiments.zero.claims import CLAIMS
from kofn.experiments.zero.contenders import CONTENDERS
from kofn.experiments.zero.results import ShardedTraining, ZeroResults
from kofn.experiments.zero.tables import arms, table
from kofn.experiments.zero.training import TASKS, Learned, train
from kofn.report.table import make_console
from kofn.run.display import say


def trainings(task: str, names: Iterable[str], seeds: int, steps: int | None) -> list[ShardedTraining]:
    return [
        ShardedTraining(task=task, contender=name, seed=seed, steps=steps or TASKS[task].steps)
        for name in names
        for seed in range(1, seeds + 1)
    ]


def train_all(results: ZeroResults, asked: Sequence[ShardedTraining], processes: int) -> None:
    """Carry out the unfinished trainings at the same time, in `processes` processes."""
    console, left = make_console(stderr=True), [training for training in asked if training not in results.learned]
    with children(processes) as pool:
        for number, (training, learned) in enumerate(pool.imap_unordered(_train, left), 1):
            results.add(training, learned)
            done = f"{training.task}, {training.contender}, seed {training.seed}"
            console.print(f"{number} of {len(left)}: {done}", highlight=False)


def show(results: ZeroResults, asked: Sequence[ShardedTraining], console: Console) -> bool:
    """Print table and claims of a task; return whether all trainings were sound."""
    finished = [training for training in asked if training in results.learned]
    found = arms({(training.contender, training.seed): results.learned[training] for training in finished})
    seeds = len({training.seed for training in asked})
    console.print(table(f"{asked[0].task}: {asked[0].steps} steps, {seeds} seeds", found))
    say(console, "\n".join(lines(judge(CLAIMS, {arm.name: arm for arm in found}))))
    return all(arm.sound for arm in found)


def _train(asked: ShardedTraining) -> tuple[ShardedTraining, Learned]:
    return asked, train(TASKS[asked.task], CONTENDERS[asked.contender], asked.seed, asked.steps)
