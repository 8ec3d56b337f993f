"""A worker's results, for itself and for peers that lack them: whole ones, and the members of older ones.

The sums of the latest `keep` iterations take memory. Members are kept for `keep_members` iterations: a worker that died
in iteration i and rejoins much later must still learn which of its parts were counted in i.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kofn_host.errors import ProtocolError
from kofn_host.protocol.results import BlockId, Result


def check_same(known: Result, other: Result) -> None:
    """Raise ProtocolError if two results of one block differ: replicas would differ, and no result is better than a
    wrong one.
    """
    if _content(known) != _content(other):
        raise ProtocolError(
            f"block {known.id.block} of iteration {known.id.iteration} has two results: {_said(known)} here,"
            f" {_said(other)} there; the replicas have parted"
        )


def _content(result: Result) -> tuple[int, ...]:
    """Return what all copies of a result share, without the values; k is the one in force when a copy was sent."""
    return result.members, result.count, result.weight, result.lanes, result.scale


def _said(result: Result) -> str:
    members, count, weight, lanes, scale = _content(result)
    return f"members {members:#x} (count {count}, weight {weight}, lanes {lanes}, scale {scale})"


class ResultMembers(NamedTuple):
    """The members of an iteration's blocks whose sums are forgotten."""

    blocks: Sequence[int]
    """The blocks: an iteration need not send all, and this worker may lack some results."""
    bitmaps: bytes
    """One bitmap a block, little-endian, all as long as the longest one needs."""

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield each block and its members."""
        size = len(self.bitmaps) // len(self.blocks)
        for place, block in enumerate(self.blocks):
            yield block, int.from_bytes(self.bitmaps[place * size : (place + 1) * size], "little")


def _members(results: dict[int, Result]) -> ResultMembers:
    """Return the members of an iteration's results."""
    blocks = sorted(results)
    bitmaps = [results[block].members for block in blocks]
    size = -(-max(bitmaps).bit_length() // 8)
    return ResultMembers(
        range(len(blocks)) if blocks[-1] == len(blocks) - 1 else array("I", blocks),
        b"".join(bitmap.to_bytes(size, "little") for bitmap in bitmaps),
    )


class History:
    """Results by iteration and block."""

    def __init__(self, *, keep: int, keep_members: int) -> None:
        self._keep, self._keep_members = keep, keep_members
        self._whole: dict[int, dict[int, Result]] = {}
        self._members: dict[int, ResultMembers] = {}
        self._first_whole = self._first_members = 0  # everything earlier is forgotten

    def of(self, iteration: int) -> dict[int, Result]:
        """Return the iteration's results by block; callers add results to this dictionary."""
        return self._whole.setdefault(iteration, {})

    def forget(self, iteration: int, *, all_given: bool = False) -> None:
        """Free the results that are too old for a worker in this iteration; `all_given`: all workers have contributed
        to it.

        Iterations only grow.
        """
        first = iteration if all_given else iteration - self._keep
        for old in range(self._first_whole, first):
            results = self._whole.pop(old, {})
            if results:
                self._members[old] = _members(results)
        for old in range(self._first_members, iteration - self._keep_members):
            self._members.pop(old, None)
        self._first_whole = max(self._first_whole, first)
        self._first_members = max(self._first_members, iteration - self._keep_members)

    def results(self, first: int, last: int) -> Iterator[Result]:
        """Yield the known results of iterations first..last, in order."""
        for iteration in sorted(known for known in self._members if first <= known <= last):
            for block, members in self._members[iteration].pairs():
                yield _without_values(BlockId(iteration, block), members)
        for iteration in sorted(known for known in self._whole if first <= known <= last):
            for block in sorted(self._whole[iteration]):
                yield self._whole[iteration][block]


def _without_values(id: BlockId, members: int) -> Result:
    """Return an old result without its sum."""
    return Result(id=id, scale=0, lanes=0, k=0, count=0, weight=0, members=members, values=b"")
