"""What all workers have agreed on without asking: which blocks an iteration sends, in which lanes, at which scale.

Before an iteration begins every worker has all results of the one before.  So the plan after these is a function of
the plan before and of the summary block that is among them (compression.summary_block), and of nothing else; it is the
same to the bit on every worker.  Therefore only integers are in it and float64 that IEEE 754 defines to the last bit:
products, quotients and square roots, in a fixed order.

With a ratio below what the lanes give, a share of the blocks is sent: those that are expected to hold most.  No block
rests longer than `every` iterations, and they are not all due at once: so many of those that rest longest are sent
before all others as are needed for the rest of them to be in time, if later iterations send as many blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats64, Integers
from kofn.host.compression.codec import Codec
from kofn.host.compression.encoding_error import expected_error
from kofn.host.compression.rate import lanes_for
from kofn.host.compression.summary_block import ONE, Magnitudes, SummaryBlock
from kofn.host.errors import ProtocolError
from kofn.host.kernels.lanes import code_of, width_of

SLACK = 1 / 16
"""By so much a mean of wishes may fall short of lanes that all but a few workers wish for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What one iteration sends, of B blocks.

    `blocks`, ascending, in lanes of this code (wire.packet.Lanes); `gap`, (B,): for how many iterations each brings
    gradients if it is sent, 1 where it was in the one before; `ratio`: the share of the gradient's bytes that is asked
    for, in units of 2**-16; `owed`: what whole blocks have left of it, in bits times 2**-16, for the next plan;
    `expected`: what all workers expect to be pending, None before the first summary; `first`: how many blocks were sent
    before, from which the slots follow.
    """

    lanes: int
    ratio: int
    owed: int = 0
    blocks: Integers
    gap: Integers
    expected: Magnitudes | None
    first: int = 0

    def to_arrays(self) -> dict[str, Integers | Floats64]:
        """For a replica's state; of the same shapes for all plans of a job."""
        sent = np.isin(np.arange(len(self.gap)), self.blocks)
        known = self.expected or Magnitudes(mean=np.zeros(len(self.gap)), largest=np.zeros(len(self.gap)))
        head = [self.lanes, self.ratio, self.expected is not None, self.first, self.owed]
        return {
            "plan": np.concatenate([head, sent, self.gap]).astype(np.int64),
            "expected": np.stack([known.mean, known.largest]).ravel(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """What to_arrays() made; ProtocolError where it is not there."""
        if missing := [name for name in ("plan", "expected") if name not in arrays]:
            raise ProtocolError(f"a replica's state has no {' and no '.join(missing)}: of another version?")
        lanes, ratio, agreed, first, owed = (int(number) for number in arrays["plan"][:5])
        sent, gap = arrays["plan"][5:].reshape(2, -1).astype(np.int64)
        mean, largest = arrays["expected"].reshape(2, -1).astype(np.float64)
        expected = Magnitudes(mean=mean, largest=largest) if agreed else None
        blocks = np.flatnonzero(sent)
        return cls(lanes=lanes, ratio=ratio, owed=owed, blocks=blocks, gap=gap, expected=expected, first=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A job's plans: for `blocks` blocks in lanes of `widths` bits, widest first.

    `follows`: lanes of 32 bits have a scale that follows the gradients, which change little from one iteration to the
    next.  Without a summary block, the next plan expects what the sums of the last iteration had.
    `ratio`: of the float32 gradient's bytes; with `adaptive` only the first iteration's, and then the mean of what the
    workers wish.
    `summary_bits`: what the summary block takes of a ratio that leaves blocks out, over a block's elements, in bits
    times 2**-16.

    A wish narrows lanes only as far as they are expected to leave over at most `error_max` of the gradient's squared
    norm (compression.encoding_error); `codecs`, by their lanes' code, say how much that is, and without them nothing
    does. Lanes as narrow as `ratio` asks for are always allowed.  Where a wish asks for lanes that are not, all blocks
    are sent in those that are: leaving blocks out instead costs more iterations.
    """

    blocks: int
    widths: tuple[int, ...]
    ratio: float = 1.0
    every: int = 8
    adaptive: bool = False
    summary_bits: int = 0
    follows: bool = False
    codecs: Mapping[int, Codec] = field(default_factory=dict)
    error_max: float = 1.0

    def first(self) -> Plan:
        """The first iteration's: nobody knows yet which blocks hold most, or which scale suits."""
        return self._plan(self._own_ratio, np.ones(self.blocks, np.int64), None)

    def after_sums(self, plan: Plan, largest: Floats64) -> Plan:
        """Return the next plan where it `follows`, after sums with these largest magnitudes of a mean addend (B,).

        It is coarser at once, and finer by one bit an iteration.
        """
        zeros = np.zeros(self.blocks)
        before = zeros if plan.expected is None else plan.expected.largest
        return replace(plan, expected=Magnitudes(mean=zeros, largest=np.maximum(largest, before / 2)))

    def after(self, plan: Plan, summary: SummaryBlock) -> Plan:
        """Return the next plan, after an iteration whose results have this summary block."""
        gap = plan.gap + 1
        gap[plan.blocks] = 1
        grown = np.sqrt(gap / plan.gap)  # gradients of several iterations add up like noise, mostly
        magnitudes = summary.magnitudes
        expected = Magnitudes(mean=magnitudes.mean * grown, largest=magnitudes.largest * grown)
        wish = round(summary.wish * (1 + SLACK))
        ratio = min(max(wish, 1), ONE) if self.adaptive else self._own_ratio
        return self._plan(ratio, gap, expected, plan.owed)

    def asked(self, ratio: float) -> int:
        """Bits of the lanes that a ratio of the float32 gradient's bytes asks for."""
        return lanes_for(ratio, self.widths)

    def narrowest(self, magnitudes: Magnitudes | None) -> int:
        """Bits of the narrowest lanes that a gradient with these magnitudes bears."""
        allowed = self.asked(self.ratio)
        return next(
            width
            for width in reversed(self.widths)
            if width >= allowed or self.error(width, magnitudes) <= self.error_max
        )

    def error(self, width: int, magnitudes: Magnitudes | None) -> float:
        """Share of the squared norm that lanes of so many bits are expected to leave over; 0 where nothing is known."""
        codec = self.codecs.get(code_of(width))
        return 0.0 if codec is None or magnitudes is None else expected_error(codec, magnitudes)

    def refused(self, plan: Plan) -> tuple[int, float] | None:
        """Bits of narrower lanes that a plan's ratio asked for in vain, and what they would have left over."""
        width = self.asked(plan.ratio / ONE)
        return (width, self.error(width, plan.expected)) if width < width_of(plan.lanes) else None

    @property
    def _own_ratio(self) -> int:
        return max(1, round(self.ratio * ONE))

    def _plan(self, ratio: int, gap: Integers, expected: Magnitudes | None, owed: int = 0) -> Plan:
        asked = self.asked(ratio / ONE)
        width = max(asked, self.narrowest(expected))
        bits, block_bits = self.blocks * ratio * 32, width * ONE
        chosen, left = np.arange(self.blocks), 0
        if width == asked and bits < self.blocks * block_bits:
            bits, least = max(0, bits - self.summary_bits), -(-self.blocks // self.every)
            count, left = divmod(bits + owed, block_bits)
            if not least <= count < self.blocks:
                count, left = max(least, min(count, self.blocks)), 0
            if count < self.blocks:
                chosen = self._chosen(count, max(least, bits // block_bits), gap, expected)
        return Plan(lanes=code_of(width), ratio=ratio, owed=left, blocks=chosen, gap=gap, expected=expected)

    def _chosen(self, count: int, steady: int, gap: Integers, expected: Magnitudes | None) -> Integers:
        """At least `count` blocks, ascending: those that are due if each later iteration sends `steady` ones, then
        those that are expected to hold most."""
        left = np.maximum(self.every - gap, 0)  # iterations that each may still be left out
        hold = np.zeros(self.blocks) if expected is None else -expected.mean
        longest_first = np.lexsort((hold, left))  # stable: ties by number
        waiting = np.cumsum(np.bincount(left, minlength=self.every))  # blocks that may be left out so often or less
        due = max(0, int((waiting - steady * np.arange(len(waiting))).max()))
        first, others = longest_first[:due], np.sort(longest_first[due:])
        most_first = others[np.argsort(hold[others], kind="stable")]
        return np.sort(np.concatenate([first, most_first[: max(0, count - due)]]))
