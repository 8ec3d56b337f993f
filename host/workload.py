"""What a worker computes gradients of: the digits, with a model of any size, or what a user has recorded."""

from typing import Protocol

from host.evaluation import Evaluates, Evaluator
from host.model import Floats, Perceptron, load_shard
from host.replay import Replay
from run.config import Config


class Workload(Protocol):
    """One worker's; `parameters` are the same at all workers, and are updated in place."""

    parameters: Floats

    @property
    def evaluator(self) -> Evaluates:
        """Looks at the parameters."""

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        """The loss, where there is one, and the gradient, shape of `parameters`, of an iteration's `batch`-th data."""


class Digits:
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


def load_workload(config: Config, rank: int) -> Workload:
    """As the configuration asks for; ReplayError where recorded gradients cannot be used."""
    return Digits(config, rank) if config.model.replay is None else Replay(config.model.replay, rank)
