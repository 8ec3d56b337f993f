"""A worker's ledger: what its gradients were, what was aggregated, what was discarded, what is pending.

`pending` is everything that no result has aggregated yet: the newest gradient, what came too late, and what
quantization left over.  A worker contributes to a block of an iteration up to PARTS times; each time it sends all that
is pending and not on its way to that block already.  So a late gradient is added to the same block of a later
iteration (source: the slow-node scheduling document, claim "stored data is summed with the same block of the next
iteration"). Everything is integer: conservation, gradients = aggregated + pending + discarded, is exact or broken.

Beside the values the ledger has the weight of the gradients that are in them, block by block, in 1 / WEIGHT_UNIT: a
contribution says what it brings, so that a sum can be divided by what is in it.  A gradient weighs 1 when it is
entered, less if it is old by then (compression.age_weight); and whenever a block closes without something that waits
in it, all that waits there becomes an iteration older.  What it loses of its weight is discarded.  A gradient that was
sent is aggregated when its block is, although rounding has left something of it over: what is left over weighs nothing.
Without `feedback` that is thrown away.

A block may rest for some iterations, and be sent in other lanes each time: what was sent is noted with its lanes and
its scale, and aggregated as the codec of these lanes reads them.

The ledger may live in a file mapped into memory (compression.ledger_storage), which survives the death of the process
at any instruction.  What is sent is noted first.  Each block's gradients, aggregated and discarded values exist twice;
one aligned 64-bit store selects the valid copy and says up to which gradient or iteration it holds.  So a gradient or a
result is entered once, whole, or not at all.  A worker that dies half way through a gradient enters the remaining
blocks when it computes the iteration again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Exponents, Fixed, Floats, Integers, Values
from kofn.host.compression.age_weight import NOTHING_FADES, AgeWeight, share_of
from kofn.host.compression.codec import Codec, count_sent, encode_packed, enter
from kofn.host.compression.ledger_storage import LedgerStorage
from kofn.host.errors import ProtocolError
from kofn.host.kernels.kernel import rows_of
from kofn.host.kernels.lanes import pack, width_of
from kofn.host.protocol.history import Result
from kofn.host.wire.packet import PARTS, WEIGHT_MAX, WEIGHT_UNIT, bit_of, bits_of
from kofn.results.account import Account

COPY, DISCARDED, PARTS_IN = 1, 2, 2
"""In the marks of compression.ledger_storage: the bit of the valid copy, the bit for `discarded`; where parts begin in
`settled`."""

SETTLED_BITS = PARTS_IN + PARTS
ENTERED_BITS = 2
BATCH_BITS = PARTS.bit_length() - 1
"""A gradient's key: its iteration, then which one of the worker's in that."""


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """Totals over a run, int64 in units of 2**-40, shape (elements,)."""

    gradients: Fixed
    aggregated: Fixed
    pending: Fixed
    discarded: Fixed

    @property
    def conserved(self) -> bool:
        """Whether every element of every gradient was aggregated, is still pending, or was discarded on purpose."""
        return bool(np.array_equal(self.gradients, self.aggregated + self.pending + self.discarded))


class Ledger:
    """The ledger of worker `rank` in `storage`: blocks are rows; `codecs` by their lanes' code (wire.packet.Lanes).

    `age`: what old gradients weigh; without `feedback` what encoding leaves over is thrown away.
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
        # faster, one by one
        self._entered, self._marks, self._oldest = (
            array.data for array in (storage.entered, storage.settled, storage.oldest)
        )
        self._gradients_weight, self._aggregated_weight, self._discarded_weight = (
            array.data for array in (storage.gradients_weight, storage.aggregated_weight, storage.discarded_weight)
        )
        self._sent_in, self._sent_lanes, self._sent_weight, self._sent_oldest = (
            array.data for array in (storage.sent_in, storage.sent_lanes, storage.sent_weight, storage.sent_oldest)
        )
        self._mine, self._bits = bits_of(rank), [bit_of(rank, part) for part in range(PARTS)]
        gradients, aggregated, discarded = self._valid(np.arange(self.blocks))
        self.pending: Fixed = gradients - aggregated - discarded
        self._parts = self._parts_of(self.begun)

    @property
    def blocks(self) -> int:
        return int(self._storage.sent.shape[1])

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._storage.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the ledger, all of it."""
        return int(self._storage.entered.min()) >> ENTERED_BITS + BATCH_BITS

    @property
    def waiting(self) -> Integers:
        """The weight of the gradients that no result has aggregated yet and nobody has discarded, shape (blocks,)."""
        return self._waiting(np.arange(self.blocks))

    def unsent(self, iteration: int) -> Integers:
        """The weight of those of them that no contribution to this iteration brings, shape (blocks,)."""
        return self._unsent(np.arange(self.blocks), iteration)

    @property
    def oldest(self) -> int:
        """The iteration in which the oldest gradient was begun that waits in any block; 0: none waits."""
        storage, everything = self._storage, np.arange(self.blocks)
        waits = [storage.oldest[self._unsent(everything, self.begun) > 0]]
        for part in self._parts:
            brought = self._away(part, everything, self.begun) & (storage.sent_weight[part] > 0)
            waits.append(storage.sent_oldest[part, brought])
        return min([int(begun.min()) for begun in waits if begun.size], default=0)

    def oldest_before(self, iteration: int) -> bool:
        """Whether a gradient waits that was begun before this iteration."""
        return 0 < self.oldest < iteration

    @property
    def free_part(self) -> int | None:
        """The first one from 1 on that nothing was sent as in the current iteration; None: there is none."""
        return next((part for part in range(1, PARTS) if part not in self._parts), None)

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
        storage, key = self._storage, iteration * PARTS + batch
        chosen = np.arange(self.blocks) if blocks is None else blocks
        fresh: Integers = chosen[storage.entered[chosen] >> ENTERED_BITS < key]
        valid = 1 - (storage.entered[fresh] & COPY)
        enter(gradient, fresh, valid, storage.gradients, self.pending)
        storage.gradients_weight[valid, fresh] = storage.gradients_weight[1 - valid, fresh] + WEIGHT_UNIT
        now = iteration if current is None else current
        ages = now + (storage.settled[fresh] >> SETTLED_BITS >= now) - iteration
        marks = key << ENTERED_BITS | storage.entered[fresh] & DISCARDED | valid
        for age in np.unique(ages[ages > 0]).tolist():
            if (share := self.age.at(age)) < WEIGHT_UNIT:
                old = ages == age
                self._fade_newest(fresh[old], valid[old], share)
                marks[old] ^= DISCARDED
        alone = fresh[self._unsent(fresh, self.begun) == 0]
        storage.oldest[alone] = iteration
        storage.entered[fresh] = marks

    def _fade_newest(self, blocks: Integers, valid: Integers, share: int) -> None:
        """Leave of a gradient, which copy `valid` has in addition, only this share; the marks are not yet written."""
        storage = self._storage
        lost = storage.gradients[valid, blocks] - storage.gradients[1 - valid, blocks]
        lost -= share_of(lost, share)
        into = 1 - self._discarded_copy(blocks)
        storage.discarded[into, blocks] = storage.discarded[1 - into, blocks] + lost
        storage.discarded_weight[into, blocks] = storage.discarded_weight[1 - into, blocks] + WEIGHT_UNIT - share
        self.pending[blocks] -= lost

    def sending(
        self, iteration: int, blocks: Integers, lanes: int, scale: Exponents, part: int = 0
    ) -> dict[int, bytes]:
        """Encode and note what this iteration sends of these blocks, ascending, as this part of the contribution.

        `lanes`: their code; `scale`: every block's, shape (B,).  What was sent in this iteration before a restart
        stays; of the others the values are returned as on the wire, by block.
        """
        fresh: Integers = blocks[self._storage.sent_in[part, blocks] != iteration]
        return self._encode(fresh, iteration, lanes, scale, part)

    def send_again(
        self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int = 0
    ) -> dict[int, bytes]:
        """Encode blocks, of which nothing is on its way, once more, in lanes and at scales as above, and note it."""
        storage = self._storage
        brings = self._away(part, blocks, iteration) & (storage.sent_weight[part, blocks] > 0)
        fresh, brought = storage.oldest[blocks], storage.sent_oldest[part, blocks]
        alone = self._unsent(blocks, iteration) == 0
        storage.oldest[blocks] = np.where(brings, np.where(alone, brought, np.minimum(fresh, brought)), fresh)
        storage.sent_in[part, blocks] = 0
        return self._encode(blocks, iteration, lanes, scale, part)

    def noted(self, blocks: Integers, part: int = 0) -> dict[int, bytes]:
        """The values of blocks as on the wire, as they were sent last: what an earlier process has encoded."""
        values: dict[int, bytes] = {}
        codes, sent = self._storage.sent_lanes[part], self._storage.sent[part]
        for lanes in np.unique(codes[blocks]).tolist():
            alike = blocks[codes[blocks] == lanes]
            values |= _by_block(pack(sent[alike], width_of(lanes)), alike)
        return values

    def noted_of(self, blocks: Sequence[int], part: int = 0) -> Iterator[tuple[int, int, int]]:
        """Of each of these blocks scale, lanes, and the weight that its contribution says that it brings.

        At most WEIGHT_MAX.  At least 1: after a death a block is sent that was found closed, and its gradient
        discarded, before that.
        """
        storage, rows = self._storage, np.array(blocks, int)
        weights = np.clip(storage.sent_weight[part, rows], 1, WEIGHT_MAX)
        codes = storage.sent_lanes[part, rows]
        return zip(storage.sent_scale[part, rows].tolist(), codes.tolist(), weights.tolist(), strict=True)

    def sent_in(self, iteration: int) -> Values:
        """A copy of what was sent in an iteration, shape (PARTS, blocks, elements), 0 where nothing was."""
        return np.where((self._storage.sent_in == iteration)[:, :, None], self._storage.sent, 0)

    def left_over(self, blocks: Integers) -> Fixed:
        """What encoding has left over of blocks that were sent in the same lanes, shape (blocks, elements)."""
        left: Fixed = self.pending[blocks] - self._decoded(0, blocks)
        return left

    def alike(self, blocks: Integers, lanes: int) -> Integers:
        """Those of these blocks that were sent in lanes of this code."""
        found: Integers = blocks[self._storage.sent_lanes[0, blocks] == lanes]
        return found

    def _encode(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int) -> dict[int, bytes]:
        """Into `sent`, with all that belongs to it, and as on the wire."""
        if not blocks.size:
            return {}
        storage, rows = self._storage, rows_of(blocks.tolist())
        values, weight = self.pending[rows], self._waiting(blocks)
        for other in self._parts:
            if other != part and (away := self._away(other, blocks, iteration)).any():
                values, weight = values.copy(), weight - away * storage.sent_weight[other, blocks]
                for code in np.unique(storage.sent_lanes[other, blocks[away]]).tolist():
                    those = away & (storage.sent_lanes[other, blocks] == code)
                    values[those] -= self._decoded(other, blocks[those])
        kept = storage.sent[part][rows]
        packed = encode_packed(self._codecs[lanes], values, scale[blocks, None], kept)
        if not isinstance(rows, slice):
            storage.sent[part, rows] = kept
        storage.sent_scale[part, blocks], storage.sent_lanes[part, blocks] = scale[blocks], lanes
        storage.sent_weight[part, blocks] = weight
        storage.sent_oldest[part, blocks] = storage.oldest[blocks]
        storage.sent_in[part, blocks] = iteration
        if part not in self._parts:
            self._parts.append(part)
        return _by_block(packed, blocks)

    def _parts_of(self, iteration: int) -> list[int]:
        """Those that anything was sent as in an iteration, by an earlier process perhaps."""
        return [part for part in range(PARTS) if (self._storage.sent_in[part] == iteration).any()]

    def _away(self, part: int, blocks: Integers, iteration: int) -> npt.NDArray[np.bool_]:
        """Of which of these blocks a part is on its way: sent in this iteration, and its result is not known."""
        storage = self._storage
        away: npt.NDArray[np.bool_] = storage.sent_in[part, blocks] == iteration
        away &= storage.settled[blocks] >> SETTLED_BITS < iteration
        return away

    def _decoded(self, part: int, blocks: Integers) -> Fixed:
        """What was sent as a part of blocks in the same lanes stands for, shape (blocks, elements)."""
        storage = self._storage
        codec = self._codecs[int(storage.sent_lanes[part, blocks[0]])]
        return codec.decode(storage.sent[part, blocks], storage.sent_scale[part, blocks, None], 1)

    def settle(self, *results: Result) -> None:
        """Take note of results of different blocks: what they hold of this worker is aggregated; copies change nothing.

        Nor does that of a summary block, whose number is above all others': it is not in the ledger.
        """
        marks, news = self._marks, list[tuple[int, int, int]]()  # block, iteration, parts
        aggregated: dict[int, list[int]] = {}
        for result in results:
            iteration, block = result.id
            if block >= len(marks) or marks[block] >> SETTLED_BITS >= iteration:
                continue
            parts = self._parts_in(result)
            news.append((block, iteration, parts))
            for part in range(PARTS) if parts else ():
                if parts >> part & 1:
                    self._check_sent(result, part)
                    aggregated.setdefault(part, []).append(block)
        done = set[int]()
        for part, blocks in aggregated.items():
            self._count(part, [block for block in blocks if block not in done])
            self._count_more(part, [block for block in blocks if block in done])
            done.update(blocks)
        for block, iteration, parts in news:
            before = marks[block]
            copies = before & (COPY | DISCARDED) ^ (COPY if parts else 0)
            copies ^= self._after(block, iteration, copies & COPY, parts)
            marks[block] = iteration << SETTLED_BITS | parts << PARTS_IN | copies

    def _parts_in(self, result: Result) -> int:
        """Which parts of this worker's contribution are in a sum: bit p for part p."""
        if not result.members & self._mine:
            return 0
        return sum(1 << part for part, bit in enumerate(self._bits) if result.members & bit)

    def _count(self, part: int, blocks: Sequence[int]) -> None:
        """What was sent of these as a part is aggregated, once their marks say so."""
        if not blocks:
            return
        storage, lanes = self._storage, self._sent_lanes
        for block in blocks:
            valid = 1 - (self._marks[block] & COPY)
            self._aggregated_weight[valid, block] = (
                self._aggregated_weight[1 - valid, block] + self._sent_weight[part, block]
            )
        codes = {lanes[part, block] for block in blocks}
        for code in codes:
            alike = np.array([block for block in blocks if lanes[part, block] == code] if len(codes) > 1 else blocks)
            into = (alike, 1 - (storage.settled[alike] & COPY), storage.aggregated, self.pending)
            count_sent(self._codecs[code], storage.sent[part], storage.sent_scale[part, alike], *into)

    def _count_more(self, part: int, blocks: Sequence[int]) -> None:
        """The same beside another part that is aggregated already, in the copies that their marks will make valid."""
        storage = self._storage
        for block in blocks:
            valid = 1 - (self._marks[block] & COPY)
            values = self._decoded(part, np.array([block]))[0]
            storage.aggregated[valid, block] += values
            self.pending[block] -= values
            self._aggregated_weight[valid, block] += self._sent_weight[part, block]

    def _after(self, block: int, iteration: int, aggregated: int, parts: int) -> int:
        """What is discarded once a block has closed, as its mark has to say: DISCARDED, or 0 for nothing.

        `aggregated`: the copy that becomes valid.
        """
        discarded = self._discarded_copy_of(block)
        weight = self._gradients_weight[self._entered[block] & COPY, block]
        weight -= self._aggregated_weight[aggregated, block] + self._discarded_weight[discarded, block]
        if weight <= 0:
            if parts and not self._feedback:
                self._throw_away(block, discarded, self.pending[block].copy(), 0)
                return DISCARDED
            return 0
        self._oldest[block] = oldest = self._oldest_left(block, iteration, parts, weight)
        share = self.age.older(iteration + 1 - oldest)
        if share == WEIGHT_UNIT:
            return 0
        left = weight * share // WEIGHT_UNIT
        values = self.pending[block]
        lost = values - share_of(values, share) if left else values.copy()
        self._throw_away(block, discarded, lost, weight - left)
        return DISCARDED

    def _oldest_left(self, block: int, iteration: int, parts: int, weight: int) -> int:
        """When the oldest gradient was begun of this weight, which waits once a block has closed with some parts."""
        waits = list[int]()
        for part in range(PARTS):
            if self._sent_in[part, block] == iteration and not parts >> part & 1 and self._sent_weight[part, block]:
                weight -= self._sent_weight[part, block]
                waits.append(self._sent_oldest[part, block])
        return min([*waits, self._oldest[block]] if weight else waits)

    def _throw_away(self, block: int, copy: int, values: Fixed, weight: int) -> None:
        """Move values of a block from `pending` to the copy of `discarded` that is not `copy`."""
        storage = self._storage
        storage.discarded[1 - copy, block] = storage.discarded[copy, block] + values
        storage.discarded_weight[1 - copy, block] = storage.discarded_weight[copy, block] + weight
        self.pending[block] -= values

    def reconcile(self, result: Result) -> None:
        """Take a block's count back where the others' result of it has other parts of this worker's contribution.

        The switch died with the result that this worker had, this worker died before anyone asked it, and the others
        made the result again.  The other copy of `aggregated` is still the one from before.  What is taken back was in
        time once: it is as old as the newest gradient.
        """
        block, iteration = result.id.block, result.id.iteration
        if block >= self.blocks:
            return
        mark, theirs = self._marks[block], self._parts_in(result)
        mine = mark >> PARTS_IN & (1 << PARTS) - 1
        if mark >> SETTLED_BITS != iteration or mine == theirs or not mine:
            return
        if not self._unsent(np.array([block]), self.begun)[0]:
            self._oldest[block] = self._begun_in(block)
        known = iteration - bool(theirs)  # what they have of it is still to be settled
        self._marks[block] = known << SETTLED_BITS | mark & DISCARDED | COPY - (mark & COPY)
        gradients, aggregated, discarded = self._valid(block)
        self.pending[block] = gradients - aggregated - discarded
        if theirs:
            self.settle(result)

    def unsettled(self, iteration: int) -> list[int]:
        """Blocks that were sent in this iteration and whose result is not known."""
        sent = (self._storage.sent_in == iteration).any(axis=0)
        return [int(block) for block in np.flatnonzero(sent & (self._storage.settled >> SETTLED_BITS < iteration))]

    def totals(self) -> LedgerTotals:
        gradients, aggregated, discarded = (copies.ravel() for copies in self._valid(np.arange(self.blocks)))
        return LedgerTotals(gradients, aggregated, self.pending.ravel().copy(), discarded)

    def account(self) -> Account:
        """What became of the gradients' weight."""
        entered, aggregated, discarded = self._weights(np.arange(self.blocks))
        return Account(
            entered=_mean(entered),
            summed=_mean(aggregated),
            waiting=_mean(entered - aggregated - discarded),
            discarded=_mean(discarded),
            oldest=self.oldest,
        )

    def _waiting(self, blocks: Integers) -> Integers:
        """The weight of the gradients of these blocks that are pending."""
        entered, aggregated, discarded = self._weights(blocks)
        return entered - aggregated - discarded

    def _weights(self, blocks: Integers) -> tuple[Integers, Integers, Integers]:
        """The valid copies of the weights of the gradients that these blocks have entered, aggregated and discarded."""
        storage = self._storage
        return (
            storage.gradients_weight[storage.entered[blocks] & COPY, blocks],
            storage.aggregated_weight[storage.settled[blocks] & COPY, blocks],
            storage.discarded_weight[self._discarded_copy(blocks), blocks],
        )

    def _unsent(self, blocks: Integers, iteration: int) -> Integers:
        """The weight of those of them that no contribution to this iteration brings."""
        weight = self._waiting(blocks)
        for part in self._parts:
            weight = weight - self._away(part, blocks, iteration) * self._storage.sent_weight[part, blocks]
        return weight

    def _check_sent(self, result: Result, part: int) -> None:
        """That this worker had sent something for a result that says it is in it."""
        iteration, block = result.id
        if self._sent_in[part, block] != iteration:
            raise ProtocolError(
                f"block {block} of iteration {iteration} has a contribution of worker {self.rank}, which sent none:"
                " is another process running with this rank?"
            )

    def _begun_in(self, block: int) -> int:
        """The iteration in which the newest gradient in a block was begun."""
        return self._entered[block] >> ENTERED_BITS + BATCH_BITS

    def _discarded_copy(self, blocks: Integers | int) -> Integers:
        """The valid copy of `discarded` of these blocks."""
        valid: Integers = (self._storage.entered[blocks] ^ self._storage.settled[blocks]) >> 1 & 1
        return valid

    def _discarded_copy_of(self, block: int) -> int:
        return (self._entered[block] ^ self._marks[block]) >> 1 & 1

    def _valid(self, blocks: Integers | int) -> tuple[Fixed, Fixed, Fixed]:
        """The valid copies of what these blocks have of gradients, aggregated and discarded values, (N, lanes) each."""
        storage = self._storage
        return (
            storage.gradients[storage.entered[blocks] & COPY, blocks],
            storage.aggregated[storage.settled[blocks] & COPY, blocks],
            storage.discarded[self._discarded_copy(blocks), blocks],
        )


def _mean(weights: Integers) -> float:
    """In gradients, over the blocks."""
    return float(weights.mean()) / WEIGHT_UNIT


def _by_block(packed: bytes, blocks: Integers) -> dict[int, bytes]:
    """What belongs to each of the blocks, of which `packed` has one after another."""
    size = len(packed) // blocks.size
    return {block: packed[at * size : (at + 1) * size] for at, block in enumerate(blocks.tolist())}
