"""What the trainings of `kofn experiment codecs` show: figures for each variant over the seeds.

Knows no files: what every training did in, numbers out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Self

from run.codecs.variants import Variant
from run.spread import Spread, reached
from run.summary import PassSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One variant with one seed."""

    seed: int
    summary: PassSummary
    accuracy: float
    """In the end."""
    iteration_s: tuple[float, ...]
    """Of every iteration."""
    changed_in: int | None = None
    """The iteration in which a link's rate changed; None where none has."""

    @property
    def before_s(self) -> float:
        """Median time of the iterations before the change, of which the first has much to do; infinite without any."""
        before = self.iteration_s[: (self.changed_in or 1) - 1]
        return median(before) if before else math.inf

    @property
    def change_s(self) -> float:
        """Time of the iteration of the change; infinite where it never came."""
        return math.inf if self.changed_in is None else self.iteration_s[self.changed_in - 1]

    @property
    def after_s(self) -> float:
        """Mean time of those after it; infinite where there are none."""
        after = () if self.changed_in is None else self.iteration_s[self.changed_in :]
        return fmean(after) if after else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant over its seeds, in their order; iterations are infinite where the target was not reached."""

    variant: Variant
    target_accuracy: float
    seeds: tuple[int, ...]
    reached: int
    """How many trainings came to the target accuracy."""
    iterations_by_seed: tuple[float, ...]
    iterations: Spread
    accuracy: Spread
    """In the end."""
    bytes_sent: Spread
    """Of all workers, headers and retransmissions included."""
    wire_ratio: Spread | None
    """Bytes of gradients over those in float32; this and the next are None where the workers did not say."""
    error: Spread | None
    """Norm of what encoding left over, over that of the gradient."""
    residual: Spread | None
    """Norm of what was pending after an iteration, likewise."""
    before_s: Spread
    """Iteration times around a link's change: median before, of the change, mean after; infinite without one."""
    change_s: Spread
    after_s: Spread
    change_by_seed_s: tuple[float, ...]
    after_by_seed_s: tuple[float, ...]
    failures: tuple[str, ...]
    """What is wrong with a training, other than that it missed the target."""

    @classmethod
    def of(cls, variant: Variant, trainings: Sequence[Training], target_accuracy: float) -> Self:
        """Of one training or more."""
        summaries = [training.summary for training in trainings]
        counts = reached(one.iterations_to_target for one in summaries)
        sent = [one.compressed for one in summaries if one.compressed]
        changes = [training.change_s for training in trainings]
        afters = [training.after_s for training in trainings]
        return cls(
            variant=variant,
            target_accuracy=target_accuracy,
            seeds=tuple(training.seed for training in trainings),
            reached=sum(map(math.isfinite, counts)),
            iterations_by_seed=tuple(counts),
            iterations=Spread.of(counts),
            accuracy=Spread.of([training.accuracy for training in trainings]),
            bytes_sent=Spread.of([one.bytes_sent for one in summaries]),
            wire_ratio=Spread.of_known(one.wire_ratio for one in sent),
            error=Spread.of_known(one.error for one in sent),
            residual=Spread.of_known(one.residual for one in sent),
            before_s=Spread.of([training.before_s for training in trainings]),
            change_s=Spread.of(changes),
            after_s=Spread.of(afters),
            change_by_seed_s=tuple(changes),
            after_by_seed_s=tuple(afters),
            failures=tuple(why for one in summaries for why in one.broken),
        )

    def against(self, other: "Row") -> float:
        """Median of the seeds' ratios of iterations to the target; infinite where it was not reached."""
        pairs = _pairs(self, other, lambda row: row.iterations_by_seed)
        ratios = [mine / theirs if math.isfinite(mine) else math.inf for mine, theirs in pairs]
        return median(ratios) if ratios else math.inf

    def shorter_change(self, other: "Row") -> float:
        """How many times shorter than the other's the iteration of the change is, in the median of the seeds."""
        return _shorter(_pairs(self, other, lambda row: row.change_by_seed_s))

    def shorter_after(self, other: "Row") -> float:
        """The same for the iterations after it."""
        return _shorter(_pairs(self, other, lambda row: row.after_by_seed_s))

    def problems(self) -> list[str]:
        """Why the experiment is not as it should be; without feedback a missed target is a finding."""
        name = self.variant.name
        reasons = [f"{name}: {why}" for why in self.failures]
        if self.variant.feedback and self.reached < len(self.seeds):
            missed = f"{len(self.seeds) - self.reached} of {len(self.seeds)}"
            reasons.append(f"{name}: {missed} did not reach {self.target_accuracy:.1%}")
        return reasons


def _pairs(one: Row, other: Row, value: Callable[[Row], Sequence[float]]) -> list[tuple[float, float]]:
    """Both rows' figures of every seed that both have."""
    theirs = dict(zip(other.seeds, value(other), strict=True))
    return [(mine, theirs[seed]) for seed, mine in zip(one.seeds, value(one), strict=True) if seed in theirs]


def _shorter(pairs: Sequence[tuple[float, float]]) -> float:
    """Median of second over first; 0 for a seed of which one is not known, and without any seed."""
    known = [theirs / mine if math.isfinite(mine) and math.isfinite(theirs) else 0.0 for mine, theirs in pairs]
    return median(known) if known else 0.0
