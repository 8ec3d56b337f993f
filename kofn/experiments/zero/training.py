"""A training of a contender, and its held-out losses."""

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
"""The small GPT's configuration, which only a checkout has."""

HIDDEN = (1024, 1024)
"""The hidden layers of the perceptron that is also trained over the network."""

BATCH = 16
"""The number of a worker's images in a step."""


class Learner(Protocol):
    """A worker's model and data; `units` are the sizes of the layers' tensors."""

    parameters: Floats
    units: list[list[int]]

    def gradient(self, step: int) -> Floats:
        """Return the gradient of batch number `step`, counted from 1, in the shape of `parameters`."""

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
    """Return the sizes of weights and biases of a perceptron's layers."""
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
    """A task; a block has `words` words, and the held-out loss is evaluated every `every` steps."""

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
    """The result of a training.

    `losses` are held-out losses by step; None: not finite. `conserved` tells whether every ledger is conserved; None:
    no ledgers. `alike` tells whether all workers have the same parameters; None: the training has diverged. `lost` is
    the L2 norm of the values that all workers discarded to keep residuals in fewer bits, divided by the norm of all
    gradients; None: residuals are exact. `expanding` is the share of blocks whose quantisation step was too large for
    the votes' residual to shrink; None: no votes.
    """

    losses: dict[int, float | None]
    conserved: bool | None
    alike: bool | None
    lost: float | None = None
    expanding: float | None = None


def train(task: ZeroTask, contender: ZeroContender, seed: int, steps: int | None = None) -> Learned:
    """Train with all workers; each worker has a thread."""
    team, settings, last = Lockstep(WORKERS), contender.settings(task.freeze_step), steps or task.steps
    learners = [task.make(rank, seed) for rank in range(WORKERS)]
    calls = [LockstepCalls(team, rank) for rank in range(WORKERS)]
    elements = learners[0].parameters.size
    switch = None if settings.bits == 32 or contender.two_sided else _switch(team, elements, task, contender, seed)
    losses = dict[int, float | None]()

    def train_worker(rank: int) -> None:
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
        team.run(train_worker)
        alike = len({learner.parameters.tobytes() for learner in learners}) == 1
    except GradientError:  # a control diverges: gradients are not finite, or too large for a ledger
        losses[last] = None
    encoders = () if switch is None else switch.encoders
    conserved = all(encoder.ledger.accounts.totals().conserved for encoder in encoders) if encoders else None
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
