"""The plan of an iteration: which blocks are sent, in which lanes and at which scale.

All workers derive the same plan without messages.  Before an iteration begins, every worker has all results of the
previous iteration.  The next plan depends only on the previous plan and on the summary block in these results
(compression.summary_block), and is bit-identical on every worker.  So it uses only integers and exactly defined float64
operations (IEEE 754): products, quotients and square roots, in a fixed order.

If the ratio asks for fewer bytes than all blocks have in the chosen lanes, only a share of the blocks is sent: the
blocks with the largest expected values.  An omitted block rests.  No block rests longer than `every` iterations
(compress.max_send_interval).  Too many blocks must never be due at once. So an iteration first sends some of the
longest resting blocks: as many as necessary for later iterations of the same size to send all other blocks in time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats64, Integers
from kofn_host.compression.codec import Codec
from kofn_host.compression.encoding_error import expected_error
from kofn_host.compression.rate import lanes_for
from kofn_host.compression.summary_block import ONE, Magnitudes, SummaryBlock
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import code_of, width_of

SLACK = 1 / 16
"""The share by which the mean wish is raised, so that a few workers with a smaller wish do not narrow the lanes that
nearly all workers wish for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The blocks that one iteration sends, out of B.

    `blocks`: their numbers, ascending; `lanes`: the code of their lanes (wire.packet.Lanes); `gap`, (B,): the number of
    iterations whose gradients a block carries if it is sent, 1 if the previous iteration sent it; `ratio`: the
    requested share of the gradient's bytes, in units of 2**-16; `owed`: the unused rest of that share, in bits times
    2**-16, for the next plan; `expected`: the expected pending magnitudes, None before the first summary; `first`: the
    number of blocks sent in all earlier iterations, which determines the slots.
    """

    lanes: int
    ratio: int
    owed: int = 0
    blocks: Integers
    gap: Integers
    expected: Magnitudes | None
    first: int = 0

    def to_arrays(self) -> dict[str, Integers | Floats64]:
        """Return arrays for a replica's state, with the same shapes for all plans of a job."""
        sent = np.isin(np.arange(len(self.gap)), self.blocks)
        known = self.expected or Magnitudes(mean=np.zeros(len(self.gap)), largest=np.zeros(len(self.gap)))
        head = [self.lanes, self.ratio, self.expected is not None, self.first, self.owed]
        return {
            "plan": np.concatenate([head, sent, self.gap]).astype(np.int64),
            "expected": np.stack([known.mean, known.largest]).ravel(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """Return the plan from the arrays of to_arrays(); ProtocolError if they are missing."""
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
    """Makes a job's plans, for `blocks` blocks in lanes of `widths` bits, widest first.

    `follows`: the scale of 32-bit lanes follows the gradients, which change little between iterations.  Without a
    summary block, the next plan expects the magnitudes of the last iteration's sums.
    `ratio`: the share of the float32 gradient's bytes.  With `adaptive` it applies to the first iteration only; later
    the workers' mean wish replaces it.
    `summary_bits`: the size of the summary block per element of a block, in units of 2**-16 bits.  A plan that omits
    blocks subtracts this size from the bits that the ratio allows.

    A wish narrows lanes only while the expected error of the narrower lanes is at most `error_max` of the gradient's
    squared norm (compression.encoding_error).  `codecs`, by their lanes' code, predict the error; without codecs the
    error counts as 0. Lanes as narrow as `ratio` asks for are always possible.  If a wish asks for narrower lanes than
    are acceptable, all blocks are sent in the narrowest acceptable lanes: omitting blocks instead would cost more
    iterations.
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
        """Return the first iteration's plan: largest blocks and scales are not known yet."""
        return self._plan(self._own_ratio, np.ones(self.blocks, np.int64), None)

    def after_sums(self, plan: Plan, largest: Floats64) -> Plan:
        """Return the next plan of a planner that `follows`, after sums with these magnitudes.

        `largest`, (B,): the largest magnitude of each block's mean addend.  The plan's scale becomes coarser at once,
        but finer by at most one bit per iteration.
        """
        zeros = np.zeros(self.blocks)
        before = zeros if plan.expected is None else plan.expected.largest
        return replace(plan, expected=Magnitudes(mean=zeros, largest=np.maximum(largest, before / 2)))

    def after(self, plan: Plan, summary: SummaryBlock) -> Plan:
        """Return the next plan, after an iteration with this summary block."""
        gap = plan.gap + 1
        gap[plan.blocks] = 1
        grown = np.sqrt(gap / plan.gap)  # gradients of several iterations add up mostly like noise
        magnitudes = summary.magnitudes
        expected = Magnitudes(mean=magnitudes.mean * grown, largest=magnitudes.largest * grown)
        wish = round(summary.wish * (1 + SLACK))
        ratio = min(max(wish, 1), ONE) if self.adaptive else self._own_ratio
        return self._plan(ratio, gap, expected, plan.owed)

    def asked(self, ratio: float) -> int:
        """Return the bits of the lanes for this ratio of the float32 gradient's bytes."""
        return lanes_for(ratio, self.widths)

    def narrowest(self, magnitudes: Magnitudes | None) -> int:
        """Return the bits of the narrowest acceptable lanes for a gradient with these magnitudes."""
        allowed = self.asked(self.ratio)
        return next(
            width
            for width in reversed(self.widths)
            if width >= allowed or self.error(width, magnitudes) <= self.error_max
        )

    def error(self, width: int, magnitudes: Magnitudes | None) -> float:
        """Return the expected error of lanes of this width as a share of the squared norm; 0 if unknown."""
        codec = self.codecs.get(code_of(width))
        return 0.0 if codec is None or magnitudes is None else expected_error(codec, magnitudes)

    def refused(self, plan: Plan) -> tuple[int, float] | None:
        """Return the bits of narrower lanes that a plan's ratio asked for in vain, and their error."""
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
        """Return at least `count` blocks, ascending.

        First come the blocks that are due if each later iteration sends `steady` blocks, then the blocks with the
        largest expected values.
        """
        left = np.maximum(self.every - gap, 0)  # iterations that each block may still rest
        hold = np.zeros(self.blocks) if expected is None else -expected.mean
        longest_first = np.lexsort((hold, left))  # stable: ties by number
        waiting = np.cumsum(np.bincount(left, minlength=self.every))  # blocks that may rest that long at most
        due = max(0, int((waiting - steady * np.arange(len(waiting))).max()))
        first, others = longest_first[:due], np.sort(longest_first[due:])
        most_first = others[np.argsort(hold[others], kind="stable")]
        return np.sort(np.concatenate([first, most_first[: max(0, count - due)]]))
