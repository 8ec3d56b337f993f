"""What the protocol wants done, its only output, and what it is given to send."""

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats64, Integers
from kofn.host.protocol.results import BlockId, BlockResults, address_of
from kofn.host.wire.packet import PARTS, KofnHeader


def request_of(block: int, part: int) -> int:
    """A number for a part of this worker's contribution to a block; PULLs are part 0's."""
    return block * PARTS + part


class Packed(NamedTuple):
    """What is sent of a block; `weight`: of the gradients in it, in 1 / WEIGHT_UNIT."""

    values: bytes
    scale: int
    lanes: int
    weight: int


PACKED = np.dtype(
    {
        "names": ["values", "size", "block", "scale", "lanes", "weight"],
        "formats": [np.uint64, np.int32, np.int32, np.int32, np.int32, np.uint32],
        "itemsize": 32,
    }
)
"""struct packed of core.h."""


class PackedBlocks:
    """What is sent of N blocks: `table`, (N,) of PACKED; values stay as they are until their blocks have closed."""

    def __init__(self, table: npt.NDArray[Any], keeps: object) -> None:
        """`keeps`: what holds the values in memory."""
        self.table, self.keeps = table, keeps

    @classmethod
    def of(cls, ready: Iterable[tuple[int, Packed]]) -> Self:
        ready = list(ready)
        rows = [(address_of(values), len(values), block, *rest) for block, (values, *rest) in ready]
        return cls(np.array(rows, PACKED), ready)

    def __add__(self, other: "PackedBlocks") -> "PackedBlocks":
        return PackedBlocks(np.concatenate([self.table, other.table], dtype=PACKED), (self.keeps, other.keeps))

    def __iter__(self) -> Iterator[tuple[int, Packed]]:
        """Block by block, with copies of the values."""
        for values, size, block, scale, lanes, weight in self.table.tolist():
            yield block, Packed(ctypes.string_at(values, size), scale, lanes, weight)


class Send(NamedTuple):
    """Hand a packet to the network; the values of a PULL are zeros, as many as the result has.

    `launch`: which attempt at its request it is, for core_mark_sent_at().
    """

    header: KofnHeader
    values: bytes
    launch: int = 0


class Deliver(NamedTuple):
    """Blocks of the current iteration closed with these results.

    `hints`, (N,): the code of the lanes that the worker that closed each sends in by now, where they are narrower than
    planned; else -1.  `times`, (N,): when the answers came, on the clock of whoever drives the protocol.
    """

    results: BlockResults
    hints: Integers
    times: Floats64


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Every block of the current iteration is closed."""

    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeAgain:
    """The slot sums at another scale or in other lanes: encode this part of the contribution so, and send it again."""

    block: int
    part: int
    counts: bool
    scale: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """The switch has forgotten this block's result: peers hold it."""

    id: BlockId


Instruction = Send | Deliver | Complete | EncodeAgain | AskPeers
