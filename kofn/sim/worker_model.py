"""A worker's learning and encoding: the real ledger, codec and model, or none of them if only times count."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from kofn.sim.learning import Learning
from kofn_common.config.late_rules import LatePolicy
from kofn_common.config.schema import Config
from kofn_common.results.account import Account
from kofn_common.wire.packet import WORD_BYTES
from kofn_common.wire.sizes import PARTS, WEIGHT_UNIT
from kofn_host.agent.driver import Sender
from kofn_host.arrays import Floats64, Integers
from kofn_host.compression.age_weight import AgeWeight
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.alignment import Direction
from kofn_host.compression.encoder import Encoder, Finished
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.compression.plan import Planner
from kofn_host.kernels.sample import norm2
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Packed, PackedBlocks
from kofn_host.protocol.results import BlockResults
from kofn_host.training import DIVERGED, JobCoding, Metrics, Step
from kofn_host.training.loop import Work, iteration_line
from kofn_host.workload import load_stragglers, metric_of

NOWHERE = Direction(norm2=0.0, products=())


class WorkerModel(Protocol):
    """A worker's part in the training."""

    layout: BlockLayout
    encoder: Sender
    direction: Direction
    """The direction of the latest aggregate in which the worker had a part."""

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        """Return gradient number `batch` of an iteration."""

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """Enter a gradient into the ledger, in the current iteration."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Set the policy for late gradients."""

    def account(self) -> Account | None:
        """Return the account of the worker's gradients; None without gradients."""

    def delivered(self, results: BlockResults) -> None:
        """Take closed blocks of the current iteration."""

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        """Apply an ended iteration, with this worker's `step` in it. If the training is over, return the reason."""


class RingModel(Protocol):
    """The part in the training of a worker of a ring, whose gradients have `elements` elements."""

    elements: int
    direction: Direction

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        """Return gradient number `batch` of an iteration."""

    def mean(self, iteration: int, works: Sequence[Work]) -> Aggregate:
        """Return the aggregate of all workers' gradients, by rank."""

    def step(self, done: Aggregate, step: Step | None, now: float) -> str | None:
        """Apply an aggregate, with this worker's `step` in it. If the training is over, return the reason."""


class LearningModel:
    """Trains the configuration's model; writes the worker's metrics. Every gradient is in its iteration's sum."""

    def __init__(self, config: Config, rank: int, learning: Learning, metrics: Metrics) -> None:
        self._config, self._rank, self._learning, self._metrics = config, rank, learning, metrics
        self.elements, self.direction = learning.elements, NOWHERE
        self._blocking = load_stragglers(config, rank)
        self._metric = metric_of(config)

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        loss, gradient = self._learning.gradient(self._rank, iteration, batch)
        longer_s = self._blocking.compute_s(iteration) - self._config.model.compute_ms / 1000
        return Work(
            loss=loss,
            gradient=gradient,
            norm2=norm2(gradient),
            agreement=self._learning.agreement(gradient, iteration),
            blocking_s=blocking_s,
            blocked_s=max(0.0, blocking_s + longer_s),
            aborted=False,
        )

    def mean(self, iteration: int, works: Sequence[Work]) -> Aggregate:
        return self._learning.mean(iteration, [work.gradient for work in works if work.gradient is not None])

    def step(self, done: Aggregate, step: Step | None, now: float) -> str | None:
        """Step, evaluate, and write a line of metrics."""
        after = self._learning.apply(done)
        if step is not None:
            self.direction = after.direction
        self._metrics.write(
            **iteration_line(done, step, now, after.direction, after.evaluation),
            injected_mean_s=self._blocking.mean_s(done.iteration),
        )
        if after.diverged:
            return DIVERGED
        if self._metric is not None and self._metric.reached(after.evaluation.accuracy):
            return "target"
        return "iterations" if done.iteration >= self._config.run.max_iterations else None

    def close(self, totals: Mapping[str, Any]) -> None:
        """Write the last line of the metrics, and the file of the ledger's sums if there is a ledger."""
        account = self.account()
        self._metrics.write(summary={**totals, "account": account and asdict(account)})
        self._metrics.close(self._sums(), self._learning.replica.results)

    def account(self) -> Account | None:
        """Return the account of the worker's gradients; None without a ledger."""
        return None

    def _sums(self) -> LedgerTotals | None:
        return None


class TrainingModel(LearningModel):
    """Trains with gradients that are encoded, and that may stay pending in a ledger."""

    def __init__(self, config: Config, rank: int, learning: Learning, metrics: Metrics) -> None:
        super().__init__(config, rank, learning, metrics)
        coding = JobCoding.of(config.job, config.compress, learning.elements, follows=True)
        self.layout = coding.layout
        self.encoder = Encoder.of(coding, config.compress, rank)
        self.encoder.ledger.age = AgeWeight(limit=config.policy.age_limit)

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """Enter a gradient as the agent does before it sends."""
        assert work.gradient is not None
        self.encoder.enter(work.gradient, iteration, batch=batch, current=current)

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        self.encoder.ledger.age = self.encoder.ledger.age.under(late_policy)

    def account(self) -> Account | None:
        return self.encoder.ledger.accounts.account()

    def delivered(self, results: BlockResults) -> None:
        self._learning.take(results, self.encoder.plan)

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        return self.step(self._learning.aggregate(finished, self._rank), step, now)

    def _sums(self) -> LedgerTotals | None:
        return self.encoder.ledger.accounts.totals()


class Zeros:
    """Zeros in place of an encoder: one packet an iteration, and no residual."""

    blocks = [0]  # noqa: RUF012  # never changed
    current_lanes = 0
    slice_blocks = 1
    late = False
    awaits_pieces = False

    def __init__(self) -> None:
        self.plan = Planner(blocks=1, widths=(32,)).first()
        self._parts = 0  # further gradients in the current iteration

    def begin(self, iteration: int) -> None:
        self._parts = 0

    def enter_rest(self) -> None:
        """Do nothing: there is no ledger."""

    def slices(self, iteration: int) -> Iterator[list[int]]:
        yield self.blocks

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode a further counted gradient as zeros; gradients that do not count take no time."""
        if missed or self._parts == PARTS - 1:
            return 0, []
        self._parts += 1
        return self._parts, [*open]

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """Return zeros, which stand for a gradient."""
        return PackedBlocks.of([(block, self.reencode(block, 0, 0, 0)) for block in blocks])

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        return Packed(bytes(WORD_BYTES), scale, lanes, WEIGHT_UNIT)

    def settle(self, results: BlockResults, hints: Integers, times: Floats64) -> None:
        """Do nothing: there is no ledger."""

    narrows = False
    fresh: Collection[int] = ()

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        return []

    def follow(self, results: BlockResults, wire_bytes: int) -> Finished:
        return Finished(results, self.plan, self.plan, None)


def nothing(blocking_s: float, *, aborted: bool) -> Work:
    return Work(
        loss=0.0, gradient=None, norm2=0.0, agreement=0.0, blocking_s=blocking_s, blocked_s=blocking_s, aborted=aborted
    )


class TimingModel:
    """Sends zeros and learns nothing, for simulations of times alone."""

    layout = BlockLayout(blocks=1, words=1, widest=32)
    direction = NOWHERE
    elements = WORD_BYTES // 4

    def __init__(self, config: Config) -> None:
        self._last = config.run.max_iterations
        self.encoder = Zeros()

    def compute(self, iteration: int, batch: int, blocking_s: float) -> Work:
        return nothing(blocking_s, aborted=False)

    def enter(self, work: Work, iteration: int, batch: int, current: int) -> None:
        """Do nothing: there is no ledger."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Do nothing: there are no late gradients."""

    def delivered(self, results: BlockResults) -> None:
        """Do nothing: a result teaches nothing."""

    def account(self) -> Account | None:
        return None

    def apply(self, finished: Finished, step: Step | None, now: float) -> str | None:
        """Return the reason of the end after the last iteration."""
        return self._reason(finished.results.iteration)

    def mean(self, iteration: int, works: Sequence[Work]) -> Aggregate:
        return Aggregate.of_all(iteration, np.zeros(0, np.float32), len(works), self.encoder.plan)

    def step(self, done: Aggregate, step: Step | None, now: float) -> str | None:
        """Return the reason of the end after the last iteration."""
        return self._reason(done.iteration)

    def _reason(self, iteration: int) -> str | None:
        return "iterations" if iteration >= self._last else None
