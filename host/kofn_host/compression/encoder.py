"""A worker's encoder: from gradients to contributions, and from results to the next plan.

The encoder joins ledger, codecs and plan.  The agent drives it over real sockets; kofn/sim/ drives it in virtual time.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from kofn_common.config.compress import CompressSection
from kofn_host.arrays import Exponents, Floats, Floats64, Integers
from kofn_host.compression.codec import FRACTION_BITS, check, packs
from kofn_host.compression.codecs.fixed_point import beginning, following
from kofn_host.compression.encoding import Encoding, EncodingMeter, misfits_of
from kofn_host.compression.entering_gradient import EnteringGradient
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.lane_choice import LaneChoice
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.compression.own_summary import OwnSummary
from kofn_host.compression.pieces import Pieces
from kofn_host.compression.plan import Plan
from kofn_host.compression.rate import RateEstimator
from kofn_host.compression.reduction_native import NativeReduction
from kofn_host.compression.side_values import NOTHING, SideValues
from kofn_host.compression.summary_block import Magnitudes
from kofn_host.compression.sums_native import largest_of
from kofn_host.errors import AgentError
from kofn_host.kernels.sample import MOST
from kofn_host.protocol.instructions import Packed, PackedBlocks
from kofn_host.protocol.results import BlockResults

SLICE = 1 << 18
"""Elements of a slice: the first slices are on their way while later ones are encoded."""

AHEAD = 1 << 16
"""Elements that native code encodes ahead of the pacer: this number fits into a processor's cache."""

FIRST_SLICE = 1 << 15
"""Elements of the first slice, for which the link waits; each slice has twice as many as the previous one."""


class Finished(NamedTuple):
    """A finished iteration: its results by block, without the summary block's result, its plan, and the next plan.

    `encoding` is None if no gradient was encoded in the iteration.  `notes` has the side values of the summary block's
    members, by rank.
    """

    results: BlockResults
    plan: Plan
    following: Plan
    encoding: Encoding | None
    notes: Mapping[int, SideValues] = {}


class Encoder:
    """Encodes gradients through `ledger`, with the blocks and codecs of `coding`.

    `rate` estimates the link's rate, if the ratio follows that rate.

    The calls of an iteration: begin(), enter(), slices() or encode(), packed() and settle() of blocks, follow().
    """

    def __init__(self, coding: JobCoding, ledger: Ledger, rate: RateEstimator | None = None) -> None:
        self.coding, self.ledger = coding, ledger
        self.plan = coding.planner.first()
        """The plan of the current iteration."""
        self.lanes = LaneChoice(coding, rate)
        self.summary = OwnSummary(coding, ledger.rank)
        self._entering = EnteringGradient(ledger)
        self.meter = EncodingMeter(coding, ledger.residual)
        self._layout, self._codecs, self._planner = coding.layout, coding.codecs, coding.planner
        self.slice_blocks = max(1, SLICE // coding.layout.elements)
        """The most blocks of a slice."""
        self.window = coding.layout.blocks
        """A block leaves only once the block `window` places before it in the plan has closed."""
        self.credit = self._lookahead = max(1, AHEAD // coding.layout.elements)
        """The most waiting blocks of a gradient in pieces.

        Later blocks of a higher level cannot overtake waiting blocks.
        """
        self._looks = False
        """Whether the plan needs the gradient's magnitudes."""
        self._first_whole = False
        """Whether a gradient is entered completely before it is encoded."""
        self._fresh = np.zeros(coding.layout.total, np.bool_)

    @classmethod
    def of(
        cls, coding: JobCoding, compress: CompressSection, rank: int, *, job: int = 0, file: Path | None = None
    ) -> Self:
        """Return the encoder of worker `rank`, with the ledger in this file, or in memory."""
        layout, rate = coding.layout, None
        sizes: dict[str, Any] = {"blocks": layout.blocks, "lanes": layout.elements, "width": layout.widest}
        if file is None:
            storage = LedgerStorage.in_memory(**sizes, residual=compress.residual)
        else:
            storage = LedgerStorage.in_file(file, job=job, rank=rank, **sizes, residual=compress.residual)
        if compress.ratio_control != "off":
            rate = RateEstimator(compress.ratio_control, stability=compress.rate_stability)
        place = coding.places[rank]
        return cls(coding, Ledger(storage, rank, coding.codecs, place=place, feedback=compress.error_feedback), rate)

    @property
    def blocks(self) -> Integers:
        """The blocks that the current iteration sends, ascending: the plan's blocks and the summary block."""
        blocks = self.plan.blocks
        return blocks if self._layout.summary is None else np.append(blocks, self._layout.summary)

    def begin(self, iteration: int) -> None:
        """Begin the iteration of `plan`."""
        self.ledger.begin(iteration)
        self.lanes.begin(self.plan)
        self.summary.begin()
        self._fresh[:] = False
        self.meter.error = None
        self._looks = self.coding.summarised or (self._planner.follows and self.plan.expected is None)
        self._first_whole = self._looks or self.plan.blocks.size < self._layout.blocks

    @property
    def current_lanes(self) -> int:
        """The code of the lanes in which blocks are encoded at present."""
        return self.lanes.current

    @property
    def late(self) -> bool:
        """Whether a sum has closed without a pending gradient."""
        return bool(self.ledger.accounts.missed(1).any())

    def enter(
        self,
        gradient: Floats,
        iteration: int,
        *,
        batch: int = 0,
        current: int | None = None,
        pieces: Pieces | None = None,
        good: bool = False,
        note: SideValues = NOTHING,
    ) -> None:
        """Take a gradient (ledger_native.Gradient.of) for the ledger; GradientError if it is not finite.

        The gradient is in the ledger after all slices(), or after enter_rest(); until then it must not change.
        `pieces`: the gradient's pieces as they are put; None: the gradient is complete.  `good`:
        compression.codec.check has passed the gradient. `note`: side values for the other workers, if the job's coding
        has notes.
        """
        if pieces is None and not good:
            check(gradient)
        self.summary.note = note
        self._entering.take(Gradient.of(gradient, iteration, batch=batch, current=current), pieces)

    @property
    def awaits_pieces(self) -> bool:
        """Whether pieces of the taken gradient are missing."""
        return self._entering.awaits_pieces

    def enter_rest(self) -> None:
        """Enter the part of the gradient that slices() have not entered."""
        self._entering.finish()

    def encode(self, iteration: int) -> None:
        """Encode all blocks that this iteration sends."""
        for _ in self.slices(iteration):
            pass

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """Encode slice by slice; yield each slice's blocks, ascending, or an empty list while a piece is awaited.

        The caller may send and settle a slice before it takes the next one.
        """
        while self._first_whole and self.awaits_pieces:
            yield []
        self._prepare()
        self.meter.error = 0.0
        lanes, scale = self.lanes.current, self._scale(self.lanes.current)
        self.meter.look_at_steps(lanes, scale, self.plan.blocks, self.summary.magnitudes)
        left, size = self.plan.blocks, min(self.slice_blocks, max(1, FIRST_SLICE // self._layout.elements))
        while left.size:
            blocks, left = self._entering.next_blocks(left, self.plan.blocks, self.window, size)
            if not blocks.size:
                yield []
                continue
            size = min(2 * size, self.slice_blocks)
            if lanes != self.lanes.current:
                lanes, scale = self.lanes.current, self._scale(self.lanes.current)
            gradient = self._entering.gradient
            self._fresh[self.ledger.sending(iteration, blocks, lanes, scale, gradient=gradient)] = True
            self.meter.add(self.ledger.left_over(blocks[:: self._sample_stride], iteration), blocks.size)
            yield blocks.tolist()
        self.enter_rest()
        if (summary_block := self._layout.summary) is not None:
            self.summary.pack(self.lanes.wish)
            self._fresh[summary_block] = True
            yield [summary_block]

    def _prepare(self) -> None:
        """Enter the gradient if it must be complete, and choose lanes, before encoding."""
        if self._looks:
            self.summary.magnitudes = self._entering.look()
        elif self._first_whole:
            self.enter_rest()
        self.lanes.current = self.lanes.target
        self.lanes.bear(self.plan.expected or self.summary.magnitudes)

    def reduction(self, iteration: int) -> NativeReduction | None:
        """Return the native equivalent of slices() and settle(); the caller must also call Sums.reduces().

        Return None if encoding needs Python: for custom codecs, stochastic rounding, a ratio that follows the rate, and
        missing pieces of a gradient that must be entered completely first.  In the end the caller sets `meter.error`,
        or calls enter_rest().
        """
        lanes = self.lanes.target
        waits = self._first_whole and self.awaits_pieces
        if self.lanes.rate is not None or lanes not in self.ledger.native_lanes or waits:
            return None
        self._prepare()
        scale, left, scratch = self._scale(lanes), self.plan.blocks.copy(), np.empty(self._layout.elements, np.int64)
        self.meter.look_at_steps(lanes, scale, self.plan.blocks, self.summary.magnitudes)
        found = NativeReduction(
            iteration=iteration,
            lanes=lanes,
            left=left.ctypes.data,
            end=left.size,
            window=self.window,
            lookahead=self.credit if self.awaits_pieces else self._lookahead,
            sample_stride=self._sample_stride,
            scratch=scratch.ctypes.data,
        )
        found.keeps = [left, scratch, self.ledger.reduces(found, scale), self._entering.enters(found)]
        if self._layout.summary is not None:
            self.summary.pack(self.lanes.wish)
            last = self.all_packed([self._layout.summary])
            found.last = last.table.ctypes.data
            found.keeps.append(last)
        return found

    @property
    def _sample_stride(self) -> int:
        """Number of the plan's blocks per block whose error is sampled."""
        return -(-self.plan.blocks.size * self._layout.elements // MOST)

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode another part: the plan's `open` blocks with waiting gradients that have missed `missed` sums.

        LedgerAccounts.missed defines `missed`.  Return the part and its blocks; no blocks if no part is left.  A part
        that counts among the k (`missed` is 0) includes the summary block.
        """
        self.enter_rest()
        part = self.ledger.sent.free
        if part is None or part >= self.coding.parts:
            return 0, []
        waits = self.plan.blocks[self.ledger.accounts.missed(missed)[self.plan.blocks]]
        waits = waits[np.isin(waits, list(open))]
        self.ledger.sending(iteration, waits, self.lanes.current, self._scale(self.lanes.current), part)
        blocks: list[int] = waits.tolist()
        if not missed and (summary_block := self._layout.summary) is not None and summary_block in open:
            self.summary.pack(self.lanes.wish, part)
            blocks.append(summary_block)
        return part, blocks

    def packed(self, block: int, part: int = 0) -> Packed:
        """Return a block's encoded values."""
        ((_, packed),) = self.all_packed([block], part)
        return packed

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """Return the encoded values of blocks, ascending."""
        if not blocks or blocks[-1] != self._layout.summary:
            return self.ledger.noted(blocks, part)
        summary = PackedBlocks.of([(blocks[-1], self.summary.packed(part))])
        return summary if len(blocks) == 1 else self.ledger.noted(blocks[:-1], part) + summary

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Encode a block in its slot's scale and lanes; AgentError if no codec fits."""
        if block == self._layout.summary or lanes not in self._codecs or not 0 <= scale <= FRACTION_BITS:
            codes = ", ".join(str(int(code)) for code in self._codecs)
            raise AgentError(
                f"block {block} must be summed in lanes of code {codes} at a scale of 0 to {FRACTION_BITS}, got code"
                f" {lanes} at scale {scale}"
            )
        scales = np.broadcast_to(np.int64(scale), self._layout.blocks)
        self.ledger.send_again(np.array([block]), iteration, lanes, scales, part)
        return self.packed(block, part)

    def settle(self, results: BlockResults, hints: Integers, times: Floats64) -> None:
        """Settle results of several blocks in the ledger; `hints` and `times` as in Deliver."""
        parts = results.parts_of(self.ledger.place)
        self.ledger.settle(results.iteration, results.blocks, parts)
        self.lanes.hear({*results.numbers("lanes").tolist(), *hints.tolist()})
        if (rate := self.lanes.rate) is not None:
            counted = parts & 1 == 1
            for block, now in zip(results.blocks[counted].tolist(), times[counted].tolist(), strict=True):
                self.lanes.answered(rate, block, int(self.all_packed([block]).table["size"][0]), now)

    @property
    def narrows(self) -> bool:
        """Whether unsent blocks should be encoded in narrower lanes."""
        return self.lanes.target != self.lanes.current

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        """Encode withdrawn blocks in narrower lanes; return the blocks that may be sent.

        No withdrawn block may have been sent: otherwise its result may be on its way.  If the summary block was
        withdrawn, it is encoded again with the newest wish for the next plan.
        """
        self.lanes.current = lanes = self.lanes.target
        blocks = sorted(withdrawn)
        if blocks and blocks[-1] == self._layout.summary:
            self.summary.pack(self.lanes.wish)
        if narrower := [block for block in blocks if block != self._layout.summary]:
            self.ledger.send_again(np.array(narrower), iteration, lanes, self._scale(lanes))
        return blocks

    @property
    def fresh(self) -> set[int]:
        """Blocks whose part 0 this process has encoded in this iteration."""
        return {*np.flatnonzero(self._fresh).tolist()}

    def follow(self, results: BlockResults, wire_bytes: int) -> Finished:
        """End an iteration with all its results by block, and make the next iteration's plan.

        `wire_bytes`: bytes of values that this worker sent in the iteration.
        """
        plan, lanes = self.plan, self.lanes.current
        encoding = None
        if self.meter.error is not None:
            misfits = misfits_of(self._entering.sample, self._codecs[lanes], self._scale(lanes))
            encoding = self.meter.encoding(plan, wire_bytes, self.lanes.rate_ratio, misfits)
        said, notes = None, dict[int, SideValues]()
        if self._layout.summary is not None:
            said, notes = self.summary.read(results[len(results) - 1])
            results = results[:-1]
        following = plan
        if said is not None:
            following = self._planner.after(plan, said)
        elif self._planner.follows:
            largest = np.zeros(self._layout.blocks)
            largest[results.blocks] = largest_of(results)
            following = self._planner.after_sums(plan, largest)
        self.plan = replace(following, first=plan.first + len(self.blocks))
        return Finished(results, plan, self.plan, encoding, notes)

    def _scale(self, lanes: int) -> Exponents:
        """Return every block's scale in lanes of this code: by agreed magnitudes, else by this worker's magnitudes."""
        codec, zeros = self._codecs[lanes], np.zeros(self._layout.blocks)
        known = self.plan.expected or self.summary.magnitudes or Magnitudes(mean=zeros, largest=zeros)
        if self._planner.follows and packs(codec) and codec.width == 32:
            return (beginning if self.plan.expected is None else following)(codec, known.largest)
        return codec.scale(known.mean, known.largest)
