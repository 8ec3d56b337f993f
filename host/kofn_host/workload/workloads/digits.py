"""Training on handwritten digits, the default workload."""

from kofn_common.config.schema import Config
from kofn_host.workload.layered import LayeredWorkload
from kofn_host.workload.model import Perceptron, load_shard
from kofn_host.workload.neural_network import NeuralNetwork


class Digits(LayeredWorkload):
    """A multilayer perceptron on this worker's share of the images."""

    model: NeuralNetwork

    def __init__(self, config: Config, rank: int) -> None:
        run = config.run
        shard = load_shard(rank, config.job.workers, run.seed, config.shard, config.model.dirichlet)
        self.model, self._train, self._batch = self.network(config), shard, config.model.batch
        self._owned = shard.held_out.of(config.owned) if config.owned else None
        self.parameters = self.model.parameters

    @staticmethod
    def network(config: Config) -> NeuralNetwork:
        """Return the network, the same at all workers."""
        return Perceptron(config.model.hidden, config.run.seed)

    def begin(self, iteration: int, batch: int = 0) -> None:
        self.model.begin(self._train.batch(iteration, self._batch, batch))

    def evaluate(self) -> float:
        """Return the accuracy on held-out images."""
        return self.model.accuracy(self._train.held_out)

    def evaluate_owned(self) -> float | None:
        return self.model.accuracy(self._owned) if self._owned else None


digits = Digits
