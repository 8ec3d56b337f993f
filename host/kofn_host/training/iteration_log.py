"""A PyTorch script's records and reports of its iterations, in the same form as those of the built-in training loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kofn_common import wall_clock
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.agent.exchange import Exchange, Update
from kofn_host.arrays import Floats, fingerprint
from kofn_host.collectives.call import Array
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.alignment import Alignment, Direction
from kofn_host.kernels.sample import norm2
from kofn_host.training.iteration_clock import IterationClock
from kofn_host.training.loop import Step, Work, iteration_line, report_of_updates
from kofn_host.training.metrics import Metrics
from kofn_host.training.reducer import Reducer
from kofn_host.workload.evaluation import Evaluation
from kofn_host.workload.straggler_source import StragglerSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The number, times and blocking of an iteration that this worker has begun.

    `ready_s`, `first_s`, `exchange_s`: time.monotonic() when the parameters were ready, when the first bucket was
    ready, and when the exchange began.
    """

    iteration: int
    started: float  # in seconds since the epoch
    ready_s: float
    first_s: float
    exchange_s: float
    blocking_s: float
    blocked_s: float
    decision: int


class IterationLog:
    """The records and reports of one worker, whose gradients have `elements` elements."""

    def __init__(self, config: Config, metrics: Metrics, blocking: StragglerSource, elements: int) -> None:
        self._metrics, self._blocking = metrics, blocking
        self._alignment = Alignment(elements)
        self._direction: Direction | None = None
        self._last = config.run.max_iterations
        self._clock = IterationClock()
        self.loss: float | None = None

    def step(self, reducer: Reducer, begun: Begun, exchange: Exchange, gradient: Floats) -> Step:
        """Return what the worker computed and measured in an iteration that has ended."""
        handed_s = exchange.handed_s or begun.first_s
        work = Work(
            loss=self.loss,
            gradient=gradient,
            norm2=norm2(gradient),
            agreement=self._alignment.agreement(gradient),
            blocking_s=begun.blocking_s,
            blocked_s=begun.blocked_s,
            aborted=False,
        )
        self._clock.computed(begun.exchange_s)
        self._clock.exchanged(exchange.times, min(begun.exchange_s + exchange.times.total, time.monotonic()))
        self._direction = None
        return Step(
            iteration=begun.iteration,
            started=begun.started,
            first_block_s=begun.first_s - begun.ready_s,
            work=work,
            age=exchange.age,
            catch_up_s=handed_s - begun.first_s if exchange.late else 0.0,
            account=reducer.account(),
            link=reducer.link.report(),
        )

    def applied(self, update: Aggregate, step: Step | None) -> Callable[..., None]:
        """Note that an iteration's mean was applied. `step` is None if this worker took no part in the iteration.

        Return a function that writes the iteration's record. Its arguments are the parameters, whose fingerprint the
        record has.
        """
        direction, now = self._alignment.direction(update.mean), wall_clock.now()
        self._direction = direction if step else self._direction
        self._clock.stepped()
        more = {"injected_mean_s": self._blocking.mean_s(update.iteration), **self._clock.take()}

        def write(*parameters: Array) -> None:
            evaluation = Evaluation(accuracy=None, owned_accuracy=None, params=fingerprint(*parameters))
            self._metrics.write(**iteration_line(update, step, now, direction, evaluation) | more)

        return write

    def jumped(self) -> None:
        """Note that this worker took over another worker's state, and so skipped some iterations."""
        self._alignment.clear()

    def report(self, begun: Begun, step: Step, updates: Sequence[Update]) -> kofn_pb2.Report:
        """Return the report of an iteration.

        `updates` are the iteration's result, followed by the results of later iterations that ended before this worker
        was done.
        """
        assert step.work is not None
        spent_s = time.monotonic() - begun.ready_s
        return report_of_updates(step, step.work, list(updates), self._direction, spent_s, begun.decision)
