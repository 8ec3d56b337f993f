"""The instructions that the protocol core gives, and the contributions that it takes."""

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kofn_common.wire.packet import KofnHeader
from kofn_common.wire.sizes import PARTS
from kofn_host import structs
from kofn_host.arrays import Floats64, Integers
from kofn_host.protocol.results import BlockId, BlockResults, address_of


def request_of(block: int, part: int) -> int:
    """Return the number of the request for a block and part; a PULL has part 0."""
    return block * PARTS + part


class Packed(NamedTuple):
    """A block's encoded contribution.

    `lanes`: the code of the lanes' width.  `weight`: the sum of the gradients' weights, in 1 / WEIGHT_UNIT.
    """

    values: bytes
    scale: int
    lanes: int
    weight: int


PACKED = np.dtype(structs.Packed)
"""struct packed of core.h."""


class PackedBlocks:
    """Contributions to N blocks: `table`, (N,) of PACKED; values must not change until their blocks have closed."""

    def __init__(self, table: npt.NDArray[Any], keeps: object) -> None:
        """Set the table; `keeps` holds the values in memory."""
        self.table, self.keeps = table, keeps

    @classmethod
    def of(cls, ready: Iterable[tuple[int, Packed]]) -> Self:
        ready = list(ready)
        rows = [(address_of(values), len(values), block, *rest) for block, (values, *rest) in ready]
        return cls(np.array(rows, PACKED), ready)

    def __add__(self, other: "PackedBlocks") -> "PackedBlocks":
        return PackedBlocks(np.concatenate([self.table, other.table], dtype=PACKED), (self.keeps, other.keeps))

    def __iter__(self) -> Iterator[tuple[int, Packed]]:
        """Yield each block with a copy of its values."""
        for values, size, block, scale, lanes, weight in self.table.tolist():
            yield block, Packed(ctypes.string_at(values, size), scale, lanes, weight)


class Send(NamedTuple):
    """Send a packet; a PULL carries zeros.

    `launch`: the number of this encoding of the request, which its retransmissions keep; negative: a leaf wants the
    contribution again; 0: a slot query or a probe.
    """

    header: KofnHeader
    values: bytes
    launch: int = 0


class Deliver(NamedTuple):
    """Blocks of the current iteration closed with these results.

    `hints`, (N,): the lane code of the worker that closed each block, if it is narrower than planned; else -1.
    `times`, (N,): when the answers came, on the caller's clock.
    """

    results: BlockResults
    hints: Integers
    times: Floats64


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """All blocks of the current iteration are closed."""

    iteration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeAgain:
    """Encode this part again, in the slot's scale and lanes, and contribute it.

    `counts`: whether the part counts among the k.
    """

    block: int
    part: int
    counts: bool
    scale: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers:
    """Ask peers for this block's result: the switch does not send it.

    `stale_in`: the generation in which the switch answered STALE, because the block's slot already has a later block;
    None: several PULLs have brought no result.
    """

    id: BlockId
    stale_in: int | None


Instruction = Send | Deliver | Complete | EncodeAgain | AskPeers
