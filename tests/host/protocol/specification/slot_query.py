"""A worker's question about a block that does not close: which workers have contributed?

A PULL with a number of words that the block never has is refused with FORMAT_MISMATCH while the slot has the block,
open or closed, and the refusal tells the members.
"""

from kofn_common.wire.packet import Kind, KofnHeader, members_of
from kofn_host.kernels.lanes import CODES
from kofn_host.protocol.block_layout import BlockLayout


class SlotQuery:
    """A worker's latest question and its answer."""

    def __init__(self) -> None:
        self._asked: KofnHeader | None = None
        self._members: int | None = None

    def ask(self, request: KofnHeader, layout: BlockLayout) -> KofnHeader:
        """Return the PULL to send instead of this request, so that the switch tells the block's members."""
        known = {layout.words_of(request.block, code) for code in CODES if layout.allows(request.block, code)}
        other = next(words for words in range(1, len(known) + 2) if words not in known)
        before, self._asked = self._asked, request._replace(kind=Kind.PULL, words=other)
        if before is None or _block(before) != _block(self._asked):
            self._members = None
        return self._asked

    def hears(self, answer: KofnHeader) -> bool:
        """Return whether this is the answer; then the protocol ignores it."""
        asked = self._asked
        if asked is None or answer.kind != Kind.FORMAT_MISMATCH or answer.words != asked.words:
            return False
        if _block(answer) != _block(asked):
            return False
        self._members = answer.members
        return True

    def forget(self) -> None:
        """Ask nothing any more."""
        self._asked = None

    def describe(self, workers: int) -> str:
        """Return a description of the answer, in a job of `workers` workers."""
        if self._asked is None:
            return "the switch was not asked why"
        if self._members is None:
            return f"no answer for block {self._asked.block}"
        missing = sorted(set(range(workers)) - set(members_of(self._members)))
        ranks = " and ".join(map(str, missing))
        who = f"worker{'s' * (len(missing) > 1)} {ranks} missing" if missing else "all workers there"
        return f"in block {self._asked.block} the switch has {who}"


def _block(header: KofnHeader) -> tuple[int, int, int]:
    """Return the block that a packet is about."""
    return header.generation, header.iteration, header.block
