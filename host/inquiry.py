"""Who is in a block that does not close: what a worker asks the switch when it has waited for long.

A PULL with a number of words that the block never has is REFUSED as long as the slot has the block, open or closed, and
a refusal tells who is in it.
"""

from host.shape import Shape
from host.wire import Header, Kind, Lanes, members_of


class Inquiry:
    """One worker's, of a job of so many workers."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._asked: Header | None = None
        self._members: int | None = None

    def ask(self, request: Header, shape: Shape) -> Header:
        """What to send instead of this request, for a block of this shape, to hear who is in it."""
        known = {shape.words_of(request.block, code) for code in Lanes if shape.allows(request.block, code)}
        other = next(words for words in range(1, len(known) + 2) if words not in known)
        before, self._asked = self._asked, request._replace(kind=Kind.PULL, words=other)
        if before is None or _block(before) != _block(self._asked):
            self._members = None
        return self._asked

    @property
    def asks(self) -> bool:
        """Whether anything was asked."""
        return self._asked is not None

    def hears(self, answer: Header) -> bool:
        """Whether this is the answer; it is nothing to the protocol then."""
        asked = self._asked
        if asked is None or answer.kind != Kind.REFUSED or answer.words != asked.words:
            return False
        if _block(answer) != _block(asked):
            return False
        self._members = answer.members
        return True

    def forget(self) -> None:
        """Nothing is asked any more."""
        self._asked = None

    def __str__(self) -> str:
        """What is known by now."""
        if self._asked is None:
            return "nobody was asked why"
        if self._members is None:
            return f"nobody answers for block {self._asked.block}"
        missing = sorted(set(range(self._workers)) - set(members_of(self._members)))
        ranks = " and ".join(map(str, missing))
        who = f"worker{'s' * (len(missing) > 1)} {ranks} missing" if missing else "all workers there"
        return f"in block {self._asked.block} the switch has {who}"


def _block(header: Header) -> tuple[int, int, int]:
    """Which block a packet is about."""
    return header.generation, header.iteration, header.block
