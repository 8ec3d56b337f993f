"""What a worker learns, and what it sends of it: the real books, codec and model, or nothing where only time counts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from host.account import Account
from host.age import age_weight_of
from host.aggregate import aggregate
from host.alignment import Direction
from host.coding import Coding
from host.encoder import Encoder, Finished
from host.history import Result
from host.instructions import Deliver, Packed
from host.metrics import Metrics, norm2
from host.pages import Pages
from host.plan import Plan, Planner
from host.shape import Shape
from host.stragglers import Blocking
from host.train import Step, Work, iteration_line
from host.wire import PARTS, WEIGHT_UNIT, WORD_BYTES
from run.config import Config
from run.late import Treatment
from sim.learning import Learning

NOWHERE = Direction(norm2=0.0, products=())


class Sender(Protocol):
    """What of host.encoder.Encoder a worker needs."""

    plan: Plan
    uses: int

    @property
    def blocks(self) -> list[int]:
        """All that the current iteration sends."""

    @property
    def waits(self) -> bool:
        """Whether any gradient is pending."""

    def waits_since(self, iteration: int) -> bool:
        """Whether one is that was begun before this iteration."""

    def begin(self, iteration: int) -> None:
        """The iteration of `plan` begins."""

    def enter_rest(self) -> None:
        """What is not in the books yet."""

    def encode(self, iteration: int) -> None:
        """What the iteration sends."""

    def encode_part(self, iteration: int, open: Collection[int], *, counts: bool) -> tuple[int, list[int]]:
        """Another part of it."""

    def packed(self, block: int, part: int = 0) -> Packed:
        """What is sent of a block."""

    def again(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """The same at another scale, or in other lanes."""

    def left(self, block: int, values: bytes, part: int = 0) -> None:
        """A contribution has left."""

    def settle(self, delivered: Sequence[Deliver], now: float) -> None:
        """A result is here."""

    def narrowed(self, waiting: Iterable[int], iteration: int) -> list[int]:
        """Which of the blocks that wait are to be handed over anew."""

    def follow(self, results: list[Result]) -> Finished:
        """An iteration is over: the next one's plan."""


class Pupil(Protocol):
    """One worker's part in the training; its blocks have this `shape`."""

    shape: Shape
    encoder: Sender
    direction: Direction
    """Of the aggregate of the latest iteration that the worker had a part in."""

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        """The `batch`-th gradient of an iteration."""

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """Into the books, in the iteration that is current by now."""

    def treat(self, treatment: Treatment) -> None:
        """Late gradients from now on."""

    def account(self) -> Account | None:
        """What became of its gradients; None where there are none."""

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        """An iteration is over; why the training is, too, if it is. `step`: what this worker did in it."""


class Student:
    """Trains the configuration's model; writes the worker's metrics."""

    def __init__(self, config: Config, rank: int, learning: Learning, metrics: Metrics) -> None:
        self._config, self._rank, self._learning, self._metrics = config, rank, learning, metrics
        job, compress = config.job, config.compress
        self._coding = Coding.of(job, compress, learning.elements)
        self.shape = shape = self._coding.shape
        self.direction = NOWHERE
        pages = Pages.in_memory(blocks=shape.blocks, lanes=shape.elements)
        self.encoder = Encoder.of(self._coding, compress, pages, rank)
        self._age_limit = config.policy.age_limit
        self._blocking = Blocking(config, rank)

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        """Forward and backward."""
        loss, gradient = self._learning.gradient(self._rank, iteration, batch)
        return Work(
            loss=loss,
            gradient=gradient,
            norm2=norm2(gradient),
            agreement=self._learning.agreement(gradient, iteration),
            blocking_s=blocking_s,
            aborted=False,
        )

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """As the agent does it before it sends."""
        assert work.gradient is not None
        self.encoder.enter(work.gradient, iteration, batch=batch, current=current)

    def treat(self, treatment: Treatment) -> None:
        """As the agent."""
        self.encoder.residual.age = age_weight_of(treatment, self._age_limit)

    def account(self) -> Account | None:
        """As in the books."""
        return self.encoder.residual.account()

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        """Step, accuracy, a line of metrics."""
        learning, run = self._learning, self._config.run
        done = aggregate(finished, self._coding, rank=self._rank, average=learning.average)
        after = learning.apply(done)
        if step is not None:
            self.direction = after.direction
        self._metrics.write(
            **iteration_line(done, step, now, after.direction, after.evaluation),
            injected_mean_s=self._blocking.mean_s(done.iteration),
        )
        if (after.evaluation.accuracy or 0.0) >= run.target_accuracy:
            return "target"
        return "iterations" if done.iteration >= run.max_iterations else None

    def close(self, totals: dict[str, Any]) -> None:
        """The last line, and the books."""
        account = asdict(self.encoder.residual.account())
        self._metrics.write(summary=totals | {"wire_bytes": self.encoder.sent_bytes, "account": account})
        self._metrics.close(self.encoder.residual.books(), self._learning.replica.results)


class Zeros:
    """Zeros in place of an encoder: one packet an iteration, and nothing that waits."""

    blocks = [0]  # noqa: RUF012  # nobody changes it
    uses = 0
    waits = False

    def __init__(self) -> None:
        self.plan = Planner(blocks=1, widths=(32,)).first()
        self._parts = 0  # of the current iteration

    def waits_since(self, iteration: int) -> bool:
        """Nothing does."""
        return False

    def begin(self, iteration: int) -> None:
        """All iterations are alike."""
        self._parts = 0

    def enter_rest(self) -> None:
        """There are no books."""

    def encode(self, iteration: int) -> None:
        """They are zeros."""

    def encode_part(self, iteration: int, open: Collection[int], *, counts: bool) -> tuple[int, list[int]]:
        """One more gradient that counts is as many zeros; one that does not takes no time worth speaking of."""
        if not counts or self._parts == PARTS - 1:
            return 0, []
        self._parts += 1
        return self._parts, [*open]

    def packed(self, block: int, part: int = 0) -> Packed:
        """Zeros, which stand for one gradient."""
        return self.again(block, 0, 0, 0)

    def again(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Zeros at any scale."""
        return Packed(bytes(WORD_BYTES), scale, lanes, WEIGHT_UNIT)

    def left(self, block: int, values: bytes, part: int = 0) -> None:
        """Nobody counts."""

    def settle(self, delivered: Sequence[Deliver], now: float) -> None:
        """There are no books."""

    def narrowed(self, waiting: Iterable[int], iteration: int) -> list[int]:
        """Never any."""
        return []

    def follow(self, results: list[Result]) -> Finished:
        """All plans are alike."""
        return Finished(results, self.plan, self.plan, None)


def nothing(blocking_s: float, *, aborted: bool) -> Work:
    """There is no gradient."""
    return Work(loss=0.0, gradient=None, norm2=0.0, agreement=0.0, blocking_s=blocking_s, aborted=aborted)


class Idler:
    """Sends nothing but zeros and learns nothing: only times are asked for."""

    shape = Shape(blocks=1, words=1, widest=32)
    direction = NOWHERE

    def __init__(self, config: Config) -> None:
        self._last = config.run.max_iterations
        self.encoder = Zeros()

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        """There is no gradient."""
        return nothing(blocking_s, aborted=False)

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """There are no books."""

    def treat(self, treatment: Treatment) -> None:
        """There are none."""

    def account(self) -> Account | None:
        """None."""
        return None

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        """Only the last iteration ends it."""
        return "iterations" if finished.results[0].id.iteration >= self._last else None
