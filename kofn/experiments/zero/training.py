"""One training of a contender: its held-out losses."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import kofn
from kofn.experiments.zero.contenders import WORKERS, ZeroContender
from kofn_common.config.compress import CompressSection
from kofn_common.config.schema import Config
from kofn_common.config.shards import CLASSES
from kofn_host.arrays import Floats
from kofn_host.errors import GradientError
from kofn_host.workload import PIXELS, Batch, Perceptron, load_shard, load_workload
from kofn_host.zero import (
    CODECS,
    CompressedMean,
    Lockstep,
    LockstepCalls,
    LockstepMean,
    LockstepSwitch,
    TwoSidedMean,
    ZeroOptimizer,
)

GPT = Path(kofn.__file__).parents[1] / "examples" / "workloads" / "small_gpt.toml"
"""A file of a checkout."""

HIDDEN = (1024, 1024)
"""Hidden layers of the perceptron that is also trained over the network."""

BATCH = 16
"""Images of a worker in a step."""


class Learner(Protocol):
    """One worker's model and data; `units` are the sizes of its layers' tensors."""

    parameters: Floats
    units: list[list[int]]

    def gradient(self, step: int) -> Floats:
        """Return the gradient of the `step`-th batch, from 1, in the shape of `parameters`."""

    def held_out_loss(self) -> float: ...


class DigitsLearner:
    """A perceptron on 8 x 8 images of digits, in NumPy."""

    def __init__(self, rank: int, seed: int, hidden: tuple[int, ...] = (64,)) -> None:
        self._model, self._data = Perceptron(hidden, seed), load_shard(rank, WORKERS, seed)
        self.parameters, self.units = self._model.parameters, units_of(hidden)

    def gradient(self, step: int) -> Floats:
        return self._model.gradient(self._data.batch(step, BATCH))[1]

    def held_out_loss(self) -> float:
        held_out: Batch = self._data.held_out
        return float(self._model.gradient(held_out)[0])


def units_of(hidden: tuple[int, ...]) -> list[list[int]]:
    """Return sizes of weights and biases of a perceptron's layers."""
    return [[before * after, after] for before, after in pairwise((PIXELS, *hidden, CLASSES))]


class WorkloadLearner:
    """A configuration's workload, whose metric is the held-out loss."""

    def __init__(self, rank: int, seed: int, path: Path) -> None:
        config = Config.load(path, [f"run.seed={seed}", f"job.workers={WORKERS}"])
        self._workload = load_workload(config, rank)
        self.parameters = self._workload.parameters
        self.units = [list(unit) for unit in getattr(self._workload, "units", [[self.parameters.size]])]

    def gradient(self, step: int) -> Floats:
        return self._workload.gradient(step)[1]

    def held_out_loss(self) -> float:
        return self._workload.evaluate()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroTask:
    """A task; `words` of a block; `every`: steps between two evaluations of the held-out loss."""

    make: Callable[[int, int], Learner]
    rate: float
    steps: int
    freeze_step: int
    words: int
    every: int


TASKS: Mapping[str, ZeroTask] = {
    "digits": ZeroTask(make=DigitsLearner, rate=2e-3, steps=400, freeze_step=60, words=1, every=5),
    "mlp": ZeroTask(
        make=lambda rank, seed: DigitsLearner(rank, seed, HIDDEN),
        rate=5e-4,
        steps=150,
        freeze_step=30,
        words=4,
        every=2,
    ),
    "gpt": ZeroTask(
        make=lambda rank, seed: WorkloadLearner(rank, seed, GPT),
        rate=2e-3,
        steps=300,
        freeze_step=60,
        words=4,
        every=10,
    ),
}


ELEMENTS = sum(map(sum, units_of(HIDDEN)))
"""Elements of the task `mlp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The result of a training. `losses`: held-out, by step, None where not finite; `conserved`: whether every ledger
    is, None without ledgers; `alike`: whether all workers have the same parameters, None where the training has
    diverged.

    `lost`: L2 of the values that all workers discarded to keep residuals in fewer bits, over that of all their
    gradients, None where residuals are exact; `expanding`: the share of blocks whose votes had too large a step for the
    residual to shrink, None without votes.
    """

    losses: dict[int, float | None]
    conserved: bool | None
    alike: bool | None
    lost: float | None = None
    expanding: float | None = None


def train(task: ZeroTask, contender: ZeroContender, seed: int, steps: int | None = None) -> Learned:
    """Train with all workers, each a thread."""
    team, settings, last = Lockstep(WORKERS), contender.settings(task.freeze_step), steps or task.steps
    learners = [task.make(rank, seed) for rank in range(WORKERS)]
    calls = [LockstepCalls(team, rank) for rank in range(WORKERS)]
    elements = learners[0].parameters.size
    switch = None if settings.bits == 32 or contender.two_sided else _switch(team, elements, task, contender, seed)
    losses = dict[int, float | None]()

    def one(rank: int) -> None:
        learner, mean = learners[rank], _mean_of(contender, calls[rank], switch, elements)
        units = [[size for unit in learner.units for size in unit]] if settings.stage == 1 else learner.units
        zero = ZeroOptimizer(settings, learner.parameters, units, calls[rank], mean)
        for step in range(1, last + 1):
            gradient = learner.gradient(step)
            for number, unit in enumerate(zero.shards.units):
                zero.put(number, gradient[unit.begin : unit.end])
            zero.step(task.rate)
            learner.parameters[:] = zero.gathered()
            if rank == 0 and step % task.every == 0:
                loss = learner.held_out_loss()
                losses[step] = loss if math.isfinite(loss) else None

    alike: bool | None = None
    try:
        team.run(one)
        alike = len({learner.parameters.tobytes() for learner in learners}) == 1
    except GradientError:  # a control diverges: not finite, or too large for a ledger
        losses[last] = None
    conserved = None if switch is None else all(each.ledger.accounts.totals().conserved for each in switch.encoders)
    lost, expanding = (None, None) if switch is None else (switch.lost, switch.expanding)
    return Learned(losses=losses, conserved=conserved, alike=alike, lost=lost, expanding=expanding)


def _switch(team: Lockstep, elements: int, task: ZeroTask, contender: ZeroContender, seed: int) -> LockstepSwitch:
    return LockstepSwitch(
        team,
        elements,
        job=Config.of({"job": {"workers": WORKERS, "words": task.words}}).job,
        compress=CompressSection(
            codec=contender.codec or CODECS[contender.bits],
            error_feedback=contender.error_feedback,
            residual=contender.residual,
        ),
        average="contributors" if contender.settings(1).votes_on_momentum else "gradients",
        k=contender.k,
        seed=seed,
        majority=contender.majority,
    )


def _mean_of(
    contender: ZeroContender, calls: LockstepCalls, switch: LockstepSwitch | None, elements: int
) -> CompressedMean | None:
    if contender.two_sided:
        return TwoSidedMean(calls, elements)
    return None if switch is None else LockstepMean(switch, calls.rank)
