"""The training of all workers at once: replicas are bit-identical, so one stands for all.

Workers are not all in the same iteration: the parameters of an iteration are kept until no worker needs them.
"""

from dataclasses import dataclass

from host.aggregate import Aggregate
from host.alignment import Alignment, Direction, agreement
from host.coding import Coding
from host.evaluation import Evaluation, Evaluator
from host.model import Floats, Momentum, Perceptron, load_shards
from host.replica import Replica
from host.sample import sample
from run.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What all replicas are alike in after an iteration."""

    evaluation: Evaluation
    direction: Direction  # of the iteration's aggregate
    looked_at: Floats  # a sample of that


class Learning:
    """Model, optimizer and everybody's data."""

    def __init__(self, config: Config) -> None:
        job, seed = config.job, config.run.seed
        self._shards = load_shards(range(job.workers), job.workers, seed, config.shard, config.model.dirichlet)
        self._batch, self.average = config.model.batch, config.model.average
        self._model = Perceptron(config.model.hidden, seed)
        self._worker = Perceptron(config.model.hidden, seed)  # with the parameters of whoever computes
        self.elements = len(self._model.parameters)
        optimizer = Momentum(self._model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum)
        evaluator = Evaluator(
            self._model,
            self._shards[0].held_out,
            config.owned,
            over=config.run.accuracy_over,
            every=config.run.evaluate_every,
            last=config.run.max_iterations,
        )
        self.coding = Coding.of(job, config.compress, self.elements)
        first = self.coding.planner.first()
        self.replica = Replica(self._model.parameters, optimizer, evaluator, self.coding.padded, first)
        self._alignment = Alignment(self.elements)
        self._parameters = {0: self._model.parameters.copy()}  # after each iteration that somebody may need
        self._after: dict[int, After] = {}
        self._computed = [0] * job.workers  # the latest iteration that each one has computed

    def gradient(self, rank: int, iteration: int, number: int = 0) -> tuple[float, Floats]:
        """A worker's loss and gradient over its `number`-th batch of an iteration, with the parameters after the one
        before."""
        self._worker.parameters[:] = self._parameters[iteration - 1]
        self._computed[rank] = iteration
        self._forget(min(self._computed) - 1)
        return self._worker.gradient(self._shards[rank].batch(iteration, self._batch, number))

    def agreement(self, gradient: Floats, iteration: int) -> float:
        """Of a gradient of this iteration with the aggregate before (host.alignment); 0: there was none."""
        before = self._after.get(iteration - 1)
        return agreement(sample(gradient), before.looked_at) if before else 0.0

    def apply(self, aggregate: Aggregate) -> After:
        """A replica takes the next aggregate; the first one to do so does it for all."""
        if aggregate.iteration not in self._after:
            evaluation = self.replica.apply(aggregate.iteration, aggregate.mean, aggregate.total, aggregate.plan)
            direction = self._alignment.direction(aggregate.mean)
            looked_at = sample(aggregate.mean).copy()
            after = After(evaluation=evaluation, direction=direction, looked_at=looked_at)
            self._after[aggregate.iteration] = after
            self._parameters[aggregate.iteration] = self._model.parameters.copy()
        return self._after[aggregate.iteration]

    def _forget(self, iteration: int) -> None:
        """All workers have computed this iteration or a later one: parameters before it are not needed any more."""
        for old in [known for known in self._parameters if known < iteration]:
            del self._parameters[old]
            self._after.pop(old, None)
