"""Results of blocks: sums as on the wire with their members; Result is one result, BlockResults are many."""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kofn_common.wire.packet import MEMBERS_BITS, bit_of
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX, RACKS_MAX
from kofn_host import structs
from kofn_host.arrays import Integers

RESULT = np.dtype(structs.Result)
"""struct result of history.h.

Bit r of word p of `members`, p < PARTS, is part p of rank r of rack 0; bit r of word PARTS - 1 + q is part 0 of rank r
of rack q, q > 0.
"""

_PART_BITS = 1 << np.arange(PARTS)
_WORD = (1 << RACK_WORKERS_MAX) - 1
_FIRST_BITS = *range(0, MEMBERS_BITS, RACK_WORKERS_MAX), *range(MEMBERS_BITS, RACKS_MAX * MEMBERS_BITS, MEMBERS_BITS)
"""For each word of a result's members, the place of its rank 0 in the bitmap of all racks."""

Table = npt.NDArray[Any]
"""An array of RESULT."""


class BlockId(NamedTuple):
    """Identifies a block of an iteration."""

    iteration: int
    block: int


class Result(NamedTuple):
    """A closed block: the sum as on the wire and its members; `values` is empty if only the members are known.

    `count`: contributions that count among the k; `weight`: the sum of the gradients' weights, in 1 / WEIGHT_UNIT.
    `count` and `weight` are 0 if only the members are known.
    """

    id: BlockId
    scale: int
    lanes: int
    k: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    weight: int
    members: int
    values: bytes

    @property
    def addends(self) -> int:
        return self.members.bit_count()

    def has(self, place: int, part: int = 0) -> bool:
        """Return whether this part of the worker at this place is in the sum."""
        return bool(self.members & bit_of(place, part))


class BlockResults(Sequence[Result]):
    """Results of N blocks of one iteration, in the order of `blocks`, (N,).

    The values stay in place as long as the protocol keeps the iteration; values() copies them.
    """

    def __init__(self, iteration: int, blocks: Integers, table: Table, keeps: object = None) -> None:
        """Set the fields; `keeps` is the object that holds the values in memory, None if the protocol holds them."""
        self.iteration, self.blocks, self.table, self._keeps = iteration, blocks, table, keeps

    @classmethod
    def of(cls, results: Sequence[Result]) -> Self:
        """Return results of one iteration."""
        rows = [
            (address_of(values), len(values), scale, lanes, k, count, weight, _words(members))
            for _, scale, lanes, k, count, weight, members, values in results
        ]
        table = np.array(rows, RESULT)
        blocks = np.array([result.id.block for result in results], np.int64)
        return cls(results[0].id.iteration if results else 0, blocks, table, [result.values for result in results])

    @classmethod
    def joined(cls, several: Sequence[Self]) -> Self:
        """Concatenate one or more results of the same iteration."""
        blocks, tables = [results.blocks for results in several], [results.table for results in several]
        return cls(several[0].iteration, np.concatenate(blocks), np.concatenate(tables), several)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, chosen: Any) -> Any:
        """Return a Result for an integer, BlockResults for a slice or an index array."""
        if isinstance(chosen, int | np.integer):
            return self._result(int(chosen))
        return type(self)(self.iteration, self.blocks[chosen], self.table[chosen], self._keeps)

    def below(self, block: int) -> Self:
        """Return the results of blocks with smaller numbers than this block."""
        return self if (self.blocks < block).all() else self[self.blocks < block]

    def __iter__(self) -> Iterator[Result]:
        return map(self._result, range(len(self)))

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """The address of each result's values, (N,)."""
        found: npt.NDArray[np.uint64] = np.ascontiguousarray(self.table["values"])
        return found

    def numbers(self, name: str) -> Integers:
        """Return a field of all results, (N,): size in bytes, scale, lanes, k, count or weight."""
        found: Integers = self.table[name].astype(np.int64)
        return found

    @property
    def addends(self) -> Integers:
        """The number of contributions in each sum, (N,)."""
        found: Integers = np.bitwise_count(self.table["members"]).sum(axis=1, dtype=np.int64)
        return found

    def parts_of(self, place: int) -> Integers:
        """Return the parts of the worker at a place in each sum, (N,): bit p for part p."""
        rack, rank = divmod(place, MEMBERS_BITS)
        words = slice(PARTS - 1 + rack, PARTS + rack) if rack else slice(PARTS)
        has = self.table["members"][:, words] >> np.uint64(rank) & np.uint64(1)
        found: Integers = has.astype(np.int64) @ _PART_BITS[: has.shape[1]]
        return found

    @property
    def givers(self) -> Integers:
        """The place of each result whose only member is one worker's part 0, (N,); -1 for other results."""
        counts = np.bitwise_count(self.table["members"])
        word = counts.argmax(axis=1)
        first = np.array(_FIRST_BITS)[word]
        alone = (counts.sum(axis=1) == 1) & (first % MEMBERS_BITS == 0)
        bit = self.table["members"][np.arange(len(self)), word]
        found: Integers = np.where(alone, first + np.bitwise_count(bit - np.uint64(1)), -1)
        return found

    def members(self, at: int) -> int:
        """Return the bitmap of one result's members."""
        words = self.table[at]["members"].tolist()
        return sum(word << first for word, first in zip(words, _FIRST_BITS, strict=True) if word)

    def values(self, at: int) -> bytes:
        """Return a copy of one result's values, as on the wire."""
        address, size = int(self.table[at]["values"]), int(self.table[at]["size"])
        return ctypes.string_at(address, size) if address else b""

    def all_values(self) -> bytes:
        """Return the concatenated values of all results."""
        places = zip(self.table["values"].tolist(), self.table["size"].tolist(), strict=True)
        return b"".join(ctypes.string_at(address, size) for address, size in places if address)

    def _result(self, at: int) -> Result:
        row = self.table[at]
        _, _, scale, lanes, k, count, weight, _ = row.tolist()
        id = BlockId(self.iteration, int(self.blocks[at]))
        return Result(id, scale, lanes, k, count, weight, self.members(at), self.values(at))


def address_of(values: bytes) -> int:
    """Return the address of the values, valid while the object exists; 0 if they are empty."""
    return (values and ctypes.cast(ctypes.c_char_p(values), ctypes.c_void_p).value) or 0


def _words(members: int) -> list[int]:
    return [members >> first & _WORD for first in _FIRST_BITS]
