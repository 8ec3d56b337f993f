"""The finished trainings of `kofn experiment zero`, in a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from kofn.experiments.zero.training import TASKS, Learned


class ShardedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a training: names of TASKS and CONTENDERS."""

    task: str
    contender: str
    seed: int
    steps: int


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    training: ShardedTraining
    learned: Learned


@dataclass(frozen=True, slots=True)
class ZeroResults:
    """The results of trainings; `path` is the file."""

    path: Path
    learned: dict[ShardedTraining, Learned]

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the results in a folder, which is made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "zero.json"
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Row]) if path.exists() else []
        return cls(path, {row.training: row.learned for row in rows})

    def of(self, task: str) -> dict[tuple[str, int], Learned]:
        """Return a task's trainings with the task's default number of steps, by contender and seed."""
        steps = TASKS[task].steps
        return {
            (training.contender, training.seed): learned
            for training, learned in self.learned.items()
            if (training.task, training.steps) == (task, steps)
        }

    def add(self, training: ShardedTraining, learned: Learned) -> None:
        self.learned[training] = learned
        rows = [_Row(training=training, learned=learned) for training, learned in self.learned.items()]
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
        new.replace(self.path)
