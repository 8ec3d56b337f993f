"""Distributes accelerators over nodes: each node takes as many as it can, in order, but no fewer than a ring needs.

>>> nodes = [Capacity("a", 10), Capacity("b", 10)]
>>> [str(part) for part in split(15, nodes)], [str(part) for part in split(11, nodes)]
(['a: 10', 'b: 5'], ['a: 8', 'b: 3'])
>>> [str(part) for part in split(4, [Capacity("a", 3), Capacity("b", 10)])]
['b: 4']
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kofn_jobs.errors import SplitError

RING_LEAST = 3
"""The least number of workers of a ring. Two workers are no ring, because both would have only one neighbour."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """A node, and the accelerators that it can run."""

    node: str
    accelerators: int


class NodePart(msgspec.Struct, frozen=True):
    """One node's share of the accelerators."""

    node: str
    accelerators: int

    def __str__(self) -> str:
        return f"{self.node}: {self.accelerators}"


def split(total: int, nodes: Sequence[Capacity], least: int = RING_LEAST) -> tuple[NodePart, ...]:
    """Return the parts of `total`, each at least `least`. Raise SplitError if that is not possible.

    Nodes are filled in the given order, or in the order of their size if the given order leaves a part too small.
    Preceding parts, the nearest first, give accelerators to a last part that is too small.
    """
    able = [node for node in nodes if node.accelerators >= least]
    for order in (able, sorted(able, key=lambda node: -node.accelerators)):
        counts = _level(_fill(total, [node.accelerators for node in order]), least)
        if sum(counts) == total and min(counts, default=0) >= least:
            return tuple(NodePart(node.node, count) for node, count in zip(order, counts, strict=False))
    raise SplitError(_why(total, nodes, able, least))


def _fill(total: int, capacities: Sequence[int]) -> list[int]:
    """Return counts by node, up to the last node that is needed."""
    counts: list[int] = []
    for capacity in capacities:
        if left := total - sum(counts):
            counts.append(min(capacity, left))
    return counts


def _level(counts: list[int], least: int) -> list[int]:
    """Return parts with the same total, in which the last part has `least` accelerators, if the other parts can spare
    them."""
    for place in reversed(range(len(counts) - 1)):
        given = max(0, min(counts[place] - least, least - counts[-1]))
        counts[place] -= given
        counts[-1] += given
    return counts


def _why(total: int, nodes: Sequence[Capacity], able: Sequence[Capacity], least: int) -> str:
    """Return the arithmetic that fails."""
    if total < least:
        return f"{total} accelerators: a node's part is at least {least}"
    sizes = [node.accelerators for node in nodes]
    room = sum(node.accelerators for node in able)
    there = f"{total} accelerators: {' + '.join(map(str, sizes)) or 'no node, 0'} = {sum(sizes)} are there"
    if room < total:
        return there + (f", {room} of them on nodes that can run {least} or more" if room < sum(sizes) else "")
    ranges = " or ".join(f"{first} to {last}" for first, last in _possible(able, least))
    return f"{there}, and each node's part is at least {least}: {ranges} are possible"


def _possible(nodes: Sequence[Capacity], least: int) -> Iterator[tuple[int, int]]:
    """Yield the possible totals of the largest node, of the two largest, and so on."""
    sizes = sorted((node.accelerators for node in nodes), reverse=True)
    yield from ((count * least, sum(sizes[:count])) for count in range(1, len(sizes) + 1))
