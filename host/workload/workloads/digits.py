"""Training on handwritten digits: what a run does where nothing else is said."""

from kofn.config.schema import Config
from kofn.host.arrays import Floats
from kofn.host.workload.model import Perceptron, load_shard
from kofn.host.workload.workload import Workload


class Digits(Workload):
    """The multilayer perceptron on this worker's share of the images."""

    def __init__(self, config: Config, rank: int) -> None:
        run = config.run
        shard = load_shard(rank, config.job.workers, run.seed, config.shard, config.model.dirichlet)
        self._model, self._train, self._batch = Perceptron(config.model.hidden, run.seed), shard, config.model.batch
        self._owned = shard.held_out.of(config.owned) if config.owned else None
        self.parameters = self._model.parameters

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float, Floats]:
        """Forward and backward pass over one batch."""
        return self._model.gradient(self._train.batch(iteration, self._batch, batch))

    def evaluate(self) -> float:
        """The accuracy on held-out images."""
        return self._model.accuracy(self._train.held_out)

    def evaluate_owned(self) -> float | None:
        return self._model.accuracy(self._owned) if self._owned else None


digits = Digits
