"""A worker's way from gradients to what is sent, and from results to the next plan: ledger, codecs and plan together.

The agent drives it over real sockets, kofn/sim/ in virtual time.  It knows nothing of either.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from kofn.config.compress import CompressSection
from kofn.host.arrays import Exponents, Floats, Floats64, Integers
from kofn.host.compression.codec import FRACTION_BITS, check, packs
from kofn.host.compression.codecs.fixed_point import beginning, following
from kofn.host.compression.encoding import Encoding, EncodingMeter, misfits_of
from kofn.host.compression.entering_gradient import EnteringGradient
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.lane_choice import LaneChoice
from kofn.host.compression.ledger import Ledger
from kofn.host.compression.ledger_native import Gradient
from kofn.host.compression.ledger_storage import LedgerStorage
from kofn.host.compression.own_summary import OwnSummary
from kofn.host.compression.pieces import Pieces
from kofn.host.compression.plan import Plan
from kofn.host.compression.rate import RateEstimator
from kofn.host.compression.reduction_native import NativeReduction
from kofn.host.compression.side_values import NOTHING, SideValues
from kofn.host.compression.summary_block import Magnitudes
from kofn.host.compression.sums_native import largest_of
from kofn.host.errors import AgentError
from kofn.host.kernels.sample import MOST
from kofn.host.protocol.instructions import Packed, PackedBlocks
from kofn.host.protocol.results import BlockResults

SLICE = 1 << 18
"""Elements that are encoded at a time: the first are on their way while the others are still encoded."""

AHEAD = 1 << 16
"""Elements that wait to leave, where no Python is needed to encode more: a processor's cache holds them."""

FIRST_SLICE = 1 << 15
"""Elements of the first one, for which the link waits; each has twice as many as the one before."""


class Finished(NamedTuple):
    """An iteration that is over: its results without the summary block's, by block; its plan, and the next one's.

    `encoding`: None where no gradient was encoded in it.  `notes`: what the workers in the summary block say, by rank.
    """

    results: BlockResults
    plan: Plan
    following: Plan
    encoding: Encoding | None
    notes: Mapping[int, SideValues] = {}


class Encoder:
    """Fills and empties `ledger`, whose blocks and codecs are those of `coding`; `rate`: for a ratio that follows it.

    begin(), enter(), slices() or encode(), packed() and settle() of blocks, follow(): an iteration.
    """

    def __init__(self, coding: JobCoding, ledger: Ledger, rate: RateEstimator | None = None) -> None:
        self.coding, self.ledger = coding, ledger
        self.plan = coding.planner.first()
        """Of the current iteration."""
        self.lanes = LaneChoice(coding, rate)
        self.summary = OwnSummary(coding, ledger.rank)
        self._entering = EnteringGradient(ledger)
        self.meter = EncodingMeter(coding, ledger.residual)
        self._layout, self._codecs, self._planner = coding.layout, coding.codecs, coding.planner
        self.slice_blocks = max(1, SLICE // coding.layout.elements)
        """How many blocks a slice has at most."""
        self.window = coding.layout.blocks
        """Of the plan's blocks: one leaves only once the one so many places before it has closed."""
        self.credit = self._lookahead = max(1, AHEAD // coding.layout.elements)
        """Blocks of a gradient in pieces that wait to leave at most: nothing overtakes them."""
        self._looks = self._first_whole = False
        """Whether magnitudes are needed, and whether all of a gradient is entered before any of it is encoded."""
        self._fresh = np.zeros(coding.layout.total, np.bool_)

    @classmethod
    def of(
        cls, coding: JobCoding, compress: CompressSection, rank: int, *, job: int = 0, file: Path | None = None
    ) -> Self:
        """Return the encoder of worker `rank`, whose ledger is in this file, or in memory."""
        layout, rate = coding.layout, None
        sizes = {"blocks": layout.blocks, "lanes": layout.elements, "width": layout.widest}
        if file is None:
            storage = LedgerStorage.in_memory(**sizes, residual=compress.residual)
        else:
            storage = LedgerStorage.in_file(file, job=job, rank=rank, **sizes, residual=compress.residual)
        if compress.ratio_control != "off":
            rate = RateEstimator(compress.ratio_control, stability=compress.rate_stability)
        return cls(coding, Ledger(storage, rank, coding.codecs, feedback=compress.error_feedback), rate)

    @property
    def blocks(self) -> list[int]:
        """All that the current iteration sends, ascending: the plan's blocks, and the summary block."""
        blocks: list[int] = self.plan.blocks.tolist()
        return blocks if self._layout.summary is None else [*blocks, self._layout.summary]

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
        """The code of the lanes that blocks are encoded in by now."""
        return self.lanes.current

    @property
    def late(self) -> bool:
        """Whether a sum has closed without a gradient that is pending."""
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
        """Take a gradient (ledger_native.Gradient.of) for the ledger; GradientError when it is not finite.

        It is in the ledger when all slices() are encoded, or after enter_rest(): until then it may not change.
        `pieces`: what there is of it, as it comes; None: everything.  `good`: compression.codec.check has said so.
        `note`: what the other workers hear beside it, where the job's coding has notes.
        """
        if pieces is None and not good:
            check(gradient)
        self.summary.note = note
        self._entering.take(Gradient.of(gradient, iteration, batch=batch, current=current), pieces)

    @property
    def awaits_pieces(self) -> bool:
        """Whether something of the gradient that was taken is still to be put."""
        return self._entering.awaits_pieces

    def enter_rest(self) -> None:
        """Enter what slices() have not entered of the gradient, because nobody asked for them any more."""
        self._entering.finish()

    def encode(self, iteration: int) -> None:
        """Encode what this iteration sends of the ledger."""
        for _ in self.slices(iteration):
            pass

    def slices(self, iteration: int) -> Iterator[list[int]]:
        """The same, a slice at a time: the blocks of each as soon as it is encoded, ascending; none where the next
        piece is not there yet.

        Meanwhile those before it may leave, and be settled.
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
        """Enter and look at what must be known before anything of a gradient is encoded."""
        if self._first_whole:
            self.enter_rest()
        self.lanes.current = self.lanes.target
        if self._looks:
            self.summary.look(self.ledger.residual)
        self.lanes.bear(self.plan.expected or self.summary.magnitudes)

    def reduction(self, iteration: int) -> NativeReduction | None:
        """Return the native equivalent of slices() and settle(); Sums.reduces() is still to be called.

        None where that needs Python: for codecs that native code does not know or that leave anything to chance, for a
        ratio that follows the rate, and while pieces are awaited of what is entered before it is encoded.  In the end,
        `meter` hears of the error, or enter_rest().
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
        """How many of the plan's blocks there are for each whose error is looked at."""
        return -(-self.plan.blocks.size * self._layout.elements // MOST)

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode another part of the contribution: those of the plan's blocks that are `open` and in which a gradient
        waits that has `missed` so many sums (LedgerAccounts.missed).

        Returns the part and its blocks, no blocks where no part is left.  The summary block is among them where the
        part counts among the k: where `missed` is 0.
        """
        self.enter_rest()
        part = self.ledger.sent.free
        if part is None:
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
        """Return what was encoded of a block."""
        ((_, packed),) = self.all_packed([block], part)
        return packed

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """Return what was encoded of some, ascending."""
        if not blocks or blocks[-1] != self._layout.summary:
            return self.ledger.noted(blocks, part)
        summary = PackedBlocks.of([(blocks[-1], self.summary.packed(part))])
        return self.ledger.noted(blocks[:-1], part) + summary

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """Encode a block as its slot sums it; AgentError where there is no codec for that."""
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
        """Results of several blocks are here: what they hold of this worker is aggregated; the rest as in Deliver."""
        parts = results.parts_of(self.ledger.rank)
        self.ledger.settle(results.iteration, results.blocks, parts)
        self.lanes.hear({*results.numbers("lanes").tolist(), *hints.tolist()})
        if (rate := self.lanes.rate) is not None:
            counted = parts & 1 == 1
            for block, now in zip(results.blocks[counted].tolist(), times[counted].tolist(), strict=True):
                self.lanes.answered(rate, block, int(self.all_packed([block]).table["size"][0]), now)

    @property
    def narrows(self) -> bool:
        """Whether what has never left is to be encoded in narrower lanes."""
        return self.lanes.target != self.lanes.current

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        """Encode blocks that waited to be sent in narrower lanes; return those that may be sent.

        Only blocks that have never left: of any other a result may be on its way.  The summary block, if it is among
        them, tells the newest wish.
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
        """Make the next iteration's plan: this one is over, with all its results by block.

        `wire_bytes`: of this worker's values that were sent in it.
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
        """Return every block's scale in lanes of this code: agreed on, or its own."""
        codec, zeros = self._codecs[lanes], np.zeros(self._layout.blocks)
        known = self.plan.expected or self.summary.magnitudes or Magnitudes(mean=zeros, largest=zeros)
        if self._planner.follows and packs(codec) and codec.width == 32:
            return (beginning if self.plan.expected is None else following)(codec, known.largest)
        return codec.scale(known.mean, known.largest)
