"""A worker's way from gradients to what is sent, and from results to the next plan: ledger, codecs and plan together.

The agent drives it over real sockets, kofn/sim/ in virtual time.  It knows nothing of either.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from kofn.config.compress import CompressSection
from kofn.host.arrays import Exponents, Fixed, Floats, Floats64, Integers
from kofn.host.compression import side_values as note
from kofn.host.compression import summary_block as summary
from kofn.host.compression.codec import FRACTION_BITS, UNIT, check, packs, statistics
from kofn.host.compression.codecs.fixed_point import beginning, following
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.ledger import Ledger
from kofn.host.compression.ledger_native import Gradient
from kofn.host.compression.ledger_storage import LedgerStorage
from kofn.host.compression.pieces import Pieces
from kofn.host.compression.plan import Plan
from kofn.host.compression.rate import RateEstimator
from kofn.host.compression.reduction_native import NativeReduction
from kofn.host.compression.side_values import NOTHING, SideValues
from kofn.host.compression.summary_block import Magnitudes
from kofn.host.compression.sums_native import largest_of
from kofn.host.errors import AgentError
from kofn.host.kernels.lanes import VOTES, code_of, pack, unpack, width_of
from kofn.host.kernels.sample import MOST, sample
from kofn.host.protocol.instructions import Packed, PackedBlocks
from kofn.host.protocol.results import BlockResults
from kofn.host.wire.packet import FRAME_BYTES, HEADER_BYTES, WEIGHT_UNIT, WORD_LANES, Lanes

SLICE = 1 << 18
"""Elements that are encoded at a time: the first are on their way while the others are still encoded."""

AHEAD = 1 << 16
"""Elements that wait to leave, where no Python is needed to encode more: a processor's cache holds them."""

FIRST_SLICE = 1 << 15
"""Elements of the first one, for which the link waits; each has twice as many as the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What came of one iteration's gradient.

    `ratio`: the share of the float32 gradient's bytes that the plan asked for; `wire_bytes`: of values that were sent,
    again and again where need was; `wire_ratio`: their share; `width`: bits of the planned lanes; `blocks`: how many
    blocks the plan had; `error_norm`: L2 of what encoding left over in these; `residual_norm`: L2 of all that is
    pending after the iteration; in units of the gradient, estimated from samples where that is a lot.
    `refused_width`, `refused_error`: bits of narrower lanes that the ratio asked for and that would have left over too
    much, and that share of the gradient's squared norm; None where lanes are as asked for.  `rate_ratio`: c, of
    compression_ratio(), when the first rate of this iteration counted; None where none did.  `lost_norm`: L2 of what
    was discarded so that residuals are kept in fewer bits, None where they are exact.  `expanding`: the share of blocks
    whose votes have too large a step for what is left over to shrink, None without votes or agreed steps.
    """

    ratio: float
    wire_bytes: int
    wire_ratio: float
    width: int
    blocks: int
    error_norm: float
    residual_norm: float
    refused_width: int | None = None
    refused_error: float | None = None
    rate_ratio: float | None = None
    lost_norm: float | None = None
    expanding: float | None = None
    misfits: float = 0.0


class Finished(NamedTuple):
    """An iteration that is over: its results without the summary block's, by block; its plan, and the next one's.

    `encoding`: None where no gradient was encoded in it.  `notes`: what the workers in the summary block say, by rank.
    """

    results: BlockResults
    plan: Plan
    following: Plan
    encoding: Encoding | None
    notes: Mapping[int, SideValues] = {}


class _Entering(NamedTuple):
    """A gradient of which not everything is in the ledger yet; `pieces`: what there is of it, None: everything."""

    gradient: Gradient
    pieces: Pieces | None


class Encoder:
    """Fills and empties `ledger`, whose blocks and codecs are those of `coding`; `rate`: for a ratio that follows it.

    begin(), enter(), slices() or encode(), packed() and settle() of blocks, follow(): an iteration.
    """

    def __init__(self, coding: JobCoding, ledger: Ledger, rate: RateEstimator | None = None) -> None:
        self.coding, self.ledger = coding, ledger
        self.plan = coding.planner.first()
        """Of the current iteration."""
        self.uses = self.plan.lanes
        """The code of the lanes that it encodes in by now: the plan's, or narrower ones."""
        self.note = NOTHING
        """What this worker says to all in the iteration that is encoded next, where the job's coding has notes."""
        self._summarised, self._notes = coding.summarised, coding.notes
        self._layout, self._codecs, self._planner, self._rate = coding.layout, coding.codecs, coding.planner, rate
        self.slice_blocks = max(1, SLICE // coding.layout.elements)
        """How many blocks a slice has at most."""
        self.window = coding.layout.blocks
        """Of the plan's blocks: one leaves only once the one so many places before it has closed."""
        self.credit = max(1, AHEAD // coding.layout.elements)
        """Blocks of a gradient in pieces that wait to leave at most: nothing overtakes them."""
        self._wanted = self.plan.lanes
        self._wish = coding.planner.ratio
        self._rate_ratio: float | None = None  # c, when the first rate of this iteration counted
        self._narrowest = min(coding.planner.widths)  # bits of lanes that this iteration's gradient bears
        self._entering: _Entering | None = None
        self._sample = np.zeros(0, np.float32)  # of the latest gradient that is entered
        self._packed_summary: dict[int, bytes] = {}  # by part
        self._fresh = np.zeros(coding.layout.total, np.bool_)
        self._magnitudes: Magnitudes | None = None  # of all that is pending, before anything is sent
        self._expanding: float | None = None
        self._lost_norm = self.ledger.lost_norm
        self._error: float | None = None  # squared; None: nothing was encoded in this iteration

    @classmethod
    def of(cls, coding: JobCoding, compress: CompressSection, storage: LedgerStorage, rank: int) -> Self:
        """For worker `rank`, whose ledger is in this storage."""
        ledger = Ledger(storage, rank, coding.codecs, feedback=compress.error_feedback)
        rate = (
            None
            if compress.ratio_control == "off"
            else RateEstimator(compress.ratio_control, stability=compress.rate_stability)
        )
        return cls(coding, ledger, rate)

    @property
    def blocks(self) -> list[int]:
        """All that the current iteration sends, ascending: the plan's blocks, and the summary block."""
        blocks: list[int] = self.plan.blocks.tolist()
        return blocks if self._layout.summary is None else [*blocks, self._layout.summary]

    def begin(self, iteration: int) -> None:
        """The iteration of `plan` begins."""
        self.ledger.begin(iteration)
        self.uses = self._wanted = self.plan.lanes
        self._packed_summary.clear()
        self._fresh[:] = False
        self._error = self._rate_ratio = None
        if self._rate is not None:
            self._rate.begin(len(self.plan.blocks) * self._block_bytes)
            self._look_at_rate(self._rate)

    @property
    def late(self) -> bool:
        """Whether a sum has closed without a gradient that is pending."""
        return bool(self.ledger.missed(1).any())

    def enter(
        self,
        gradient: Floats,
        iteration: int,
        *,
        batch: int = 0,
        current: int | None = None,
        pieces: Pieces | None = None,
        good: bool = False,
    ) -> None:
        """Take a gradient, shape (elements,), for the ledger; GradientError when it is not finite.

        It was begun in `iteration`, as the worker's `batch`-th one there, and `current` is the iteration by now (None:
        the same).  It is in the ledger when all slices() are encoded, or after enter_rest(): until then it may not
        change.  `pieces`: what there is of it, as it comes; None: everything.  `good`: compression.codec.check has said
        so.
        """
        if pieces is None and not good:
            check(gradient)
        self._entering = _Entering(self.ledger.taken(gradient, iteration, batch=batch, current=current), pieces)

    @property
    def awaits_pieces(self) -> bool:
        """Whether something of the gradient that was taken is still to be put."""
        taken = self._entering
        return taken is not None and taken.pieces is not None and not taken.pieces.whole

    def enter_rest(self) -> None:
        """What slices() have not entered of the gradient, because nobody asked for them any more."""
        if (entering := self._entering) is not None:
            blocks, pieces = np.arange(self._layout.blocks), entering.pieces
            there = blocks if pieces is None else blocks[pieces.choose(blocks, blocks.size)]
            self.ledger.enter(entering.gradient, there)
            self._sample = sample(entering.gradient.keeps).copy()
        self._entering = None

    def encode(self, iteration: int) -> None:
        """What this iteration sends of the ledger."""
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
        self._error = 0.0
        lanes, scale = self.uses, self._scale(self.uses)
        self._look_at_steps(lanes, scale)
        left, size = self.plan.blocks, min(self.slice_blocks, max(1, FIRST_SLICE // self._layout.elements))
        while left.size:
            blocks, left = self._next_blocks(left, size)
            if not blocks.size:
                yield []
                continue
            size = min(2 * size, self.slice_blocks)
            if lanes != self.uses:
                lanes, scale = self.uses, self._scale(self.uses)
            self._error += self._encode_slice(iteration, blocks, lanes, scale)
            yield blocks.tolist()
        self.enter_rest()
        if (summary_block := self._layout.summary) is not None:
            self._pack_summary()
            self._fresh[summary_block] = True
            yield [summary_block]

    @property
    def _first_whole(self) -> bool:
        """Whether all of a gradient is entered before any of it is encoded."""
        return self._looks or self.plan.blocks.size < self._layout.blocks

    @property
    def _looks(self) -> bool:
        """Whether magnitudes are needed: for the summary block, or as no scale is agreed on yet."""
        return self._summarised or (self._planner.follows and self.plan.expected is None)

    def _prepare(self) -> None:
        """Before anything of a gradient is encoded."""
        if self._first_whole:
            self.enter_rest()
        self.uses = self._wanted
        if self._looks:
            found = [statistics(self.ledger.values(some)) for some in self.ledger.slices]
            mean, largest = (np.concatenate(each) for each in zip(*found, strict=True))
            self._magnitudes = Magnitudes(mean=mean, largest=largest)
        if self._rate is not None:
            self._narrowest = self._planner.narrowest(self.plan.expected or self._magnitudes)

    def _look_at_steps(self, lanes: int, scale: Exponents) -> None:
        """Of votes: in how many of the plan's blocks what is left over does not shrink.

        It does where 0 < step < 2 mean magnitude: then |x - step sign(x)|^2 = |x|^2 - n step (2 mean - step) < |x|^2.
        A block of zeros does not count.
        """
        self._expanding = None
        if width_of(lanes) == VOTES and self._magnitudes is not None:
            mean = self._magnitudes.mean[self.plan.blocks]
            grows = (2.0 ** -scale[self.plan.blocks] >= 2 * mean) & (mean > 0)
            self._expanding = float(grows.mean())

    def reduction(self, iteration: int) -> NativeReduction | None:
        """What slices() and settle() do, for somebody who needs no Python for it; Sums.reduces() is still to be called.

        None where that needs Python: for codecs that native code does not know or that leave anything to chance, for a
        ratio that follows the rate, and while pieces are awaited of what is entered before it is encoded.  In the end,
        reduced() or enter_rest().
        """
        lanes = self._wanted
        if self._rate is not None or not self.ledger.encodes(lanes) or (self._first_whole and self.awaits_pieces):
            return None
        self._prepare()
        scale, left, scratch = self._scale(lanes), self.plan.blocks.copy(), np.empty(self._layout.elements, np.int64)
        self._look_at_steps(lanes, scale)
        found = NativeReduction(
            iteration=iteration,
            lanes=lanes,
            left=left.ctypes.data,
            end=left.size,
            window=self.window,
            ahead=self._ahead,
            apart=self._apart,
            scratch=scratch.ctypes.data,
        )
        keeps = [left, scratch, self.ledger.reduces(found, scale)]
        if self._entering is not None:
            keeps.append(self._enters(found, self._entering))
        if self._layout.summary is not None:
            self._pack_summary()
            last = self.all_packed([self._layout.summary])
            found.last = last.table.ctypes.data
            keeps.append(last)
        found.keeps = keeps
        return found

    @property
    def _ahead(self) -> int:
        """Contributions that wait to leave, at most."""
        return self.credit if self.awaits_pieces else max(1, AHEAD // self._layout.elements)

    def _enters(self, found: NativeReduction, entering: _Entering) -> object:
        """What is entered of a gradient; what holds it in memory."""
        found.gradient = self.ledger.aged(entering.gradient)
        if entering.pieces is not None:
            found.missing, found.level = entering.pieces.places
        return entering

    def reduced(self, done: NativeReduction) -> None:
        """What a reduction has come to is in the ledger."""
        self._error = done.squared_error

    @property
    def _apart(self) -> int:
        """Of so many blocks one's error is looked at."""
        return -(-self.plan.blocks.size * self._layout.elements // MOST)

    def _next_blocks(self, left: Integers, most: int) -> tuple[Integers, Integers]:
        """Up to so many that may leave next, ascending, and what is left then."""
        if self._entering is None or self._entering.pieces is None:
            return left[:most], left[most:]
        chosen = self._entering.pieces.choose(self._near(left), most)
        return left[chosen], np.delete(left, chosen)

    def _near(self, left: Integers) -> Integers:
        """Of what is left what may leave before its first: others would take the room that this one needs."""
        blocks = self.plan.blocks
        last = min(int(np.searchsorted(blocks, left[0])) + self.window, blocks.size) - 1
        near: Integers = left[left <= blocks[last]]
        return near

    def encode_part(self, iteration: int, open: Collection[int], *, missed: int) -> tuple[int, list[int]]:
        """Encode another part of the contribution: those of the plan's blocks that are `open` and in which a gradient
        waits that has `missed` so many sums (Ledger.missed).

        Returns the part and its blocks, no blocks where no part is left.  The summary block is among them where the
        part counts among the k: where `missed` is 0.
        """
        self.enter_rest()
        part = self.ledger.free_part
        if part is None:
            return 0, []
        waits = self.plan.blocks[self.ledger.missed(missed)[self.plan.blocks]]
        waits = waits[np.isin(waits, list(open))]
        self.ledger.sending(iteration, waits, self.uses, self._scale(self.uses), part)
        blocks: list[int] = waits.tolist()
        if not missed and (summary_block := self._layout.summary) is not None and summary_block in open:
            self._pack_summary(part)
            blocks.append(summary_block)
        return part, blocks

    def _encode_slice(self, iteration: int, blocks: Integers, lanes: int, scale: Exponents) -> float:
        """Some of the plan's blocks; the square of what that leaves over, from a sample of them."""
        gradient = None if self._entering is None else self._entering.gradient
        self._fresh[self.ledger.sending(iteration, blocks, lanes, scale, gradient=gradient)] = True
        chosen = blocks[:: self._apart]
        return _squares(self.ledger.left_over(chosen, iteration), blocks.size * self._layout.elements)

    def packed(self, block: int, part: int = 0) -> Packed:
        """What was encoded of a block."""
        ((_, packed),) = self.all_packed([block], part)
        return packed

    def all_packed(self, blocks: Sequence[int], part: int = 0) -> PackedBlocks:
        """What was encoded of some, ascending."""
        if not blocks or blocks[-1] != self._layout.summary:
            return self.ledger.noted(blocks, part)
        summary = PackedBlocks.of([(blocks[-1], self._summary_as(part))])
        return self.ledger.noted(blocks[:-1], part) + summary

    def _summary_as(self, part: int) -> Packed:
        """The summary block, as part of a contribution."""
        return Packed(self._packed_summary[part], 0, Lanes.BITS_32, WEIGHT_UNIT)

    def reencode(self, block: int, iteration: int, scale: int, lanes: int, part: int = 0) -> Packed:
        """A block as its slot sums it; AgentError where there is no codec for that."""
        if block == self._layout.summary or lanes not in self._codecs or not 0 <= scale <= FRACTION_BITS:
            codes = ", ".join(str(int(code)) for code in self._codecs)
            raise AgentError(
                f"block {block} is summed in lanes of code {lanes} at scale {scale}: code {codes} and a scale of"
                f" 0 to {FRACTION_BITS} are allowed"
            )
        scales = np.broadcast_to(np.int64(scale), self._layout.blocks)
        self.ledger.send_again(np.array([block]), iteration, lanes, scales, part)
        return self.packed(block, part)

    def settle(self, results: BlockResults, hints: Integers, times: Floats64) -> None:
        """Results of several blocks are here: what they hold of this worker is aggregated; the rest as in Deliver."""
        ours = results.below(self._layout.blocks)
        self.ledger.settle(results.iteration, ours.blocks, ours.parts_of(self.ledger.rank))
        if len(self._codecs) > 1:
            told = {*results.numbers("lanes").tolist(), *hints.tolist()}
            self._wanted = max([self._wanted, *(code for code in told if code in self._codecs)])
        if self._rate is not None:
            counted = results.parts_of(self.ledger.rank) & 1 == 1
            for block, now in zip(results.blocks[counted].tolist(), times[counted].tolist(), strict=True):
                self._answered(self._rate, block, now)

    def _answered(self, rate: RateEstimator, block: int, now: float) -> None:
        """What an answer to this worker's contribution says of the rate."""
        gradient_bytes = 0 if block == self._layout.summary else self._block_bytes
        size = int(self.all_packed([block]).table["size"][0])
        rate.answered(now, wire_bytes=FRAME_BYTES + HEADER_BYTES + size, gradient_bytes=gradient_bytes)
        self._look_at_rate(rate)
        if rate.measured:
            if self._rate_ratio is None:
                self._rate_ratio = rate.ratio
            self._wanted = max(self._wanted, code_of(max(self._planner.asked(rate.rest), self._narrowest)))

    @property
    def narrows(self) -> bool:
        """Whether what has never left is to be encoded in narrower lanes."""
        return self._wanted != self.uses

    def narrow(self, withdrawn: Iterable[int], iteration: int) -> list[int]:
        """Which of the blocks that waited to be sent have just been encoded in narrower lanes; which may be sent.

        Only blocks that have never left: of any other a result may be on its way.  The summary block, if it is among
        them, tells the newest wish.
        """
        self.uses = self._wanted
        blocks = sorted(withdrawn)
        if blocks and blocks[-1] == self._layout.summary:
            self._pack_summary()
        if narrower := [block for block in blocks if block != self._layout.summary]:
            self.ledger.send_again(np.array(narrower), iteration, self.uses, self._scale(self.uses))
        return blocks

    @property
    def fresh(self) -> set[int]:
        """Blocks whose part 0 this process has encoded in this iteration."""
        return {*np.flatnonzero(self._fresh).tolist()}

    def follow(self, results: BlockResults, wire_bytes: int) -> Finished:
        """An iteration is over, with all its results by block: the next one's plan is made of them.

        `wire_bytes`: of this worker's values that were sent in it.
        """
        plan, encoding = self.plan, self._encoding(wire_bytes)
        notes: Mapping[int, SideValues] = {}
        if self._layout.summary is not None:
            last, results = results[len(results) - 1], results[:-1]
            sums = unpack(last.values, 32)
            if self._notes:
                notes = note.read(sums[-note.WORDS * WORD_LANES :], last.members)
        following = plan
        if self._summarised:
            following = self._planner.after(plan, summary.read(sums, last.count, self._layout.blocks))
        elif self._planner.follows:
            largest = np.zeros(self._layout.blocks)
            largest[results.blocks] = largest_of(results)
            following = self._planner.after_sums(plan, largest)
        self.plan = replace(following, first=plan.first + len(self.blocks))
        return Finished(results, plan, self.plan, encoding, notes)

    def _look_at_rate(self, rate: RateEstimator) -> None:
        """What to wish for: until an iteration has a rate of its own, by the one before."""
        self._wish = min(self._planner.ratio, rate.wish)

    def _pack_summary(self, part: int = 0) -> None:
        """The newest wish, the magnitudes before anything was sent, and the note, which only part 0 has."""
        lanes = []
        if self._summarised:
            assert self._magnitudes is not None
            lanes.append(summary.lanes(self._wish, self._magnitudes))
        if self._notes:
            lanes.append(note.lanes(self.ledger.rank, NOTHING if part else self.note))
        self._packed_summary[part] = pack(np.concatenate(lanes), 32)

    @property
    def _block_bytes(self) -> int:
        """Of a block of the gradient as float32."""
        return 4 * self._layout.elements

    def _encoding(self, wire_bytes: int) -> Encoding | None:
        """What came of the gradient that was encoded in the iteration that ends."""
        if self._error is None:
            return None
        pending = self.ledger.sampled
        refused = self._planner.refused(self.plan)
        return Encoding(
            ratio=self.plan.ratio / summary.ONE,
            wire_bytes=wire_bytes,
            wire_ratio=wire_bytes / (self._layout.blocks * self._block_bytes),
            width=width_of(self.plan.lanes),
            blocks=len(self.plan.blocks),
            error_norm=math.sqrt(self._error),
            residual_norm=math.sqrt(_squares(pending, self.ledger.blocks * self.ledger.elements)),
            refused_width=refused[0] if refused else None,
            refused_error=refused[1] if refused else None,
            rate_ratio=self._rate_ratio,
            lost_norm=self._lost(),
            expanding=self._expanding,
            misfits=self._misfits(),
        )

    def _misfits(self) -> float:
        """Return the share of misfits (Encoding) in a sample of the gradient."""
        magnitudes, codec = np.abs(self._sample[self._sample != 0]), self._codecs[self.uses]
        least, most = UNIT, math.inf
        if packs(codec) and codec.width == 32:
            least = 2.0 ** -int(self._scale(self.uses)[0])
            most = codec.limit * least
        return float(((magnitudes < least / 2) | (magnitudes > most)).mean()) if magnitudes.size else 0.0

    def _lost(self) -> float | None:
        """Since the last call; None where residuals are exact."""
        before, self._lost_norm = self._lost_norm, self.ledger.lost_norm
        return None if self.ledger.exact else math.sqrt(max(0.0, self._lost_norm**2 - before**2))

    def _scale(self, lanes: int) -> Exponents:
        """Every block's in lanes of this code: agreed on, or its own."""
        codec, zeros = self._codecs[lanes], np.zeros(self._layout.blocks)
        known = self.plan.expected or self._magnitudes or Magnitudes(mean=zeros, largest=zeros)
        if self._planner.follows and packs(codec) and codec.width == 32:
            return (beginning if self.plan.expected is None else following)(codec, known.largest)
        return codec.scale(known.mean, known.largest)


def _squares(some: Fixed, size: int) -> float:
    """Return the sum of squares of `size` values of which these are a sample, in units of the gradient."""
    return float(np.square(some * UNIT).sum()) * size / some.size if some.size else 0.0
