"""One iteration's blocks: which are sent, which are open, and their slots and lanes."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kofn_common.wire.packet import WIDTHS, Flag, Kind, KofnHeader, Lanes
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import CODES
from kofn_host.protocol.block_layout import BlockLayout


@dataclass(slots=True, kw_only=True)
class IterationBlocks:
    """An iteration of blocks of `layout`; `planned`: the code of the lanes planned for all but the summary block."""

    layout: BlockLayout
    iteration: int = 0
    blocks: Sequence[int] = ()
    """The sent blocks, ascending."""
    planned: int = Lanes.BITS_32
    open: set[int] = field(default_factory=set)
    slot_lanes: dict[int, int] = field(default_factory=dict)
    """The lanes that slots have reported, by block."""
    words: Mapping[int, int] = field(default_factory=dict)
    """Words of any block but the summary block, by the code of its lanes."""
    sums: Mapping[int, int] = field(default_factory=dict)
    """Words of the sums, by the code of their lanes."""
    total: int = 0
    """Equals BlockLayout.total."""
    first: int = 0
    """Number of the first block among all blocks ever sent."""

    def check_known(self, blocks: Iterable[int]) -> None:
        """Raise ProtocolError if others sum blocks in this iteration that it does not send."""
        if foreign := sorted(set(blocks) - set(self.blocks)):
            raise ProtocolError(
                f"blocks {foreign[:8]} of iteration {self.iteration} were summed, which this worker was not told to"
                " send in it: the workers' plans have parted"
            )

    def place(self, block: int) -> int:
        """Return a block's place among the sent ones."""
        return bisect_left(self.blocks, block)

    def slot(self, block: int) -> int:
        """Return the number of a block's slot before it is wrapped into the job's slots; every
        worker derives the same.
        """
        return self.first + self.place(block)

    def lanes(self, block: int) -> int:
        """Return the lanes in which a block is summed: as its slot has reported, else as planned."""
        planned = Lanes.BITS_32 if block == self.layout.summary else self.planned
        return self.slot_lanes.get(block, planned)

    def flags(self, uses: int) -> int:
        """Return the flags that tell the sender's lanes: 0 unless they are narrower than planned."""
        return 1 + uses if uses > self.planned else 0

    def words_of(self, block: int, lanes: int) -> int:
        words = None if block == self.layout.blocks else self.words.get(lanes)
        return self.layout.words_of(block, lanes) if words is None else words


def iteration_blocks(
    layout: BlockLayout, iteration: int, blocks: Sequence[int] | None, lanes: int, first: int | None
) -> IterationBlocks:
    """Return an iteration with these blocks (None: all) in these lanes, all open. Raises ProtocolError if that is
    impossible.
    """
    total = layout.total
    chosen: Sequence[int] = range(total) if blocks is None else tuple(map(int, blocks))
    if list(chosen) != sorted(set(chosen)) or not chosen or not 0 <= chosen[0] <= chosen[-1] < total:
        raise ProtocolError(
            f"blocks of iteration {iteration} must be one or more of 0 to {total - 1}, ascending, got {chosen}"
        )
    layout.words_of(0, lanes)  # raises for lanes in which no block can be sent
    words = {code: layout.words_of(0, code) for code in CODES if layout.allows(0, code)}
    return IterationBlocks(
        first=iteration * total if first is None else first,
        layout=layout,
        iteration=iteration,
        blocks=chosen,
        planned=lanes,
        open=set(chosen),
        words=words,
        sums={code: layout.sum_words_of(0, code) for code in words},
        total=total,
    )


def hint(answer: KofnHeader) -> int | None:
    """Return the lanes now used by the worker that closed a block, from its RESULT; None if they are as planned."""
    uses = answer.flags & ~Flag.AGAIN
    return uses - 1 if 1 < uses <= len(WIDTHS) else None


def check_words(layout: BlockLayout, answer: KofnHeader) -> None:
    """Raise ProtocolError if the block in a slot has another number of words than this worker's in the same lanes.

    A sum has the words of a sum in these lanes. A refusal has the words of the slot's block, unless it is a
    FORMAT_MISMATCH because the numbers differ.
    """
    block, lanes = answer.block, answer.lanes
    other = answer.kind == Kind.FORMAT_MISMATCH and answer.flags == Flag.OTHER_WORDS
    words = layout.words_of if answer.kind == Kind.FORMAT_MISMATCH else layout.sum_words_of
    if not layout.allows(block, lanes) or other == (answer.words == words(block, lanes)):
        raise ProtocolError(
            f"block {block} of iteration {answer.iteration} is summed in lanes of code {lanes} with another number of"
            f" words than by {layout}: all workers of a job must have the same job.words and compress.codec"
        )
