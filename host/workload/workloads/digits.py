"""Training on handwritten digits: what a run does where nothing else is said."""

from kofn.config.schema import Config
from kofn.host.arrays import Floats
from kofn.host.workload.evaluation import Evaluator
from kofn.host.workload.model import Perceptron, load_shard
from kofn.host.workload.workload import Workload


class Digits(Workload):
    """The multilayer perceptron on this worker's share of the images."""

    def __init__(self, config: Config, rank: int) -> None:
        run = config.run
        shard = load_shard(rank, config.job.workers, run.seed, config.shard, config.model.dirichlet)
        self._model, self._train, self._batch = Perceptron(config.model.hidden, run.seed), shard, config.model.batch
        self.parameters = self._model.parameters
        self.evaluator = Evaluator(
            self._model,
            shard.held_out,
            config.owned,
            over=run.accuracy_over,
            every=run.evaluate_every,
            last=run.max_iterations,
        )

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float, Floats]:
        """Forward and backward pass over one batch."""
        return self._model.gradient(self._train.batch(iteration, self._batch, batch))


digits = Digits
