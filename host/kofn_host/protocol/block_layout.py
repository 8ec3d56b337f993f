"""The layout of a job's blocks: their number, their elements, and their words on the wire.

A block always has the same elements.  Its lanes may change, and the number of words follows from the lanes.
"""

from dataclasses import dataclass

from kofn_common.wire.packet import WIDTHS, WORD_BITS, Lanes
from kofn_common.wire.sizes import VOTE_WORDS
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import CODES, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """A gradient has `blocks`, each of `words` 256-byte words in lanes of `widest` bits, the widest in use.

    With `summary_words` an iteration may have one more block: the summary block, always in 32-bit lanes.  A sum of
    votes has `planes` planes, each with as many words as the block.  ProtocolError if a field is out of range.
    """

    blocks: int
    words: int
    widest: int
    summary_words: int = 0
    planes: int = 1

    def __post_init__(self) -> None:
        if min(self.blocks, self.words, self.planes) < 1 or self.summary_words < 0:
            raise ProtocolError(f"blocks, words and planes must be 1 or more, summary_words 0 or more, got {self}")
        if self.widest not in WIDTHS:
            raise ProtocolError(f"widest must be one of {', '.join(map(str, WIDTHS))} bits, got {self.widest}")

    @property
    def elements(self) -> int:
        """Elements of a gradient block."""
        return self.words * WORD_BITS // self.widest

    @property
    def summary(self) -> int | None:
        """Number of the summary block, which is the last one; None if there is none."""
        return self.blocks if self.summary_words else None

    @property
    def total(self) -> int:
        """Number of blocks, including the summary block."""
        return self.blocks + (self.summary is not None)

    @property
    def words_most(self) -> int:
        """Words of the longest packet."""
        sums = [self.sum_words_of(0, code) for code in CODES if self.allows(0, code)]
        return max(*sums, self.summary_words)

    def words_of(self, block: int, lanes_code: int) -> int:
        """Return a block's words in lanes of this code (wire.packet.Lanes); ProtocolError if these are not possible."""
        if not self.allows(block, lanes_code):
            raise ProtocolError(f"block {block} cannot be sent in lanes of code {lanes_code} by {self}")
        if block == self.summary:
            return self.summary_words
        return self.words * width_of(lanes_code) // self.widest

    def sum_words_of(self, block: int, lanes_code: int) -> int:
        """Return the words of a block's sum in lanes of this code; ProtocolError as words_of()."""
        return self.words_of(block, lanes_code) * (self.planes if lanes_code == Lanes.VOTES else 1)

    def allows(self, block: int, lanes_code: int) -> bool:
        """Return whether a block may be sent in lanes of this code: the block exists and fills whole words.

        Votes may take at most VOTE_WORDS words.
        """
        if not 0 <= block < self.total or not 0 <= lanes_code < len(WIDTHS):
            return False
        if block == self.summary:
            return lanes_code == Lanes.BITS_32
        width = width_of(lanes_code)
        words, rest = divmod(self.words * width, self.widest)
        return width <= self.widest and not rest and (lanes_code != Lanes.VOTES or words <= VOTE_WORDS)
