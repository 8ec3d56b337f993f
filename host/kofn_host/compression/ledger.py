"""A worker's ledger: the state of its gradients, block by block.

`pending` is the part of all gradients that no result has aggregated yet: the newest gradient, late gradients, and
encoding errors.  A worker contributes up to PARTS times to a block of an iteration.  A contribution has all pending
values that no other contribution to the block has.  So a late gradient is added to the same block of a later iteration
(source: the slow-node scheduling document, claim "stored data is summed with the same block of the next iteration").

All values are integers, so conservation, gradients = aggregated + pending + discarded, holds exactly.  If pending
values are kept in fewer bits (compress.residual), their rounding is counted as discarded with each change of a block.
Only `pending` is stored value by value.  Gradients, aggregated and discarded values are stored as one checksum per
block (compression.ledger_native).  A checksum is linear, so it follows every change, and it can be compared with the
checksum of the pending values.  In the same way, report.checks compares the workers' aggregated parts with the sums
that all workers applied.

The ledger also has the weight of the gradients in each block, in 1 / WEIGHT_UNIT.  A contribution states its weight, so
that a sum can be divided by the weight in it.  A new gradient weighs 1, or less if it is old (compression.age_weight)
and a sum of its block has closed since it was begun.  When a block closes without some waiting gradients, all gradients
that wait in the block have missed a sum and lose weight, which is discarded.  Blocks that the plan omits miss no sum
and lose nothing.  A sent gradient is aggregated with its block, despite its encoding error: the error has no weight.
Without `feedback` the error is discarded.

A plan may omit a block for some iterations, and the block may be sent in other lanes each time.  Contributions are kept
as on the wire, with lanes and scale, and are decoded by the codec of these lanes when they are aggregated.

The ledger may be in a memory-mapped file (compression.ledger_storage), which survives the death of the process at any
instruction.  Contributions are recorded before they are sent.  Changes of a block are atomic (ledger.c), so a gradient
or a result is entered only once.  A worker that dies in the middle of a gradient enters the remaining blocks when it
computes the iteration again.
"""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from kofn_common.wire.sizes import PARTS
from kofn_host import structs
from kofn_host.arrays import Exponents, Fixed, Floats64, Integers
from kofn_host.compression.age_weight import NOTHING_FADES, AgeWeight
from kofn_host.compression.codec import UNIT, Codec, encode_packed, largest_lanes, packs, shift_of
from kofn_host.compression.ledger_accounts import LedgerAccounts
from kofn_host.compression.ledger_native import Gradient, library, view_of
from kofn_host.compression.ledger_state import LedgerState
from kofn_host.compression.ledger_storage import LedgerStorage, row_bytes
from kofn_host.compression.reduction_native import NativeReduction
from kofn_host.compression.residual import Residual
from kofn_host.compression.sent_parts import SentParts
from kofn_host.errors import CodecError, ProtocolError
from kofn_host.kernels.kernel import mean_of
from kofn_host.kernels.lanes import width_of
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.instructions import PACKED, PackedBlocks
from kofn_host.protocol.results import BlockResults, Result


class Ledger:
    """The ledger of worker `rank` in `storage`: blocks are rows; `codecs` by their lanes' code (wire.packet.Lanes).

    `place`: the worker's place in a tree (wire.packet.places_of); `age`: the weights of old gradients; without
    `feedback` encoding errors are discarded.  LedgerError without a C compiler.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        rank: int,
        codecs: Mapping[int, Codec],
        *,
        place: int | None = None,
        age: AgeWeight = NOTHING_FADES,
        feedback: bool = True,
    ) -> None:
        self.rank, self.age = rank, age
        self.place = rank if place is None else place
        self._storage, self._codecs, self._feedback = storage, codecs, feedback
        most = largest_lanes(codecs)
        self._decodes = most is None  # whether Python decodes, not ledger.c
        self.native_lanes = set() if self._decodes else {code for code, codec in codecs.items() if _native(codec)}
        """Codes of the lanes that native code encodes."""
        self._protocol: Protocol | None = None  # keeps memory that native code reads
        self._native = library()
        self._view = view_of(storage, most or {})
        self._at = ctypes.addressof(self._view)
        self._native.ledger_open(self._at)
        self.residual = Residual(storage, self._view)
        self.sent = SentParts(storage, codecs, self.residual)
        self.accounts = LedgerAccounts(storage, self.residual, self.sent)
        self.state = LedgerState(storage, self._view)
        self.blocks, self._elements = self.residual.blocks, self.residual.elements
        self.sent.begin(self.begun, begun=self.begun)

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, also in an earlier process; 0: none."""
        return int(self._storage.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is completely in the ledger."""
        return int(self._storage.records["entered"].min()) // PARTS

    def attach_protocol(self, protocol: Protocol) -> None:
        """Keep contributions only until this protocol knows that all workers have contributed to the next iteration."""
        self._view.core, self._protocol = protocol.address, protocol

    def begin(self, iteration: int) -> None:
        """Note that an iteration has begun; before a restart of this worker a later iteration may have begun."""
        self.sent.begin(iteration, begun=self.begun)
        self._storage.begun[0] = max(self.begun, iteration)

    def enter(self, gradient: Gradient, blocks: Integers) -> None:
        """Enter a gradient into these blocks.

        Blocks that have this gradient or a later one, from before a restart, are not changed.
        """
        self._native.ledger_add(self._at, self.aged(gradient), blocks.ctypes.data, blocks.size)

    def look(self, gradient: Gradient | None) -> tuple[Floats64, Floats64]:
        """Enter a gradient, if given, into all blocks; return codec.statistics() of all pending values."""
        found, taken = np.empty((3, self.blocks), np.uint64), None if gradient is None else self.aged(gradient)
        self._native.ledger_look(self._at, taken, *(row.ctypes.data for row in found))
        high, low, largest = found
        return mean_of(high, low, self._elements) * UNIT, largest.astype(np.float64) * UNIT

    def aged(self, gradient: structs.Gradient) -> structs.Gradient:
        """Return the gradient with the shares for its current age."""
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
        """Encode and record these blocks, ascending, as this part of the iteration's contribution.

        `lanes`: the code of the lanes; `scale`: the scales of all blocks, shape (B,).  `gradient` is first entered into
        these blocks.  Blocks sent in this iteration before a restart stay as they are; the other blocks are encoded and
        returned.
        """
        blocks = _rows(blocks)
        fresh: Integers = blocks[self.sent.of(part, iteration)["iteration"][blocks] != iteration]
        if lanes in self.native_lanes:
            scale = self._checked_scale(lanes, scale, blocks.size)
            places = blocks.ctypes.data, blocks.size, scale.ctypes.data
            taken = None if gradient is None else self.aged(gradient)
            self._native.ledger_send(self._at, taken, iteration, part, lanes, *places)
        else:
            if gradient is not None:
                self.enter(gradient, blocks)
            self._encode_here(fresh, iteration, lanes, scale, part)
        if fresh.size:
            self.sent.current.add(part)
        return fresh

    def reduces(self, reduction: NativeReduction, scale: Exponents) -> object:
        """Let a reduction encode at these scales, and settle; return the objects that must stay in memory."""
        scale = self._checked_scale(reduction.lanes, scale, 1)
        reduction.ledger, reduction.place, reduction.fading = self._at, self.place, self._fading
        reduction.scale = scale.ctypes.data
        self.sent.current.add(0)
        return self, scale

    def reconsider(self, reduction: NativeReduction) -> None:
        """Update a reduction's weights of old gradients."""
        reduction.fading = self._fading
        if reduction.gradient.values:
            reduction.gradient = self.aged(reduction.gradient)

    @property
    def _fading(self) -> structs.Fading:
        """The loss of waiting gradients when a block closes without them."""
        return structs.Fading(self.age.per_iteration, self.age.limit, self._feedback)

    def send_again(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int = 0) -> None:
        """Withdraw contributions that are not on their way; encode and record the blocks again, as sending() does."""
        blocks = _rows(blocks)
        self._native.ledger_withdraw(self._at, iteration, part, blocks.ctypes.data, blocks.size)
        self.sending(iteration, blocks, lanes, scale, part)

    def noted(self, blocks: Sequence[int] | Integers, part: int = 0) -> PackedBlocks:
        """Return the latest contributions to blocks, also those of an earlier process.

        The contributions' values are in the ledger's memory.  They change when the block is encoded again, at the
        earliest in the second iteration after this one.  A contribution's weight is at most WEIGHT_MAX.  The weight is
        at least 1, even if the block closed and its gradient was discarded before a restart.  ProtocolError for a block
        that was never sent.
        """
        rows, table = np.ascontiguousarray(blocks, np.int64), np.empty(len(blocks), PACKED)
        bad = self._native.ledger_noted(self._at, part, rows.ctypes.data, rows.size, table.ctypes.data)
        if bad >= 0:
            raise ProtocolError(f"block {blocks[bad]} was never sent as part {part}")
        return PackedBlocks(table, self._storage)

    def left_over(self, blocks: Integers, iteration: int) -> Fixed:
        """Return the encoding error of blocks that were sent as part 0 in an iteration, (blocks, elements).

        The error consists of the pending values that no part of the contribution contains.
        """
        if self._decodes:
            return self.sent.left_for(0, blocks, iteration) - self.sent.decoded(0, blocks, iteration)
        blocks, left = _rows(blocks), np.empty((len(blocks), self._elements), np.int64)
        self._native.ledger_left_over(self._at, iteration, blocks.ctypes.data, blocks.size, left.ctypes.data)
        return left

    def settle(self, iteration: int, blocks: Integers, parts: Integers) -> None:
        """Settle results of an iteration's blocks: this worker's parts in these results are aggregated.

        `blocks`: int64 (N,); `parts`: int64 (N,), bit p if this worker's part p is in the sum.  Known results and the
        summary block, which has the highest number, change nothing.  ProtocolError, without any change, if a part was
        not sent.
        """
        blocks, parts = np.ascontiguousarray(blocks, np.int64), np.ascontiguousarray(parts, np.int64)
        if blocks.shape != parts.shape:
            raise ProtocolError(f"{blocks.size} blocks must have {blocks.size} bitmaps of parts, got {parts.size}")
        decoded = self._together(iteration, blocks, parts)
        places = blocks.ctypes.data, parts.ctypes.data, blocks.size
        bad = self._native.ledger_settle(self._at, iteration, *places, self._fading, _address(decoded))
        if bad >= 0:
            raise ProtocolError(
                f"block {blocks[bad]} of iteration {iteration} has a contribution of worker {self.rank}, which sent"
                " none: is another process running with this rank?"
            )

    def settle_results(self, *results: Result) -> None:
        """Call settle() with one or more results of different blocks of one iteration."""
        together = BlockResults.of(results)
        self.settle(together.iteration, together.blocks, together.parts_of(self.place))

    def reconcile(self, result: Result) -> None:
        """Undo a block's settlement if the other workers' result of the block has other parts of this worker.

        This happens if the switch lost a result that only this worker had, this worker died before a peer fetched the
        result, and the others summed the block again.  The part that becomes pending again was in time, so its age is
        the newest gradient's age.  ProtocolError if the worker has sent the block in two later iterations: the ledger
        no longer has the contribution.
        """
        iteration, block = result.id
        if block >= self.blocks:
            return
        settled, mine = divmod(int(self._storage.records["settled"][block]), 1 << PARTS)
        ours = [part for part in range(PARTS) if mine >> part & 1]
        theirs = [part for part in range(PARTS) if result.has(self.place, part)]
        if settled != iteration or not ours or ours == theirs:
            return
        if any(self.sent.of(part, iteration)["iteration"][block] != iteration for part in ours):
            raise ProtocolError(
                f"the others' sum of block {block} in iteration {iteration} lacks a contribution that worker"
                f" {self.rank} had in its own and no longer keeps in iteration {self.begun}"
            )
        decoded = self._together(iteration, np.array([block]), np.array([mine]))
        self._native.ledger_take_back(self._at, block, self.begun, not theirs, _address(decoded))
        if theirs:  # the others' result is still to be settled
            self.settle_results(result)

    def _checked_scale(self, lanes: int, scale: Exponents, blocks: int) -> Exponents:
        """Return scales for native code; CodecError for invalid scales, or lanes without room for the blocks."""
        self._check_size(blocks * row_bytes(self._elements, width_of(lanes)), blocks, lanes)
        shift_of(scale)
        return np.ascontiguousarray(scale, np.int64)

    def _encode_here(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int) -> None:
        """Encode and record blocks with a codec that native code does not know."""
        if not blocks.size:
            return
        scales = scale[blocks]
        packed = encode_packed(self._codecs[lanes], self.sent.left_for(part, blocks, iteration), scales[:, None])
        self._check_size(len(packed), blocks.size, lanes)
        places = blocks.ctypes.data, blocks.size, scales.ctypes.data
        self._native.ledger_note(self._at, iteration, part, lanes, *places, packed, len(packed) // blocks.size)

    def _check_size(self, size: int, blocks: int, lanes: int) -> None:
        """Raise CodecError if encoded blocks do not have the length of lanes of this code."""
        needed = row_bytes(self._elements, width_of(lanes))
        if size != blocks * needed or needed > self._storage.packed.shape[-1]:
            raise CodecError(
                f"{blocks} blocks in lanes of {width_of(lanes)} bits must be {blocks * needed} bytes, got {size};"
                f" a row of the ledger has {self._storage.packed.shape[-1]}"
            )

    def _together(self, iteration: int, blocks: Integers, parts: Integers) -> Fixed | None:
        """Return the sum of these parts of blocks, (blocks, elements); None: ledger.c knows all codecs."""
        return self.sent.together(iteration, blocks, parts) if self._decodes else None


def _native(codec: Codec) -> bool:
    return packs(codec) and not codec.by_chance


def _rows(blocks: Integers) -> Integers:
    return np.ascontiguousarray(blocks, np.int64)


def _address(values: Fixed | None) -> int | None:
    return None if values is None else values.ctypes.data
