"""Data-parallel training of one worker: gradient, all-reduce through the switch, step; until the target is reached.

Every replica applies the same aggregates in the same order, so all of them see the same held-out accuracy at the same
iteration and stop together, without a word to each other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from host.agent import Agent, padded
from host.aggregate import Aggregate
from host.metrics import Metrics, fingerprint
from host.model import Momentum, Perceptron, load_shard
from host.replica import Replica, State
from host.stragglers import Blocking
from host.wire import WORD_LANES
from rpc import kofn_pb2
from run.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What this worker did in an iteration that it computed itself; times in seconds, `started` since the epoch."""

    iteration: int
    started: float
    loss: float | None  # None: the gradient was computed before a restart
    first_block_s: float
    blocking_s: float


class Training:
    """One worker's model, data and stragglers."""

    def __init__(self, config: Config, rank: int) -> None:
        self._config = config
        self._blocking = Blocking(config, rank)
        self._shard = load_shard(rank, config.job.workers, config.run.seed)
        self._model = Perceptron(config.model.hidden, config.run.seed)
        optimizer = Momentum(self._model.parameters, rate=config.model.learning_rate, momentum=config.model.momentum)
        self.parameters = len(self._model.parameters)
        self.replica = Replica(
            self._model.parameters, optimizer, padded(self.parameters, config.job.words * WORD_LANES)
        )

    def run(self, agent: Agent, metrics: Metrics, report: Callable[[kofn_pb2.Report], None]) -> str:
        """Train to the target accuracy ("target") or the last iteration ("iterations")."""
        reason = self._over(agent.iteration - 1) or self._follow(agent.catch_up(), None, metrics)
        while reason is None:
            iteration, ready, started = agent.iteration, time.monotonic(), time.time()
            gradient, loss, blocking_s = None, None, 0.0
            if not agent.entered:
                loss, gradient = self._compute(iteration, ready)
                blocking_s = self._block(iteration)
            handed, updates = agent.all_reduce(gradient)
            step = Step(
                iteration=iteration, started=started, loss=loss, first_block_s=handed - ready, blocking_s=blocking_s
            )
            reason = self._follow(updates, step, metrics)
            if gradient is not None:
                report(_report(step, updates, time.monotonic() - ready))
        return reason

    def _follow(self, updates: list[Aggregate | State], step: Step | None, metrics: Metrics) -> str | None:
        """Apply what has finished, in order, up to the end of the training."""
        for update in updates:
            if isinstance(update, State):
                self.replica.restore(update)
                reason = self._over(update.iteration)
            else:
                computed = step is not None and step.loss is not None and step.iteration == update.iteration
                reason = self._apply(update, step if computed else None, metrics)
            if reason is not None:
                return reason
        return None

    def _over(self, iteration: int) -> str | None:
        """Why the training ends with the parameters after this iteration, if it does."""
        return self._reason(iteration, self._model.accuracy(self._shard.held_out))

    def _reason(self, iteration: int, accuracy: float) -> str | None:
        """The goal that is reached."""
        if accuracy >= self._config.run.target_accuracy:
            return "target"
        return "iterations" if iteration >= self._config.run.max_iterations else None

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
        self.replica.apply(aggregate.iteration, aggregate.mean, aggregate.total)
        accuracy = self._model.accuracy(self._shard.held_out)
        injected_s = self._blocking.mean_s(aggregate.iteration)
        params = fingerprint(self._model.parameters)
        metrics.write(**iteration_line(aggregate, step, time.time(), accuracy, params, injected_s))
        return self._reason(aggregate.iteration, accuracy)


def iteration_line(
    aggregate: Aggregate, step: Step | None, now: float, accuracy: float, params: str, injected_mean_s: float
) -> dict[str, Any]:
    """What a worker writes down of an iteration (run.metrics.Iteration); without `step` it did not compute it."""
    return {
        "iteration": aggregate.iteration,
        "time": now,
        "started": step.started if step else None,
        "computed": step is not None,
        "loss": step.loss if step else None,
        "accuracy": accuracy,
        "params": params,
        "first_block_s": step.first_block_s if step else None,
        "iteration_s": now - step.started if step else None,
        "blocking_s": step.blocking_s if step else None,
        "injected_mean_s": injected_mean_s,
        "k": aggregate.k,
        "count": aggregate.count,
        "members": aggregate.members,
        "late": aggregate.late,
    }


def _report(step: Step, updates: list[Aggregate | State], iteration_s: float) -> kofn_pb2.Report:
    """What the controller measures from.  A worker always finishes its gradient, so nothing is cut off."""
    first = updates[0]
    return kofn_pb2.Report(
        iteration=step.iteration,
        first_block_s=step.first_block_s,
        censored=False,
        late=isinstance(first, State) or first.late,
        iteration_s=iteration_s,
        iterations_behind=len(updates) - 1,
    )
