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
from collections.abc import Mapping, Sequence

import numpy as np

from kofn.host.arrays import Exponents, Fixed, Integers
from kofn.host.compression.age_weight import NOTHING_FADES, AgeWeight
from kofn.host.compression.codec import Codec, encode_packed, largest_lanes, packs, shift_of
from kofn.host.compression.ledger_accounts import LedgerAccounts
from kofn.host.compression.ledger_native import Fading, Gradient, library, view_of
from kofn.host.compression.ledger_storage import LedgerStorage, row_bytes
from kofn.host.compression.reduction_native import NativeReduction
from kofn.host.compression.residual import Residual
from kofn.host.compression.sent_parts import SentParts
from kofn.host.errors import CodecError, ProtocolError
from kofn.host.kernels.lanes import width_of
from kofn.host.protocol.core import Protocol
from kofn.host.protocol.instructions import PACKED, PackedBlocks
from kofn.host.protocol.results import BlockResults, Result
from kofn.host.wire.packet import PARTS


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
        most = largest_lanes(codecs)
        self._decodes = most is None  # here, not in ledger.c
        self.native_lanes = set() if self._decodes else {code for code, codec in codecs.items() if _native(codec)}
        """Codes of the lanes that native code encodes."""
        self._protocol: Protocol | None = None  # has memory that native code reads
        self._native = library()
        self._view = view_of(storage, most or {})
        self._at = ctypes.addressof(self._view)
        self._native.ledger_open(self._at)
        self.residual = Residual(storage, self._view)
        self.sent = SentParts(storage, codecs, self.residual)
        self.accounts = LedgerAccounts(storage, self.residual, self.sent)
        self.blocks, self._elements = self.residual.blocks, self.residual.elements
        self.sent.begin(self.begun)

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._storage.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the ledger, all of it."""
        return int(self._storage.records["entered"].min()) // PARTS

    def attach_protocol(self, protocol: Protocol) -> None:
        """Keep what was sent in an iteration only until this protocol knows that all have given to the next."""
        self._view.core, self._protocol = protocol.address, protocol

    def begin(self, iteration: int) -> None:
        """Note that an iteration has begun; one that was begun before a restart may be ahead of it."""
        self._storage.begun[0] = max(self.begun, iteration)
        self.sent.begin(iteration)

    def enter(self, gradient: Gradient, blocks: Integers) -> None:
        """Enter what a gradient has of these blocks.

        Blocks that have it, or a later one, keep what they have: it was computed before a restart.
        """
        self._native.ledger_add(self._at, self.aged(gradient), blocks.ctypes.data, blocks.size)

    def aged(self, gradient: Gradient) -> Gradient:
        """Return the gradient with what is left of it by now."""
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
        blocks = _rows(blocks)
        fresh: Integers = blocks[self.sent.of(part, iteration)["iteration"][blocks] != iteration]
        if lanes in self.native_lanes:
            scale = self._checked_scale(lanes, scale, blocks.size)
            of = blocks.ctypes.data, blocks.size, scale.ctypes.data
            taken = None if gradient is None else self.aged(gradient)
            self._native.ledger_send(self._at, taken, iteration, part, lanes, *of)
        else:
            if gradient is not None:
                self.enter(gradient, blocks)
            self._encode_here(fresh, iteration, lanes, scale, part)
        if fresh.size:
            self.sent.current.add(part)
        return fresh

    def reduces(self, reduction: NativeReduction, scale: Exponents) -> object:
        """Have a reduction encode at these scales, as sending(), and settle; return what must be kept in memory."""
        scale = self._checked_scale(reduction.lanes, scale, 1)
        reduction.ledger, reduction.rank, reduction.fading = self._at, self.rank, self._fading
        reduction.scale = scale.ctypes.data
        self.sent.current.add(0)
        return self, scale

    def reconsider(self, reduction: NativeReduction) -> None:
        """Have a reduction weigh old gradients as they weigh by now."""
        reduction.fading = self._fading
        if reduction.gradient.values:
            reduction.gradient = self.aged(reduction.gradient)

    @property
    def _fading(self) -> Fading:
        """What becomes of what waits when a block closes without it."""
        return Fading(self.age.per_iteration, self.age.limit, self._feedback)

    def send_again(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int = 0) -> None:
        """Encode blocks, of which nothing is on its way, once more, in lanes and at scales as above, and note it."""
        blocks = _rows(blocks)
        self._native.ledger_withdraw(self._at, iteration, part, blocks.ctypes.data, blocks.size)
        self.sending(iteration, blocks, lanes, scale, part)

    def noted(self, blocks: Sequence[int] | Integers, part: int = 0) -> PackedBlocks:
        """Return blocks as they were sent last, perhaps by an earlier process; ProtocolError for one that never was.

        Their values are the ledger's: they change when the block is encoded anew, and not before the second iteration
        after this one.  The weight that a contribution says that it brings is at most WEIGHT_MAX, and at least 1: after
        a death a block is sent that was found closed, and its gradient discarded, before that.
        """
        rows, table = np.ascontiguousarray(blocks, np.int64), np.empty(len(blocks), PACKED)
        bad = self._native.ledger_noted(self._at, part, rows.ctypes.data, rows.size, table.ctypes.data)
        if bad >= 0:
            raise ProtocolError(f"block {blocks[bad]} was never sent as part {part}")
        return PackedBlocks(table, self._storage)

    def left_over(self, blocks: Integers, iteration: int) -> Fixed:
        """Return what encoding has left over of blocks that were sent as part 0 in an iteration, (blocks, elements).

        That is what waits and no part of the contribution brings.
        """
        if self._decodes:
            return self.sent.left_for(0, blocks, iteration) - self.sent.decoded(0, blocks, iteration)
        blocks, left = _rows(blocks), np.empty((len(blocks), self._elements), np.int64)
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
        decoded = self._together(iteration, blocks, parts)
        of = blocks.ctypes.data, parts.ctypes.data, blocks.size
        bad = self._native.ledger_settle(self._at, iteration, *of, self._fading, _address(decoded))
        if bad >= 0:
            raise ProtocolError(
                f"block {blocks[bad]} of iteration {iteration} has a contribution of worker {self.rank}, which sent"
                " none: is another process running with this rank?"
            )

    def settle_results(self, *results: Result) -> None:
        """settle() with results, one or more, of different blocks of one iteration."""
        together = BlockResults.of(results)
        self.settle(together.iteration, together.blocks, together.parts_of(self.rank))

    def reconcile(self, result: Result) -> None:
        """Take a block's count back where the others' result of it has other parts of this worker's contribution.

        The switch died with the result that this worker had, this worker died before anyone asked it, and the others
        made the result again.  What is taken back was in time once: it is as old as the newest gradient.  ProtocolError
        where the worker has sent the block in two later iterations: what it was is not kept so long.
        """
        iteration, block = result.id
        if block >= self.blocks:
            return
        settled, mine = divmod(int(self._storage.records["settled"][block]), 1 << PARTS)
        ours = [part for part in range(PARTS) if mine >> part & 1]
        theirs = [part for part in range(PARTS) if result.has(self.rank, part)]
        if settled != iteration or not ours or ours == theirs:
            return
        if any(self.sent.of(part, iteration)["iteration"][block] != iteration for part in ours):
            raise ProtocolError(
                f"block {block} of iteration {iteration} was aggregated and is not any more, but what worker"
                f" {self.rank} sent then is not known in iteration {self.begun}"
            )
        decoded = self._together(iteration, np.array([block]), np.array([mine]))
        self._native.ledger_take_back(self._at, block, self.begun, not theirs, _address(decoded))
        if theirs:  # still to be settled
            self.settle_results(result)

    def _checked_scale(self, lanes: int, scale: Exponents, blocks: int) -> Exponents:
        """For native code; CodecError where there is none such, or no room for so many blocks in these lanes."""
        self._check_size(blocks * row_bytes(self._elements, width_of(lanes)), blocks, lanes)
        shift_of(scale)
        return np.ascontiguousarray(scale, np.int64)

    def _encode_here(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int) -> None:
        """Encode and note blocks with a codec that native code does not know."""
        if not blocks.size:
            return
        scales = scale[blocks]
        packed = encode_packed(self._codecs[lanes], self.sent.left_for(part, blocks, iteration), scales[:, None])
        self._check_size(len(packed), blocks.size, lanes)
        of = blocks.ctypes.data, blocks.size, scales.ctypes.data
        self._native.ledger_note(self._at, iteration, part, lanes, *of, packed, len(packed) // blocks.size)

    def _check_size(self, size: int, blocks: int, lanes: int) -> None:
        """CodecError where encoded blocks are not as long as lanes of this code make them."""
        needed = row_bytes(self._elements, width_of(lanes))
        if size != blocks * needed or needed > self._storage.packed.shape[-1]:
            raise CodecError(
                f"{blocks} blocks in lanes of {width_of(lanes)} bits are {size} bytes: {blocks * needed} are needed,"
                f" and a row of the ledger has {self._storage.packed.shape[-1]}"
            )

    def _together(self, iteration: int, blocks: Integers, parts: Integers) -> Fixed | None:
        """Return the values of these parts of blocks together, (blocks, elements); None: ledger.c knows all codecs."""
        return self.sent.together(iteration, blocks, parts) if self._decodes else None


def _native(codec: Codec) -> bool:
    return packs(codec) and not codec.by_chance


def _rows(blocks: Integers) -> Integers:
    return np.ascontiguousarray(blocks, np.int64)


def _address(values: Fixed | None) -> int | None:
    return None if values is None else values.ctypes.data
