"""A worker's books: what its gradients were, what of them was counted, what was discarded, and what is left.

`pending` is everything that no result has counted yet: the newest gradient, what came too late, and what quantization
left over.  A worker contributes to a block of an iteration up to PARTS times; each time it sends all that is pending
and not on its way to that block already.  So a late gradient is added to the same block of a later iteration (source:
the slow-node scheduling document, claim "stored data is summed with the same block of the next iteration").
Everything is integer: conservation, gradients = counted + pending + discarded, is exact or broken.

Beside the values the books have the weight of the gradients that are in them, block by block, in 1 / WEIGHT_UNIT: a
contribution says what it brings, so that a sum can be divided by what is in it.  A gradient weighs 1 when it is
entered, less if it is old by then (host.age); and whenever a block closes without something that waits in it, all that
waits there becomes an iteration older.  What it loses of its weight is discarded.  A gradient that was sent is counted
when its block is, although rounding has left something of it over: what is left over weighs nothing.  Without
`feedback` that is thrown away.

A block may rest for some iterations, and be sent in other lanes each time: what was sent is noted with its lanes and
its scale, and counted as the codec of these lanes reads them.

The books may live in a file mapped into memory (host.pages), so that they survive the death of the process at any
instruction.  What was sent is noted before it is sent; of each block the gradients, what was counted and what was
discarded are kept twice, and one aligned 64-bit store says which copies are valid and up to which gradient or
iteration: a gradient is entered, and a result settled, entirely or not at all, and never twice.  Who dies between two
blocks of a gradient enters the others when it computes the iteration again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host.account import Account
from host.age import NOTHING_FADES, AgeWeight, share_of
from host.compress import Codec, Exponents, Fixed, count_sent, encode_packed, enter
from host.errors import ProtocolError
from host.history import Result
from host.kernel import Floats32, rows_of
from host.lanes import pack, width_of
from host.pages import Integers, Pages
from host.wire import PARTS, WEIGHT_MAX, WEIGHT_UNIT, Values

COPY, DISCARDED, PARTS_IN = 1, 2, 2
"""In the marks of host.pages: the bit of the valid copy, the bit for `discarded`; where parts begin in `settled`."""

SETTLED_BITS = PARTS_IN + PARTS
ENTERED_BITS = 2
BATCH_BITS = PARTS.bit_length() - 1
"""A gradient's key: its iteration, then which one of the worker's in that."""


@dataclass(frozen=True, slots=True)
class Books:
    """Totals over a run, int64 in units of 2**-40, shape (elements,)."""

    gradients: Fixed
    counted: Fixed
    pending: Fixed
    discarded: Fixed

    @property
    def conserved(self) -> bool:
        """Whether every element of every gradient was counted, is still pending, or was discarded on purpose."""
        return bool(np.array_equal(self.gradients, self.counted + self.pending + self.discarded))


class Residual:
    """The books of worker `rank` in `pages`: blocks are rows; `codecs` by the code of their lanes (host.wire.Lanes).

    `age`: what old gradients weigh; without `feedback` what encoding leaves over is thrown away.
    """

    def __init__(
        self,
        pages: Pages,
        rank: int,
        codecs: Mapping[int, Codec],
        *,
        age: AgeWeight = NOTHING_FADES,
        feedback: bool = True,
    ) -> None:
        self.rank, self.age = rank, age
        self._pages, self._codecs, self._feedback = pages, codecs, feedback
        # faster, one by one
        self._entered, self._marks, self._oldest = (
            array.data for array in (pages.entered, pages.settled, pages.oldest)
        )
        self._gradients_weight, self._counted_weight, self._discarded_weight = (
            array.data for array in (pages.gradients_weight, pages.counted_weight, pages.discarded_weight)
        )
        self._sent_in, self._sent_lanes, self._sent_weight, self._sent_oldest = (
            array.data for array in (pages.sent_in, pages.sent_lanes, pages.sent_weight, pages.sent_oldest)
        )
        self._mine = sum(1 << (part * 64 + rank) for part in range(PARTS))
        gradients, counted, discarded = self._valid(np.arange(self.blocks))
        self.pending: Fixed = gradients - counted - discarded
        self._parts = self._parts_of(self.begun)

    @property
    def blocks(self) -> int:
        """How many."""
        return int(self._pages.sent.shape[1])

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._pages.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the books, all of it."""
        return int(self._pages.entered.min()) >> ENTERED_BITS + BATCH_BITS

    @property
    def waiting(self) -> Integers:
        """The weight of the gradients that no result has counted yet and nobody has discarded, shape (blocks,)."""
        return self._waiting(np.arange(self.blocks))

    def unsent(self, iteration: int) -> Integers:
        """The weight of those of them that no contribution to this iteration brings, shape (blocks,)."""
        return self._unsent(np.arange(self.blocks), iteration)

    @property
    def oldest(self) -> int:
        """The iteration in which the oldest gradient was begun that waits in any block; 0: none waits."""
        pages, everything = self._pages, np.arange(self.blocks)
        waits = [pages.oldest[self._unsent(everything, self.begun) > 0]]
        for part in self._parts:
            brought = self._away(part, everything, self.begun) & (pages.sent_weight[part] > 0)
            waits.append(pages.sent_oldest[part, brought])
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
        self._pages.begun[0] = max(self.begun, iteration)
        self._parts = self._parts_of(iteration)

    def add(
        self,
        gradient: Floats32,
        iteration: int,
        blocks: Integers | None = None,
        *,
        batch: int = 0,
        current: int | None = None,
    ) -> None:
        """Enter a gradient that is good (host.compress.check), or what it has of these blocks.

        Shape (elements,) with elements <= blocks * lanes.  It was begun in `iteration`, as the worker's `batch`-th one
        (0 to PARTS - 1) there; `current` is the iteration by now (None: the same).  Blocks that have it, or a later
        one, keep what they have: it was computed before a restart.
        """
        pages, key = self._pages, iteration * PARTS + batch
        chosen = np.arange(self.blocks) if blocks is None else blocks
        fresh: Integers = chosen[pages.entered[chosen] >> ENTERED_BITS < key]
        valid = 1 - (pages.entered[fresh] & COPY)
        enter(gradient, fresh, valid, pages.gradients, self.pending)
        pages.gradients_weight[valid, fresh] = pages.gradients_weight[1 - valid, fresh] + WEIGHT_UNIT
        now = iteration if current is None else current
        ages = now + (pages.settled[fresh] >> SETTLED_BITS >= now) - iteration
        marks = key << ENTERED_BITS | pages.entered[fresh] & DISCARDED | valid
        for age in np.unique(ages[ages > 0]).tolist():
            if (share := self.age.at(age)) < WEIGHT_UNIT:
                old = ages == age
                self._fade_newest(fresh[old], valid[old], share)
                marks[old] ^= DISCARDED
        alone = fresh[self._unsent(fresh, self.begun) == 0]
        pages.oldest[alone] = iteration
        pages.entered[fresh] = marks

    def _fade_newest(self, blocks: Integers, valid: Integers, share: int) -> None:
        """Leave of a gradient, which copy `valid` has in addition, only this share; the marks are not yet written."""
        pages = self._pages
        lost = pages.gradients[valid, blocks] - pages.gradients[1 - valid, blocks]
        lost -= share_of(lost, share)
        into = 1 - self._discarded_copy(blocks)
        pages.discarded[into, blocks] = pages.discarded[1 - into, blocks] + lost
        pages.discarded_weight[into, blocks] = pages.discarded_weight[1 - into, blocks] + WEIGHT_UNIT - share
        self.pending[blocks] -= lost

    def sending(
        self, iteration: int, blocks: Integers, lanes: int, scale: Exponents, part: int = 0
    ) -> dict[int, bytes]:
        """Encode and note what this iteration sends of these blocks, ascending, as this part of the contribution.

        `lanes`: their code; `scale`: every block's, shape (B,).  What was sent in this iteration before a restart
        stays; of the others the values are returned as on the wire, by block.
        """
        fresh: Integers = blocks[self._pages.sent_in[part, blocks] != iteration]
        return self._encode(fresh, iteration, lanes, scale, part)

    def send_again(
        self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int = 0
    ) -> dict[int, bytes]:
        """Encode blocks, of which nothing is on its way, once more, in lanes and at scales as above, and note it."""
        pages = self._pages
        brings = self._away(part, blocks, iteration) & (pages.sent_weight[part, blocks] > 0)
        fresh, brought = pages.oldest[blocks], pages.sent_oldest[part, blocks]
        alone = self._unsent(blocks, iteration) == 0
        pages.oldest[blocks] = np.where(brings, np.where(alone, brought, np.minimum(fresh, brought)), fresh)
        pages.sent_in[part, blocks] = 0
        return self._encode(blocks, iteration, lanes, scale, part)

    def noted(self, blocks: Integers, part: int = 0) -> dict[int, bytes]:
        """The values of blocks as on the wire, as they were sent last: what an earlier process has encoded."""
        values: dict[int, bytes] = {}
        codes, sent = self._pages.sent_lanes[part], self._pages.sent[part]
        for lanes in np.unique(codes[blocks]).tolist():
            alike = blocks[codes[blocks] == lanes]
            values |= _by_block(pack(sent[alike], width_of(lanes)), alike)
        return values

    def noted_of(self, blocks: Sequence[int], part: int = 0) -> Iterator[tuple[int, int, int]]:
        """Of each of these blocks scale, lanes, and the weight that its contribution says that it brings.

        At most WEIGHT_MAX.  At least 1: after a death a block is sent that was found closed, and its gradient
        discarded, before that.
        """
        pages, rows = self._pages, np.array(blocks, int)
        weights = np.clip(pages.sent_weight[part, rows], 1, WEIGHT_MAX)
        codes = pages.sent_lanes[part, rows]
        return zip(pages.sent_scale[part, rows].tolist(), codes.tolist(), weights.tolist(), strict=True)

    def sent_in(self, iteration: int) -> Values:
        """A copy of what was sent in an iteration, shape (PARTS, blocks, elements), 0 where nothing was."""
        return np.where((self._pages.sent_in == iteration)[:, :, None], self._pages.sent, 0)

    def left_over(self, blocks: Integers) -> Fixed:
        """What encoding has left over of blocks that were sent in the same lanes, shape (blocks, elements)."""
        left: Fixed = self.pending[blocks] - self._decoded(0, blocks)
        return left

    def alike(self, blocks: Integers, lanes: int) -> Integers:
        """Those of these blocks that were sent in lanes of this code."""
        found: Integers = blocks[self._pages.sent_lanes[0, blocks] == lanes]
        return found

    def _encode(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents, part: int) -> dict[int, bytes]:
        """Into `sent`, with all that belongs to it, and as on the wire."""
        if not blocks.size:
            return {}
        pages, rows = self._pages, rows_of(blocks.tolist())
        values, weight = self.pending[rows], self._waiting(blocks)
        for other in self._parts:
            if other != part and (away := self._away(other, blocks, iteration)).any():
                values, weight = values.copy(), weight - away * pages.sent_weight[other, blocks]
                for code in np.unique(pages.sent_lanes[other, blocks[away]]).tolist():
                    those = away & (pages.sent_lanes[other, blocks] == code)
                    values[those] -= self._decoded(other, blocks[those])
        kept = pages.sent[part][rows]
        packed = encode_packed(self._codecs[lanes], values, scale[blocks, None], kept)
        if not isinstance(rows, slice):
            pages.sent[part, rows] = kept
        pages.sent_scale[part, blocks], pages.sent_lanes[part, blocks] = scale[blocks], lanes
        pages.sent_weight[part, blocks] = weight
        pages.sent_oldest[part, blocks] = pages.oldest[blocks]
        pages.sent_in[part, blocks] = iteration
        if part not in self._parts:
            self._parts.append(part)
        return _by_block(packed, blocks)

    def _parts_of(self, iteration: int) -> list[int]:
        """Those that anything was sent as in an iteration, by an earlier process perhaps."""
        return [part for part in range(PARTS) if (self._pages.sent_in[part] == iteration).any()]

    def _away(self, part: int, blocks: Integers, iteration: int) -> npt.NDArray[np.bool_]:
        """Of which of these blocks a part is on its way: sent in this iteration, and its result is not known."""
        pages = self._pages
        away: npt.NDArray[np.bool_] = pages.sent_in[part, blocks] == iteration
        away &= pages.settled[blocks] >> SETTLED_BITS < iteration
        return away

    def _decoded(self, part: int, blocks: Integers) -> Fixed:
        """What was sent as a part of blocks in the same lanes stands for, shape (blocks, elements)."""
        pages = self._pages
        codec = self._codecs[int(pages.sent_lanes[part, blocks[0]])]
        return codec.decode(pages.sent[part, blocks], pages.sent_scale[part, blocks, None], 1)

    def settle(self, *results: Result) -> None:
        """Take note of results of different blocks: what they hold of this worker is counted; copies change nothing.

        Nor does that of a summary block, whose number is above all others': it is not in the books.
        """
        marks, news = self._marks, list[tuple[int, int, int]]()  # block, iteration, parts
        counted: dict[int, list[int]] = {}
        for result in results:
            iteration, block = result.id
            if block >= len(marks) or marks[block] >> SETTLED_BITS >= iteration:
                continue
            parts = self._parts_in(result)
            news.append((block, iteration, parts))
            for part in range(PARTS) if parts else ():
                if parts >> part & 1:
                    self._check_sent(result, part)
                    counted.setdefault(part, []).append(block)
        done = set[int]()
        for part, blocks in counted.items():
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
        mine = result.members & self._mine
        if not mine:
            return 0
        return sum(1 << part for part in range(PARTS) if mine >> (part * 64 + self.rank) & 1)

    def _count(self, part: int, blocks: Sequence[int]) -> None:
        """What was sent of these as a part is counted, once their marks say so."""
        if not blocks:
            return
        pages, lanes = self._pages, self._sent_lanes
        for block in blocks:
            valid = 1 - (self._marks[block] & COPY)
            self._counted_weight[valid, block] = self._counted_weight[1 - valid, block] + self._sent_weight[part, block]
        codes = {lanes[part, block] for block in blocks}
        for code in codes:
            alike = np.array([block for block in blocks if lanes[part, block] == code] if len(codes) > 1 else blocks)
            into = (alike, 1 - (pages.settled[alike] & COPY), pages.counted, self.pending)
            count_sent(self._codecs[code], pages.sent[part], pages.sent_scale[part, alike], *into)

    def _count_more(self, part: int, blocks: Sequence[int]) -> None:
        """The same beside another part that is counted already, in the copies that their marks will make valid."""
        pages = self._pages
        for block in blocks:
            valid = 1 - (self._marks[block] & COPY)
            values = self._decoded(part, np.array([block]))[0]
            pages.counted[valid, block] += values
            self.pending[block] -= values
            self._counted_weight[valid, block] += self._sent_weight[part, block]

    def _after(self, block: int, iteration: int, counted: int, parts: int) -> int:
        """What is discarded once a block has closed, as its mark has to say: DISCARDED, or 0 for nothing.

        `counted`: the copy that becomes valid.
        """
        discarded = self._discarded_copy_of(block)
        weight = self._gradients_weight[self._entered[block] & COPY, block]
        weight -= self._counted_weight[counted, block] + self._discarded_weight[discarded, block]
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
        pages = self._pages
        pages.discarded[1 - copy, block] = pages.discarded[copy, block] + values
        pages.discarded_weight[1 - copy, block] = pages.discarded_weight[copy, block] + weight
        self.pending[block] -= values

    def reconcile(self, result: Result) -> None:
        """Take a block's count back where the others' result of it has other parts of this worker's contribution.

        The switch died with the result that this worker had, this worker died before anyone asked it, and the others
        made the result again.  The other copy of `counted` is still the one from before.  What is taken back was in
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
        gradients, counted, discarded = self._valid(block)
        self.pending[block] = gradients - counted - discarded
        if theirs:
            self.settle(result)

    def unsettled(self, iteration: int) -> list[int]:
        """Blocks that were sent in this iteration and whose result is not known."""
        sent = (self._pages.sent_in == iteration).any(axis=0)
        return [int(block) for block in np.flatnonzero(sent & (self._pages.settled >> SETTLED_BITS < iteration))]

    def books(self) -> Books:
        """Copies of the totals."""
        gradients, counted, discarded = (copies.ravel() for copies in self._valid(np.arange(self.blocks)))
        return Books(gradients, counted, self.pending.ravel().copy(), discarded)

    def account(self) -> Account:
        """What became of the gradients' weight."""
        pages, blocks = self._pages, np.arange(self.blocks)
        entered = pages.gradients_weight[pages.entered & COPY, blocks]
        counted = pages.counted_weight[pages.settled & COPY, blocks]
        discarded = pages.discarded_weight[self._discarded_copy(blocks), blocks]
        waiting = entered - counted - discarded
        return Account(
            entered=_mean(entered),
            summed=_mean(counted),
            waiting=_mean(waiting),
            discarded=_mean(discarded),
            oldest=self.oldest,
        )

    def _waiting(self, blocks: Integers) -> Integers:
        """The weight of the gradients of these blocks that are pending."""
        pages = self._pages
        entered = pages.gradients_weight[pages.entered[blocks] & COPY, blocks]
        counted = pages.counted_weight[pages.settled[blocks] & COPY, blocks]
        pending: Integers = entered - counted - pages.discarded_weight[self._discarded_copy(blocks), blocks]
        return pending

    def _unsent(self, blocks: Integers, iteration: int) -> Integers:
        """The weight of those of them that no contribution to this iteration brings."""
        weight = self._waiting(blocks)
        for part in self._parts:
            weight = weight - self._away(part, blocks, iteration) * self._pages.sent_weight[part, blocks]
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

    def _discarded_copy(self, blocks: Integers) -> Integers:
        """The valid copy of `discarded` of these blocks."""
        valid: Integers = (self._pages.entered[blocks] ^ self._pages.settled[blocks]) >> 1 & 1
        return valid

    def _discarded_copy_of(self, block: int) -> int:
        """The same of one."""
        return (self._entered[block] ^ self._marks[block]) >> 1 & 1

    def _valid(self, blocks: Integers | int) -> tuple[Fixed, Fixed, Fixed]:
        """The valid copies of what these blocks have of gradients, counted and discarded values, (N, lanes) each."""
        pages = self._pages
        return (
            pages.gradients[pages.entered[blocks] & COPY, blocks],
            pages.counted[pages.settled[blocks] & COPY, blocks],
            pages.discarded[(pages.entered[blocks] ^ pages.settled[blocks]) >> 1 & 1, blocks],
        )


def _mean(weights: Integers) -> float:
    """In gradients, over the blocks."""
    return float(weights.mean()) / WEIGHT_UNIT


def _by_block(packed: bytes, blocks: Integers) -> dict[int, bytes]:
    """What belongs to each of the blocks, of which `packed` has one after another."""
    size = len(packed) // blocks.size
    return {block: packed[at * size : (at + 1) * size] for at, block in enumerate(blocks.tolist())}
