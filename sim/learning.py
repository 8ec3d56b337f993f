"""The training of all workers at once: replicas are bit-identical, so one stands for all.

Workers are not all in the same iteration: the parameters of an iteration are kept until no worker needs them.
"""

from dataclasses import dataclass

from host.agent import padded
from host.aggregate import Aggregate
from host.alignment import Alignment, Direction
from host.metrics import fingerprint
from host.model import Floats, Momentum, Perceptron, load_shard
from host.replica import Replica
from host.wire import WORD_LANES
from run.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What all replicas are alike in after an iteration."""

    parameters: Floats
    accuracy: float
    params: str  # fingerprint
    direction: Direction  # of the iteration's aggregate


class Learning:
    """Model, optimizer and everybody's data."""

    def __init__(self, config: Config) -> None:
        self._shards = [
            load_shard(rank, config.job.workers, config.run.seed, config.shard) for rank in range(config.job.workers)
        ]
        self._batch, self.divisor = config.model.batch, config.divisor
        self._model = Perceptron(config.model.hidden, config.run.seed)
        self._worker = Perceptron(config.model.hidden, config.run.seed)  # with the parameters of whoever computes
        self.elements = len(self._model.parameters)
        optimizer = Momentum(self._model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum)
        self.replica = Replica(self._model.parameters, optimizer, padded(self.elements, config.job.words * WORD_LANES))
        self._alignment = Alignment(self.elements)
        self._after = {0: self._look(Direction(norm2=0.0, products=()))}
        self._computed = [0] * config.job.workers  # the latest iteration that each one has begun to compute

    def gradient(self, rank: int, iteration: int) -> tuple[float, Floats]:
        """A worker's loss and gradient in an iteration, with the parameters after the one before."""
        self._computed[rank] = iteration
        self._forget(min(self._computed))
        self._worker.parameters[:] = self._after[iteration - 1].parameters
        return self._worker.gradient(self._shards[rank].batch(iteration, self._batch))

    def apply(self, aggregate: Aggregate) -> After:
        """A replica takes the next aggregate; the first one to do so does it for all."""
        if aggregate.iteration not in self._after:
            self.replica.apply(aggregate.iteration, aggregate.mean, aggregate.total)
            self._after[aggregate.iteration] = self._look(self._alignment.direction(aggregate.mean))
        return self._after[aggregate.iteration]

    def accuracy(self) -> float:
        """The replica's, on the held-out images."""
        return self._model.accuracy(self._shards[0].held_out)

    def _forget(self, iteration: int) -> None:
        """All workers have begun this iteration or a later one: the parameters before it are not needed any more."""
        for old in [known for known in self._after if known < iteration - 1]:
            del self._after[old]

    def _look(self, direction: Direction) -> After:
        """At the replica as it is now."""
        parameters = self._model.parameters.copy()
        return After(
            parameters=parameters, accuracy=self.accuracy(), params=fingerprint(parameters), direction=direction
        )
