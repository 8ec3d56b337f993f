"""What a worker learns, and what it sends of it: the real books, codec and model, or nothing where only time counts."""

from typing import Protocol

from host.aggregate import Aggregate, aggregate
from host.compress import FixedPoint, to_fixed
from host.history import Result
from host.metrics import Metrics
from host.pages import Pages
from host.residual import Books, Residual
from host.stragglers import Blocking
from host.train import Step, iteration_line
from host.wire import WORD_BYTES, WORD_LANES, pack_values
from run.config import Config
from sim.learning import Learning


class Pupil(Protocol):
    """One worker's part in the training; blocks of `words` 256-byte words."""

    blocks: int
    words: int

    def compute(self, iteration: int) -> float | None:
        """The iteration's gradient; its loss."""

    def packed(self, block: int) -> tuple[bytes, int]:
        """What is sent of a block, and its scale."""

    def encode_again(self, block: int, iteration: int, scale: int) -> bytes:
        """The same at another scale."""

    def settle(self, result: Result) -> None:
        """A result is here."""

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """An iteration is over; why the training is, too, if it is. `step`: what this worker did in it."""


class Student:
    """Trains the configuration's model; writes the worker's metrics."""

    def __init__(self, config: Config, rank: int, learning: Learning, metrics: Metrics) -> None:
        self._run, self._rank, self._learning, self._metrics = config.run, rank, learning, metrics
        self.words = config.job.words
        lanes = self.words * WORD_LANES
        self.blocks = learning.replica.results.size // lanes
        self._codec = FixedPoint(workers=config.job.workers, gradient_range=config.job.gradient_range)
        self._residual = Residual(Pages.in_memory(blocks=self.blocks, lanes=lanes), rank)
        self._blocking = Blocking(config, rank)

    def compute(self, iteration: int) -> float | None:
        """Forward, backward, into the books, onto the wire."""
        loss, gradient = self._learning.gradient(self._rank, iteration)
        self._residual.add(to_fixed(gradient), iteration)
        self._residual.sending(iteration, self._codec)
        return loss

    def packed(self, block: int) -> tuple[bytes, int]:
        """All that is pending."""
        return pack_values(self._residual.sent[block]), int(self._residual.sent_scale[block])

    def encode_again(self, block: int, iteration: int, scale: int) -> bytes:
        """The block's slot sums at another scale."""
        self._residual.send_again(block, iteration, self._codec, scale)
        return pack_values(self._residual.sent[block])

    def settle(self, result: Result) -> None:
        """What it holds of this worker is counted."""
        self._residual.settle(result)

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """Step, accuracy, a line of metrics."""
        done = aggregate(results, rank=self._rank, elements=self._learning.elements)
        after = self._learning.apply(done)
        injected_s = self._blocking.mean_s(done.iteration)
        self._metrics.write(**iteration_line(done, step, now, after.accuracy, after.params, injected_s))
        if after.accuracy >= self._run.target_accuracy:
            return "target"
        return "iterations" if done.iteration >= self._run.max_iterations else None

    def close(self, totals: dict[str, object]) -> Books:
        """The last line, and the books."""
        self._metrics.write(summary=totals)
        books = self._residual.books()
        self._metrics.close(books, self._learning.replica.results)
        return books


class Idler:
    """Sends nothing but zeros, one packet an iteration, and learns nothing: only times are asked for."""

    blocks = words = 1

    def __init__(self, config: Config) -> None:
        self._last = config.run.max_iterations
        self._values = bytes(WORD_BYTES)

    def compute(self, iteration: int) -> float | None:
        """There is no gradient."""
        return None

    def packed(self, block: int) -> tuple[bytes, int]:
        """Zeros."""
        return self._values, 0

    def encode_again(self, block: int, iteration: int, scale: int) -> bytes:
        """Zeros at any scale."""
        return self._values

    def settle(self, result: Result) -> None:
        """There are no books."""

    def apply(self, results: list[Result], step: Step | None, now: float) -> str | None:
        """Only the last iteration ends it."""
        return "iterations" if results[0].id.iteration >= self._last else None
