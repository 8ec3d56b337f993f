"""Data-parallel training of one worker: gradient, all-reduce through the switch, step; until the target is reached.

Every replica applies the same aggregates in the same order, so all of them see the same held-out accuracy at the same
iteration and stop together, without a word to each other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from host.agent import Agent, Aggregate
from host.metrics import Metrics, fingerprint
from host.model import Momentum, Perceptron, load_shard
from host.stragglers import Blocking
from rpc import kofn_pb2
from run.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What this worker did in an iteration that it computed itself; times in seconds, `started` since the epoch."""

    started: float
    loss: float
    first_block_s: float
    blocking_s: float


class Training:
    """One worker's model, data and stragglers."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config = config
        self._blocking = Blocking(config, rank)
        self._shard = load_shard(rank, config.job.workers, config.run.seed)
        self._model = Perceptron(config.model.hidden, config.run.seed)
        self._optimizer = Momentum(
            self._model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum
        )
        self.parameters = len(self._model.parameters)

    def run(
        self, agent: Agent, metrics: Metrics, first_iteration: int, report: Callable[[kofn_pb2.Report], None]
    ) -> str:
        """Train to the target accuracy ("target") or the last iteration ("iterations")."""
        iteration = first_iteration
        while True:
            ready, started = time.monotonic(), time.time()
            loss, gradient = self._compute(iteration, ready)
            blocking_s = self._block(iteration)
            handed, aggregates = agent.all_reduce(gradient)
            step = Step(started=started, loss=loss, first_block_s=handed - ready, blocking_s=blocking_s)
            for aggregate in aggregates:
                reason = self._apply(aggregate, step if aggregate.iteration == iteration else None, metrics)
                if reason:
                    break
            report(_report(iteration, step, aggregates, time.monotonic() - ready))
            if reason:
                return reason
            iteration = aggregates[-1].iteration + 1

    def _compute(self, iteration: int, ready: float) -> tuple[float, np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Forward and backward pass; sleeps up to model.compute_ms, to stand for a larger model."""
        loss, gradient = self._model.gradient(self._shard.batch(iteration, self._config.model.batch))
        time.sleep(max(0.0, ready + self._config.model.compute_ms / 1000 - time.monotonic()))
        return loss, gradient

    def _block(self, iteration: int) -> float:
        """Be a straggler, if this iteration says so; returns the seconds."""
        blocking_s = self._blocking.blocking_s(iteration)
        if blocking_s:
            time.sleep(blocking_s)
        return blocking_s

    def _apply(self, aggregate: Aggregate, step: Step | None, metrics: Metrics) -> str | None:
        """Update the parameters, write the iteration down, and say why to stop if it is time to."""
        self._optimizer.step(aggregate.mean)
        accuracy = self._model.accuracy(self._shard.held_out)
        now = time.time()
        metrics.write(
            iteration=aggregate.iteration,
            time=now,
            started=step.started if step else None,
            computed=step is not None,
            loss=step.loss if step else None,
            accuracy=accuracy,
            params=fingerprint(self._model.parameters),
            first_block_s=step.first_block_s if step else None,
            iteration_s=now - step.started if step else None,
            blocking_s=step.blocking_s if step else None,
            injected_mean_s=self._blocking.mean_s(aggregate.iteration),
            k=aggregate.k,
            count=aggregate.count,
            members=aggregate.members,
            late=aggregate.late,
        )
        if accuracy >= self._config.run.target_accuracy:
            return "target"
        return "iterations" if aggregate.iteration >= self._config.run.max_iterations else None


def _report(iteration: int, step: Step, aggregates: list[Aggregate], iteration_s: float) -> kofn_pb2.Report:
    """What the controller measures from.  A worker always finishes its gradient, so nothing is cut off."""
    return kofn_pb2.Report(
        iteration=iteration,
        first_block_s=step.first_block_s,
        censored=False,
        late=aggregates[0].late,
        iteration_s=iteration_s,
        iterations_behind=len(aggregates) - 1,
    )
