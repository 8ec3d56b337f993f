"""What a worker learns, and what it sends of it: the real books, codec and model, or nothing where only time counts."""

from typing import Any, NamedTuple, Protocol

from host.aggregate import aggregate
from host.alignment import Direction
from host.compress import FixedPoint, to_fixed
from host.history import Result
from host.lanes import pack
from host.metrics import Metrics, norm2
from host.pages import Pages
from host.residual import Residual
from host.stragglers import Blocking
from host.train import Step, Work, discarded, iteration_line
from host.wire import WORD_BYTES, WORD_LANES
from run.config import Config
from sim.learning import Learning

NOWHERE = Direction(norm2=0.0, products=())


class Packed(NamedTuple):
    """What is sent of a block."""

    values: bytes
    scale: int
    gradients: int


class Pupil(Protocol):
    """One worker's part in the training; blocks of `words` 256-byte words."""

    blocks: int
    words: int
    direction: Direction
    """Of the aggregate of the latest iteration that the worker had a part in."""

    def compute(self, iteration: int, blocking_s: float) -> Work:
        """The iteration's gradient."""

    def enter(self, work: Work, iteration: int) -> None:
        """Into the books, and onto the wire."""

    def packed(self, block: int) -> Packed:
        """What is sent of a block."""

    def encode_again(self, block: int, iteration: int, scale: int) -> Packed:
        """The same at another scale."""

    def settle(self, result: Result) -> None:
        """A result is here."""

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """An iteration is over; why the training is, too, if it is. `step`: what this worker did in it."""


class Student:
    """Trains the configuration's model; writes the worker's metrics."""

    def __init__(self, config: Config, rank: int, learning: Learning, metrics: Metrics) -> None:
        self._config, self._rank, self._learning, self._metrics = config, rank, learning, metrics
        self.words = config.job.words
        lanes = self.words * WORD_LANES
        self.blocks = learning.replica.results.size // lanes
        self.direction = NOWHERE
        self._codec = FixedPoint(workers=config.job.workers, gradient_range=config.job.gradient_range)
        pages = Pages.in_memory(blocks=self.blocks, lanes=lanes)
        self._residual = Residual(pages, rank, drop=config.policy.late == "drop")
        self._blocking = Blocking(config, rank)

    def compute(self, iteration: int, blocking_s: float) -> Work:
        """Forward and backward."""
        loss, gradient = self._learning.gradient(self._rank, iteration)
        return Work(loss=loss, gradient=gradient, norm2=norm2(gradient), blocking_s=blocking_s, aborted=False)

    def enter(self, work: Work, iteration: int) -> None:
        """As the agent does it before it sends."""
        assert work.gradient is not None
        self._residual.add(to_fixed(work.gradient), iteration)
        self._residual.sending(iteration, self._codec)
        self._residual.discard_late()

    def packed(self, block: int) -> Packed:
        """All that is pending."""
        books = self._residual
        return Packed(pack(books.sent[block], 32), int(books.sent_scale[block]), books.sent_gradients(block))

    def encode_again(self, block: int, iteration: int, scale: int) -> Packed:
        """The block's slot sums at another scale."""
        self._residual.send_again(block, iteration, self._codec, scale)
        return self.packed(block)

    def settle(self, result: Result) -> None:
        """What it holds of this worker is counted."""
        self._residual.settle(result)

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """Step, accuracy, a line of metrics."""
        learning, run = self._learning, self._config.run
        done = aggregate(results, rank=self._rank, elements=learning.elements, average=learning.average)
        after = learning.apply(done)
        if step is not None:
            self.direction = after.direction
        self._metrics.write(
            **iteration_line(done, step, now, after.direction, after.evaluation),
            injected_mean_s=self._blocking.mean_s(done.iteration),
            discarded=discarded(done, step, self._config.policy.late),
        )
        if after.evaluation.accuracy >= run.target_accuracy:
            return "target"
        return "iterations" if done.iteration >= run.max_iterations else None

    def close(self, totals: dict[str, Any]) -> None:
        """The last line, and the books."""
        self._metrics.write(summary=totals)
        self._metrics.close(self._residual.books(), self._learning.replica.results)


class Idler:
    """Sends nothing but zeros, one packet an iteration, and learns nothing: only times are asked for."""

    blocks = words = 1
    direction = NOWHERE

    def __init__(self, config: Config) -> None:
        self._last = config.run.max_iterations
        self._values = bytes(WORD_BYTES)

    def compute(self, iteration: int, blocking_s: float) -> Work:
        """There is no gradient."""
        return Work(loss=0.0, gradient=None, norm2=0.0, blocking_s=blocking_s, aborted=False)

    def enter(self, work: Work, iteration: int) -> None:
        """There are no books."""

    def packed(self, block: int) -> Packed:
        """Zeros, which stand for one gradient."""
        return Packed(self._values, 0, 1)

    def encode_again(self, block: int, iteration: int, scale: int) -> Packed:
        """Zeros at any scale."""
        return Packed(self._values, scale, 1)

    def settle(self, result: Result) -> None:
        """There are no books."""

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """Only the last iteration ends it."""
        return "iterations" if results[0].id.iteration >= self._last else None
