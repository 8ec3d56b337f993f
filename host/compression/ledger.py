"""A worker's ledger: what became of its gradients, block by block.

`pending` is everything that no result has aggregated yet: the newest gradient, what came too late, and what
quantization left over.  A worker contributes to a block of an iteration up to PARTS times; each time it sends all that
is pending and not on its way to that block already.  So a late gradient is added to the same block of a later
iteration (source: the slow-node scheduling document, claim "stored data is summed with the same block of the next
iteration").

Everything is integer: conservation, gradients = aggregated + pending + discarded, is exact or broken.  Where what is
pending is kept in fewer bits (compress.residual), what rounding takes of it is discarded whenever a block changes: the
sum stays exact.  Only `pending`
is kept value by value.  Of the others each block has a checksum (compression.ledger_native), which is linear: it
follows every change of them, and is compared with that of what is pending.  The sums that workers say they are in are
checked against what everyone applied in the same way (report.checks).

Beside the values the ledger has the weight of the gradients that are in them, in 1 / WEIGHT_UNIT: a contribution says
what it brings, so that a sum can be divided by what is in it.  A gradient weighs 1 when it is entered, less if it is
old by then (compression.age_weight) and a sum of its block has closed since it was begun; and whenever a block closes
without something that waits in it, all that waits there has missed a sum.  What it loses of its weight is discarded.
What the plan leaves out of an iteration has no sum to miss there: it waits, and loses nothing.  A gradient that was
sent is aggregated when its block is, although rounding has left something of it over: what is left over weighs nothing.
Without `feedback` that is thrown away.

A block may rest for some iterations, and be sent in other lanes each time: what was sent is kept as on the wire, with
its lanes and its scale, and aggregated as the codec of these lanes reads them.

The ledger may live in a file mapped into memory (compression.ledger_storage), which survives the death of the process
at any instruction.  What is sent is noted first.  A block changes whole or not at all (ledger.c): a gradient or a
result is entered once.  A worker that dies half way through a gradient enters the remaining blocks when it computes the
iteration again.
"""

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Exponents, Fixed, Floats, Integers, Values
from kofn.host.compression.age_weight import NOTHING_FADES, AgeWeight
from kofn.host.compression.codec import UNIT, Codec, encode_packed, largest_lanes, packs, shift_of
from kofn.host.compression.ledger_native import Fading, Gradient, checksums, library, view_of
from kofn.host.compression.ledger_storage import GENERATIONS, LedgerStorage, Records, row_bytes
from kofn.host.compression.reduction_native import NativeReduction
from kofn.host.errors import CodecError, ProtocolError
from kofn.host.kernels.kernel import rows_of
from kofn.host.kernels.lanes import unpack, width_of
from kofn.host.kernels.sample import sample
from kofn.host.protocol.core import Protocol
from kofn.host.protocol.instructions import PACKED, PackedBlocks
from kofn.host.protocol.results import Result
from kofn.host.wire.packet import PARTS, WEIGHT_UNIT, bit_of, bits_of
from kofn.results.account import Account
from kofn.results.memory import Memory

EXPANDED = 1 << 20
"""Values that are copied at once where they are not kept exactly."""


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Over a run: checksums of each block's values (compression.ledger_native), int64, shape (blocks,)."""

    gradients: Integers
    aggregated: Integers
    pending: Integers
    discarded: Integers

    @property
    def conserved(self) -> bool:
        """Whether all of every gradient was aggregated, is still pending, or was discarded on purpose."""
        return bool(np.array_equal(self.gradients, self.aggregated + self.pending + self.discarded))


class Ledger:
    """The ledger of worker `rank` in `storage`: blocks are rows; `codecs` by their lanes' code (wire.packet.Lanes).

    `age`: what old gradients weigh; without `feedback` what encoding leaves over is thrown away.  LedgerError where
    there is no C compiler.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        rank: int,
        codecs: Mapping[int, Codec],
        *,
        age: AgeWeight = NOTHING_FADES,
        feedback: bool = True,
    ) -> None:
        self.rank, self.age = rank, age
        self._storage, self._codecs, self._feedback = storage, codecs, feedback
        self._mine = bits_of(rank)
        self._parts_by_bits = {sum(bit_of(rank, part) for part in _bits(parts)): parts for parts in range(1 << PARTS)}
        most = largest_lanes(codecs)
        self._decodes = most is None  # here, not in ledger.c
        self._encodes = {code for code, codec in codecs.items() if not packs(codec) or codec.by_chance or self._decodes}
        self._protocol: Protocol | None = None  # has memory that native code reads
        self._native = library()
        self._view = view_of(storage, most or {})
        self._at = ctypes.addressof(self._view)
        self._native.ledger_open(self._at)
        self._parts = self._parts_of(self.begun)

    @property
    def blocks(self) -> int:
        return len(self._storage.pending)

    @property
    def elements(self) -> int:
        """Of a block."""
        found: int = self._storage.pending.shape[1]
        return found

    @property
    def exact(self) -> bool:
        """Whether what is pending is kept as it is."""
        return self._storage.residual == "exact"

    @property
    def pending(self) -> Fixed:
        """Shape (blocks, elements); a copy where it is not kept exactly."""
        return self.values(slice(None))

    def values(self, blocks: Integers | slice | list[int]) -> Fixed:
        """What is pending of blocks, (B, elements)."""
        if self.exact:
            exact: Fixed = self._storage.pending[blocks]
            return exact
        chosen = np.ascontiguousarray(np.arange(self.blocks)[blocks], np.int64)
        values = np.empty((chosen.size, self.elements), np.int64)
        self._native.ledger_pending(self._at, chosen.ctypes.data, chosen.size, values.ctypes.data)
        return values

    @property
    def slices(self) -> Iterator[slice]:
        """All blocks; where values() copies only so many at a time that copies are small."""
        size = self.blocks if self.exact else max(1, EXPANDED // self.elements)
        return (slice(begin, begin + size) for begin in range(0, self.blocks, size))

    @property
    def sampled(self) -> Fixed:
        """Some of what is pending, (N,)."""
        if self.exact:
            return sample(self._storage.pending.ravel())
        return self.values(slice(None, None, -(-self.blocks * self.elements // EXPANDED))).ravel()

    @property
    def lost_norm(self) -> float:
        """L2 of what this process has discarded so that residuals are kept in fewer bits, in units of the gradient."""
        return math.sqrt(self._view.lost) * UNIT

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._storage.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the ledger, all of it."""
        return int(self._storage.records["entered"].min()) // PARTS

    @property
    def waiting(self) -> Integers:
        """The weight of the gradients that no result has aggregated yet and nobody has discarded, shape (blocks,)."""
        records = self._storage.records
        weight: Integers = records["entered_weight"] - records["aggregated_weight"] - records["discarded_weight"]
        return weight

    def unsent(self, iteration: int) -> Integers:
        """The weight of those of them that no contribution to this iteration brings, shape (blocks,)."""
        weight = self.waiting
        for part in self._parts:
            weight -= self._away(part, iteration) * self._sent(part, iteration)["weight"]
        return weight

    def missed(self, sums: int) -> npt.NDArray[np.bool_]:
        """Return the blocks, bool (blocks,), in which weight waits that no contribution brings and that has missed so
        many sums of its block, 0, 1 or 2, or more.

        A block that an iteration does not send has no sum there, so nothing of it is late.
        """
        records = self._storage.records
        found: npt.NDArray[np.bool_] = self.unsent(self.begun) > 0
        if sums:
            found &= records["late"] > 0
        if sums > 1:
            found &= records["late"] < records["settled"] >> PARTS
        return found

    @property
    def late_since(self) -> int:
        """The first iteration with a sum that closed without a gradient that still waits; 0: no gradient is late."""
        late = [self._storage.records["late"][self.missed(1)]]
        for part in self._parts:
            sent = self._sent(part, self.begun)
            late.append(sent["late"][self._away(part, self.begun) & (sent["weight"] > 0) & (sent["late"] > 0)])
        return min([int(each.min()) for each in late if each.size], default=0)

    @property
    def free_part(self) -> int | None:
        """The first one from 1 on that nothing was sent as in the current iteration; None: there is none."""
        return next((part for part in range(1, PARTS) if part not in self._parts), None)

    def hear(self, protocol: Protocol) -> None:
        """What was sent in an iteration need not be kept once this protocol knows that all have given to the next."""
        self._view.given, self._protocol = protocol.given_at, protocol

    def begin(self, iteration: int) -> None:
        """Note that an iteration has begun; one that was begun before a restart may be ahead of it."""
        self._storage.begun[0] = max(self.begun, iteration)
        self._parts = self._parts_of(iteration)

    def add(
        self,
        gradient: Floats,
        iteration: int,
        blocks: Integers | None = None,
        *,
        batch: int = 0,
        current: int | None = None,
    ) -> None:
        """Enter a gradient that is good (compression.codec.check), or what it has of these blocks.

        Shape (elements,) with elements <= blocks * lanes.  It was begun in `iteration`, as the worker's `batch`-th one
        (0 to PARTS - 1) there; `current` is the iteration by now (None: the same).  Blocks that have it, or a later
        one, keep what they have: it was computed before a restart.
        """
        self.enter(self.taken(gradient, iteration, batch=batch, current=current), self._chosen(blocks))

    def taken(self, gradient: Floats, iteration: int, *, batch: int = 0, current: int | None = None) -> Gradient:
        """What add() enters, for enter() or sending(): until it is in the ledger it may not change."""
        gradient, now = np.ascontiguousarray(gradient, np.float32), iteration if current is None else current
        found = Gradient(gradient.ctypes.data, gradient.size, iteration * PARTS + batch, now)
        found.keeps = gradient
        return found

    def enter(self, gradient: Gradient, blocks: Integers) -> None:
        """What it has of these blocks, as add()."""
        self._native.ledger_add(self._at, self.aged(gradient), blocks.ctypes.data, blocks.size)

    def aged(self, gradient: Gradient) -> Gradient:
        """With what is left of it by now."""
        age = gradient.now - gradient.key // PARTS
        gradient.open_share, gradient.closed_share = self.age.at(max(0, age)), self.age.at(max(0, age + 1))
        gradient.begun = self.begun
        return gradient

    def sending(
        self,
        iteration: int,
        blocks: Integers,
        lanes: int,
        scale: Exponents,
        part: int = 0,
        gradient: Gradient | None = None,
    ) -> Integers:
        """Encode and note what this iteration sends of these blocks, ascending, as this part of the contribution.

        `lanes`: their code; `scale`: every block's, shape (B,).  `gradient` is entered in them first.  What was sent in
        this iteration before a restart stays; the others are returned.
        """
        blocks = self._chosen(blocks)
        fresh: Integers = blocks[self._sent(part, iteration)["iteration"][blocks] != iteration]
        self._encode(blocks, fresh, iteration, lanes, scale, part, gradient)
        return fresh

    def encodes(self, lanes: int) -> bool:
        """Whether native code can do all that is done with lanes of this code."""
        return lanes not in self._encodes

    def reduces(self, reduction: NativeReduction, scale: Exponents) -> object:
        """Have a reduction encode at these scales, as sending(), and settle: what it needs to be kept in memory."""
        scale = self._checked_scale(reduction.lanes, scale, 1)
        reduction.ledger, reduction.rank, reduction.fading = self._at, self.rank, self._fading
        reduction.scale = scale.ctypes.data
        self._note_part(0)
        return self, scale

    def reconsider(self, reduction: NativeReduction) -> None:
        """Old gradients weigh something else by now."""
        reduction.fading = self._fading
        if reduction.gradient.values:
            reduction.gradient = self.aged(reduction.gradient)

    @property
    def _fading(self) -> Fading:
        """What becomes of what waits when a block closes without it."""
        return Fading(self.age.per_iteration, self.age.limit, self._feedback)

    def send_again(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int = 0) -> None:
        """Encode blocks, of which nothing is on its way, once more, in lanes and at scales as above, and note it."""
        blocks = self._chosen(blocks)
        self._native.ledger_withdraw(self._at, iteration, part, blocks.ctypes.data, blocks.size)
        self._encode(blocks, blocks, iteration, lanes, scale, part)

    def noted(self, blocks: Sequence[int] | Integers, part: int = 0) -> PackedBlocks:
        """Blocks as they were sent last, perhaps by an earlier process; ProtocolError for one that never was.

        Their values are the ledger's: they change when the block is encoded anew, and not before the second iteration
        after this one.  The weight that a contribution says that it brings is at most WEIGHT_MAX, and at least 1: after
        a death a block is sent that was found closed, and its gradient discarded, before that.
        """
        rows, table = np.ascontiguousarray(blocks, np.int64), np.empty(len(blocks), PACKED)
        bad = self._native.ledger_noted(self._at, part, rows.ctypes.data, rows.size, table.ctypes.data)
        if bad >= 0:
            raise ProtocolError(f"block {blocks[bad]} was never sent as part {part}")
        return PackedBlocks(table, self._storage)

    def sent_in(self, iteration: int) -> Values:
        """What was sent in an iteration, shape (PARTS, blocks, elements), 0 where nothing was."""
        found = np.zeros((PARTS, self.blocks, self.elements), np.int32)
        for part in range(PARTS):
            sent = self._sent(part, iteration)
            for code in self._codecs:
                blocks = np.flatnonzero((sent["iteration"] == iteration) & (sent["lanes"] == code))
                found[part, blocks] = self._lanes(part, blocks, iteration, code)
        return found

    def left_over(self, blocks: Integers, iteration: int) -> Fixed:
        """Return what encoding has left over of blocks that were sent as part 0 in an iteration, (blocks, elements).

        That is what waits and no part of the contribution brings.
        """
        if self._decodes:
            return self._values_for(0, blocks, iteration) - self._decoded(0, blocks, iteration)
        blocks, left = self._chosen(blocks), np.empty((len(blocks), self.elements), np.int64)
        self._native.ledger_left_over(self._at, iteration, blocks.ctypes.data, blocks.size, left.ctypes.data)
        return left

    def settle(self, iteration: int, blocks: Integers, parts: Integers) -> None:
        """Results of an iteration's blocks are here: what they hold of this worker is aggregated.

        `blocks`: int64 (N,); `parts`: int64 (N,), bit p where its part p is in the sum.  What is known already changes
        nothing, nor does a summary block, whose number is above all others'.  ProtocolError, and nothing has changed,
        where a part was not sent.
        """
        blocks, parts = np.ascontiguousarray(blocks, np.int64), np.ascontiguousarray(parts, np.int64)
        if blocks.shape != parts.shape:
            raise ProtocolError(f"{blocks.size} blocks are settled with {parts.size} bitmaps of parts: one for each")
        decoded = self._decoded_parts(iteration, blocks, parts)
        of = blocks.ctypes.data, parts.ctypes.data, blocks.size
        bad = self._native.ledger_settle(self._at, iteration, *of, self._fading, _address(decoded))
        if bad >= 0:
            raise ProtocolError(
                f"block {blocks[bad]} of iteration {iteration} has a contribution of worker {self.rank}, which sent"
                " none: is another process running with this rank?"
            )

    def settle_results(self, *results: Result) -> None:
        """settle() with results, one or more, of different blocks of one iteration."""
        (iteration,) = {result.id.iteration for result in results}
        blocks = np.array([result.id.block for result in results])
        self.settle(iteration, blocks, np.array([self._parts_in(result) for result in results]))

    def reconcile(self, result: Result) -> None:
        """Take a block's count back where the others' result of it has other parts of this worker's contribution.

        The switch died with the result that this worker had, this worker died before anyone asked it, and the others
        made the result again.  What is taken back was in time once: it is as old as the newest gradient.  ProtocolError
        where the worker has sent the block in two later iterations: what it was is not kept so long.
        """
        (iteration, block), theirs = result.id, self._parts_in(result)
        if block >= self.blocks:
            return
        settled, mine = divmod(int(self._storage.records["settled"][block]), 1 << PARTS)
        if settled != iteration or mine == theirs or not mine:
            return
        chosen, parts = np.array([block]), np.array([mine])
        if any(self._sent(part, iteration)["iteration"][block] != iteration for part in _bits(mine)):
            raise ProtocolError(
                f"block {block} of iteration {iteration} was aggregated and is not any more, but what worker"
                f" {self.rank} sent then is not known in iteration {self.begun}"
            )
        decoded = self._decoded_parts(iteration, chosen, parts)
        self._native.ledger_take_back(self._at, block, self.begun, not theirs, _address(decoded))
        if theirs:  # still to be settled
            self.settle_results(result)

    def unsettled(self, iteration: int) -> list[int]:
        """Blocks that were sent in this iteration and whose result is not known."""
        away = [self._away(part, iteration) for part in range(PARTS)]
        found: list[int] = np.flatnonzero(np.any(away, axis=0)).tolist()
        return found

    @property
    def memory(self) -> Memory:
        """At most: rows of what was sent take none until they are used; those of parts 1 on are not in it."""
        storage = self._storage
        books = storage.journal.nbytes + storage.records.nbytes + storage.sent[0].nbytes + storage.shifts.nbytes
        return Memory(residuals=storage.pending.nbytes, ledger=storage.packed[0].nbytes + books)

    def totals(self) -> LedgerTotals:
        gradients, aggregated, discarded = (
            self._storage.records[name].copy() for name in ("gradients", "aggregated", "discarded")
        )
        pending = np.concatenate([checksums(self.values(some)) for some in self.slices])
        return LedgerTotals(gradients, aggregated, pending, discarded)

    def account(self) -> Account:
        """What became of the gradients' weight: it adds up, also for a thread beside the ledger's."""
        records = self._storage.records.copy()
        entered, summed, discarded = (
            int(records[name].sum()) for name in ("entered_weight", "aggregated_weight", "discarded_weight")
        )
        gradient = WEIGHT_UNIT * self.blocks
        return Account(
            entered=entered / gradient,
            summed=summed / gradient,
            waiting=(entered - summed - discarded) / gradient,
            discarded=discarded / gradient,
            late_since=self.late_since,
        )

    def _chosen(self, blocks: Integers | None) -> Integers:
        """All where none are named."""
        return np.arange(self.blocks) if blocks is None else np.ascontiguousarray(blocks, np.int64)

    def _encode(
        self,
        blocks: Integers,
        fresh: Integers,
        iteration: int,
        lanes: int,
        scale: Exponents,
        part: int,
        gradient: Gradient | None = None,
    ) -> None:
        """Enter a gradient, and note those blocks as on the wire that are `fresh`, with all that belongs to them."""
        if lanes in self._encodes:
            if gradient is not None:
                self.enter(gradient, blocks)
            self._encode_here(fresh, iteration, lanes, scale, part)
        else:
            scale = self._checked_scale(lanes, scale, blocks.size)
            of = blocks.ctypes.data, blocks.size, scale.ctypes.data
            taken = None if gradient is None else self.aged(gradient)
            self._native.ledger_send(self._at, taken, iteration, part, lanes, *of)
        if fresh.size:
            self._note_part(part)

    def _note_part(self, part: int) -> None:
        """Something is sent as this part in the current iteration."""
        if part not in self._parts:
            self._parts.append(part)

    def _checked_scale(self, lanes: int, scale: Exponents, blocks: int) -> Exponents:
        """For native code; CodecError where there is none such, or no room for so many blocks in these lanes."""
        self._check_size(blocks * row_bytes(self.elements, width_of(lanes)), blocks, lanes)
        shift_of(scale)
        return np.ascontiguousarray(scale, np.int64)

    def _encode_here(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int) -> None:
        """With a codec that native code does not know."""
        if not blocks.size:
            return
        scales = scale[blocks]
        packed = encode_packed(self._codecs[lanes], self._values_for(part, blocks, iteration), scales[:, None])
        self._check_size(len(packed), blocks.size, lanes)
        of = blocks.ctypes.data, blocks.size, scales.ctypes.data
        self._native.ledger_note(self._at, iteration, part, lanes, *of, packed, len(packed) // blocks.size)

    def _check_size(self, size: int, blocks: int, lanes: int) -> None:
        """CodecError where encoded blocks are not as long as lanes of this code make them."""
        needed = row_bytes(self.elements, width_of(lanes))
        if size != blocks * needed or needed > self._storage.packed.shape[-1]:
            raise CodecError(
                f"{blocks} blocks in lanes of {width_of(lanes)} bits are {size} bytes: {blocks * needed} are needed,"
                f" and a row of the ledger has {self._storage.packed.shape[-1]}"
            )

    def _values_for(self, part: int, blocks: Integers, iteration: int) -> Fixed:
        """What is pending of blocks and not on its way as another part."""
        values = self.values(rows_of(blocks.tolist()))
        for other in self._parts:
            if other != part and (away := self._away(other, iteration, blocks)).any():
                values = values.copy()
                values[away] -= self._decoded(other, blocks[away], iteration)
        return values

    def _parts_in(self, result: Result) -> int:
        """Which parts of this worker's contribution are in a sum: bit p for part p."""
        return self._parts_by_bits[result.members & self._mine]

    def _parts_of(self, iteration: int) -> list[int]:
        """Those that anything was sent as in an iteration, by an earlier process perhaps."""
        return [part for part in range(PARTS) if (self._sent(part, iteration)["iteration"] == iteration).any()]

    def _sent(self, part: int, iteration: int) -> Records:
        """What blocks were sent as in this iteration, or in an older one where `iteration` is another there."""
        found: Records = self._storage.sent[part, iteration % GENERATIONS]
        return found

    def _away(self, part: int, iteration: int, blocks: Integers | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Of which blocks a part is on its way: sent in this iteration, and its result is not known."""
        away: npt.NDArray[np.bool_] = self._sent(part, iteration)["iteration"][blocks] == iteration
        away &= self._storage.records["settled"][blocks] >> PARTS < iteration
        return away

    def _decoded(self, part: int, blocks: Integers, iteration: int) -> Fixed:
        """What was sent as a part of blocks in an iteration stands for, shape (blocks, elements)."""
        values, sent = np.empty((blocks.size, self.elements), np.int64), self._sent(part, iteration)[blocks]
        for code in np.unique(sent["lanes"]).tolist():
            those = sent["lanes"] == code
            lanes = self._lanes(part, blocks[those], iteration, code)
            values[those] = self._codecs[code].decode(lanes, sent["scale"][those, None].astype(np.int64), 1)
        return values

    def _lanes(self, part: int, blocks: Integers, iteration: int, code: int) -> Values:
        """What was sent of blocks in lanes of this code, shape (blocks, elements)."""
        width, elements = width_of(code), self.elements
        rows = self._sent(part, iteration)["row"][blocks]
        packed = self._storage.packed[part, rows, blocks, : elements * width // 8]
        return unpack(packed.tobytes(), width, signed=self._codecs[code].signed).reshape(blocks.size, elements)

    def _decoded_parts(self, iteration: int, blocks: Integers, parts: Integers) -> Fixed | None:
        """What these parts of blocks stand for together, (blocks, elements); None: ledger.c knows all codecs."""
        if not self._decodes:
            return None
        values, known = np.zeros((blocks.size, self.elements), np.int64), blocks < self.blocks
        for part in range(PARTS):
            places = np.flatnonzero(known & (parts >> part & 1 == 1))
            sent = self._sent(part, iteration)["iteration"][blocks[places]] == iteration
            values[places[sent]] += self._decoded(part, blocks[places[sent]], iteration)
        return values


def _bits(bitmap: int) -> list[int]:
    return [part for part in range(PARTS) if bitmap >> part & 1]


def _address(values: Fixed | None) -> int | None:
    return None if values is None else values.ctypes.data
