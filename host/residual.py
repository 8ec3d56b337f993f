"""A worker's books: what its gradients were, what of them was counted, what was discarded, and what is left.

`pending` is everything that no result has counted yet: the stash of blocks that came too late, what quantization left
over, and the newest gradient.  Each iteration sends `pending`, so a late block is added to the same block of the next
iteration (source: the slow-node scheduling document, claim "stored data is summed with the same block of the next
iteration").  With `drop` the newest gradient's part of a block that is closed without this worker is thrown away
instead: it moves from `pending` to `discarded`, and what earlier ones had left there stays.  Everything is integer:
conservation, gradients = counted + pending + discarded, is exact or broken.

Beside the values the books have the number of gradients that are in them, block by block: a contribution says how many
it brings, so that a sum can be divided by what is in it.  A gradient that was sent is counted when its block is,
although rounding has left something of it over: what is left over is no gradient.  Without `feedback` that is thrown
away: a block of which no gradient is pending holds nothing else, and all of it is discarded, at once, or by the process
that comes after a death.

A block may rest for some iterations, and be sent in other lanes each time: what was sent is noted with its lanes and
its scale, and counted as the codec of these lanes reads them.

The books may live in a file mapped into memory (host.pages), so that they survive the death of the process at any
instruction.  What was sent is noted before it is sent; of each block the gradients, what was counted and what was
discarded are kept twice, and one aligned 64-bit store says which copy is valid and up to which iteration: a gradient is
entered, a result counted and a late block discarded entirely or not at all, and never twice.  The newest gradient is
what the two copies of the gradients differ by: the older one is written over only when the newest is settled.  Who dies
between two blocks of a gradient enters the others when it computes the iteration again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host.compress import Codec, Exponents, Fixed, count_sent, encode_packed, enter
from host.errors import ProtocolError
from host.history import Result
from host.kernel import Floats32, rows_of
from host.lanes import pack, width_of
from host.pages import Integers, Pages
from host.wire import GRADIENTS_MAX, Values


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

    `drop`: what comes too late is thrown away; without `feedback` what encoding leaves over is, too.
    """

    def __init__(
        self, pages: Pages, rank: int, codecs: Mapping[int, Codec], *, drop: bool = False, feedback: bool = True
    ) -> None:
        self.rank = rank
        self._pages, self._codecs, self._drop, self._feedback = pages, codecs, drop, feedback
        self.sent: Values = pages.sent
        """The lanes of each block as they were sent last, shape (blocks, elements)."""
        self.sent_scale: npt.NDArray[np.int64] = pages.sent_scale
        """Their scales, shape (blocks,)."""
        self.sent_lanes: npt.NDArray[np.int64] = pages.sent_lanes
        """The codes of their lanes, shape (blocks,)."""
        # faster, one by one
        self._entered, self._marks, self._counted_number = (
            array.data for array in (pages.entered, pages.settled, pages.counted_number)
        )
        self._sent_in, self._sent_lanes, self._sent_number = (
            array.data for array in (pages.sent_in, pages.sent_lanes, pages.sent_number)
        )
        everything = np.arange(len(self.sent))
        gradients, counted, discarded = self._valid(everything)
        self.pending: Fixed = gradients - counted - discarded
        self._discard_late(everything)  # what an earlier process had no time for
        if not feedback:
            for block in np.flatnonzero((self.pending_gradients == 0) & self.pending.any(axis=1)):
                self._discard_rest(int(block))

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._pages.begun[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the books, all of it."""
        return int(self._pages.entered.min()) >> 1

    @property
    def pending_gradients(self) -> Integers:
        """How many gradients no result has counted yet and nobody has discarded, shape (blocks,)."""
        return self._waiting(np.arange(len(self.sent)))

    def begin(self, iteration: int) -> None:
        """Note that an iteration has begun; one that was begun before a restart may be ahead of it."""
        self._pages.begun[0] = max(self.begun, iteration)

    def add(self, gradient: Floats32, iteration: int, blocks: Integers | None = None) -> None:
        """Enter a gradient that is good (host.compress.check), or what it has of these blocks.

        Shape (elements,) with elements <= blocks * lanes.  Blocks that have this iteration's keep it.
        """
        pages = self._pages
        chosen = np.arange(len(self.sent)) if blocks is None else blocks
        fresh: Integers = chosen[pages.entered[chosen] >> 1 != iteration]
        valid = 1 - (pages.entered[fresh] & 1)
        enter(gradient, fresh, valid, pages.gradients, self.pending)
        pages.gradients_number[valid, fresh] = pages.gradients_number[1 - valid, fresh] + 1
        pages.entered[fresh] = iteration << 1 | valid
        self._discard_late(fresh)

    def sending(self, iteration: int, blocks: Integers, lanes: int, scale: Exponents) -> dict[int, bytes]:
        """Encode and note what this iteration sends of these blocks, ascending: all that is pending in them.

        `lanes`: their code; `scale`: every block's, shape (B,).  What was sent in this iteration before a restart
        stays; of the others the values are returned as on the wire, by block.
        """
        fresh: Integers = blocks[self._pages.sent_in[blocks] != iteration]
        return self._encode(fresh, iteration, lanes, scale)

    def send_again(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents) -> dict[int, bytes]:
        """Encode blocks, of which nothing is on its way, once more, in lanes and at scales as above, and note it."""
        self._pages.sent_in[blocks] = 0
        return self._encode(blocks, iteration, lanes, scale)

    def noted(self, blocks: Integers) -> dict[int, bytes]:
        """The values of blocks as on the wire, as they were sent last: what an earlier process has encoded."""
        values: dict[int, bytes] = {}
        for lanes in np.unique(self.sent_lanes[blocks]).tolist():
            alike = blocks[self.sent_lanes[blocks] == lanes]
            values |= _by_block(pack(self.sent[alike], width_of(lanes)), alike)
        return values

    def noted_of(self, blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Of each of these blocks scale, lanes, and how many gradients its contribution says that it brings.

        At most GRADIENTS_MAX.  At least 1: after a death a block is sent that was found closed, and its gradient
        discarded, before that.
        """
        rows = np.array(blocks, int)
        gradients = np.clip(self._pages.sent_number[rows], 1, GRADIENTS_MAX)
        return zip(self.sent_scale[rows].tolist(), self.sent_lanes[rows].tolist(), gradients.tolist(), strict=True)

    def left_over(self, blocks: Integers) -> Fixed:
        """What encoding has left over of blocks that were sent in the same lanes, shape (blocks, elements)."""
        codec = self._codecs[int(self.sent_lanes[blocks[0]])]
        left: Fixed = self.pending[blocks] - codec.decode(self.sent[blocks], self.sent_scale[blocks, None], 1)
        return left

    def _encode(self, blocks: Integers, iteration: int, lanes: int, scale: Exponents) -> dict[int, bytes]:
        """Into `sent`, with all that belongs to it, and as on the wire."""
        if not blocks.size:
            return {}
        rows = rows_of(blocks.tolist())
        kept = self.sent[rows]
        packed = encode_packed(self._codecs[lanes], self.pending[rows], scale[blocks, None], kept)
        if not isinstance(rows, slice):
            self.sent[rows] = kept
        self.sent_scale[blocks], self.sent_lanes[blocks] = scale[blocks], lanes
        self._pages.sent_number[blocks] = self._waiting(blocks)
        self._pages.sent_in[blocks] = iteration
        return _by_block(packed, blocks)

    def settle(self, *results: Result) -> None:
        """Take note of results of different blocks: what they hold of this worker is counted; copies change nothing.

        Nor does that of a summary block, whose number is above all others': it is not in the books.
        """
        marks, counted = self._marks, list[int]()
        news = list[tuple[int, int]]()  # block, mark
        for result in results:
            iteration, block = result.id
            if block >= len(marks) or marks[block] >> 2 >= iteration:
                continue
            included = result.members >> self.rank & 1
            news.append((block, iteration << 2 | included << 1 | (marks[block] & 1) ^ included))
            if included:
                self._check_sent(result)
                counted.append(block)
        if counted:
            self._count(counted)
        for block, mark in news:
            marks[block] = mark
            self._settled_as(block, mark)

    def _count(self, blocks: Sequence[int]) -> None:
        """What was sent of these is counted, once their marks say so."""
        marks, number, brought, lanes = self._marks, self._counted_number, self._sent_number, self._sent_lanes
        for block in blocks:
            valid = 1 - (marks[block] & 1)
            number[valid, block] = number[1 - valid, block] + brought[block]
        codes = {lanes[block] for block in blocks}
        for code in codes:
            alike = np.array([block for block in blocks if lanes[block] == code] if len(codes) > 1 else blocks)
            into = (alike, 1 - (self._pages.settled[alike] & 1), self._pages.counted, self.pending)
            count_sent(self._codecs[code], self.sent, self.sent_scale[alike], *into)

    def _settled_as(self, block: int, mark: int) -> None:
        """What is thrown away now that this is in the books."""
        included = mark >> 1 & 1
        if included and not self._feedback and not self._waiting(np.array([block]))[0]:
            self._discard_rest(block)
        if self._drop and not included and mark >> 2 == self._entered[block] >> 1:
            self._discard(block)

    def _discard_late(self, blocks: Integers) -> None:
        """Throw away the newest gradient's part of those that were closed before it was entered; if `drop`."""
        if self._drop:
            settled, newest = self._pages.settled[blocks], self._pages.entered[blocks] >> 1
            late = (settled >> 1 == newest << 1) & (self._pages.decided[blocks] >> 1 < newest)
            for block in blocks[late].tolist():
                self._discard(block)

    def reconcile(self, result: Result) -> None:
        """Take a block's count back where the others' result of it does not have it.

        The switch died with the result that this worker had, this worker died before anyone asked it, and the others
        made the result again.  The other copy of `counted` is still the one from before.  What is taken back was in
        time once, so it is not discarded but pending again.
        """
        block, iteration = result.id.block, result.id.iteration
        if block >= len(self.sent):
            return
        settled, included, valid = self._settled(block)
        if settled == iteration and included and not result.has(self.rank):
            self._pages.decided[block] = iteration << 1 | int(self._pages.decided[block]) & 1
            self._pages.settled[block] = iteration << 2 | 1 - valid
            gradients, counted, discarded = self._valid(block)
            self.pending[block] = gradients - counted - discarded

    def unsettled(self, iteration: int) -> list[int]:
        """Blocks that were sent in this iteration and whose result is not known."""
        waits = (self._pages.sent_in == iteration) & (self._pages.settled >> 2 < iteration)
        return [int(block) for block in np.flatnonzero(waits)]

    def books(self) -> Books:
        """Copies of the totals."""
        gradients, counted, discarded = (copies.ravel() for copies in self._valid(np.arange(len(self.sent))))
        return Books(gradients, counted, self.pending.ravel().copy(), discarded)

    def _discard(self, block: int) -> None:
        """Throw away the newest gradient's part of a block."""
        iteration, valid = self._entered[block] >> 1, self._entered[block] & 1
        newest = self._pages.gradients[valid, block] - self._pages.gradients[1 - valid, block]
        self._throw_away(block, newest, gradients=1, decided=iteration)

    def _discard_rest(self, block: int) -> None:
        """Throw away all that is pending of a block, of which no gradient is."""
        decided = int(self._pages.decided[block]) >> 1
        self._throw_away(block, self.pending[block].copy(), gradients=0, decided=decided)

    def _throw_away(self, block: int, values: Fixed, *, gradients: int, decided: int) -> None:
        """Move values of a block from `pending` to `discarded`, with as many gradients, as of iteration `decided`."""
        pages = self._pages
        valid = int(pages.decided[block]) & 1
        pages.discarded_number[1 - valid, block] = pages.discarded_number[valid, block] + gradients
        pages.discarded[1 - valid, block] = pages.discarded[valid, block] + values
        self.pending[block] -= values
        pages.decided[block] = decided << 1 | 1 - valid

    def _waiting(self, blocks: Integers) -> Integers:
        """How many gradients of these blocks are pending."""
        pages = self._pages
        entered = pages.gradients_number[pages.entered[blocks] & 1, blocks]
        counted = pages.counted_number[pages.settled[blocks] & 1, blocks]
        pending: Integers = entered - counted - pages.discarded_number[pages.decided[blocks] & 1, blocks]
        return pending

    def _settled(self, block: int) -> tuple[int, bool, int]:
        """Of a block: latest iteration whose result is in the books, was this worker in it, valid copy of `counted`."""
        mark = int(self._pages.settled[block])
        return mark >> 2, bool(mark >> 1 & 1), mark & 1

    def _check_sent(self, result: Result) -> None:
        """That this worker had sent something for a result that says it is in it."""
        iteration, block = result.id
        if self._sent_in[block] != iteration:
            raise ProtocolError(
                f"block {block} of iteration {iteration} has a contribution of worker {self.rank}, which sent none:"
                " is another process running with this rank?"
            )

    def _valid(self, blocks: Integers | int) -> tuple[Fixed, Fixed, Fixed]:
        """The valid copies of what these blocks have of gradients, counted and discarded values, (N, lanes) each."""
        pages = self._pages
        return (
            pages.gradients[pages.entered[blocks] & 1, blocks],
            pages.counted[pages.settled[blocks] & 1, blocks],
            pages.discarded[pages.decided[blocks] & 1, blocks],
        )


def _by_block(packed: bytes, blocks: Integers) -> dict[int, bytes]:
    """What belongs to each of the blocks, of which `packed` has one after another."""
    size = len(packed) // blocks.size
    return {block: packed[at * size : (at + 1) * size] for at, block in enumerate(blocks.tolist())}
