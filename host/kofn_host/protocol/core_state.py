"""The state of the protocol core of core.c, read from its memory."""

import ctypes
import weakref
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.slot_query import SlotQuery

STATE = 11
"""Number of the first fields of struct core, 64 bits each."""

ITERATION, NEWEST, GENERATION, REGROUPING, K, COUNT, OPEN, WAITING, INSTRUCTIONS, URGENT, GIVEN = range(STATE)

PLACES = 5
"""Number of pointers in struct core_places."""

COUNTED = 8
"""Number of counters in struct statistics."""

_WIRE_BYTES = 7
"""The place of wire_bytes among them."""


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counters of this worker, for the metrics; the core counts all up to wire_bytes."""

    retransmissions: int = 0
    pulls: int = 0
    stale: int = 0
    refused: int = 0
    foreign: int = 0  # packets of another job, or of a kind that only workers send
    other_generation: int = 0  # packets from before a regroup
    regroups: int = 0
    wire_bytes: int = 0  # bytes of sent values, including retransmissions
    checksum_errors: int = 0
    peer_fetches: int = 0
    resyncs: int = 0  # times that the parameters came from a peer


class CoreState:
    """The state of a struct core for a job's `layout`; the subclass calls `library`."""

    library: ctypes.CDLL
    layout: BlockLayout
    _own: Statistics

    def _attach(self, address: int) -> None:
        """Attach to a struct core, which this object owns from now on."""
        self.address = ctypes.c_void_p(address)
        weakref.finalize(self, self.library.core_close, self.address)
        self._state = memoryview((ctypes.c_int64 * STATE).from_address(address)).cast("B").cast("q")
        places, blocks = (ctypes.c_uint64 * PLACES)(), self.layout.total
        self.library.core_read(self.address, places)
        self._open = array_at(ctypes.c_uint8, blocks, places[1])
        self._counted = (ctypes.c_int64 * COUNTED).from_address(places[3])
        self.query = SlotQuery(places[4])
        """The members of a block that does not close, if the switch was asked in this iteration."""

    @property
    def iteration(self) -> int:
        """The current iteration; 0 before the first."""
        return self._state[ITERATION]

    @property
    def generation(self) -> int:
        """The generation of the slots in use."""
        return self._state[GENERATION]

    @property
    def k(self) -> int:
        """The k of the newest iteration with a known result; 0: not known."""
        return self._state[K]

    @property
    def regrouping(self) -> bool:
        """Whether resume() must follow a regroup()."""
        return bool(self._state[REGROUPING])

    @property
    def statistics(self) -> Statistics:
        for field, number in zip(fields(Statistics), self._counted, strict=False):
            setattr(self._own, field.name, number)
        return self._own

    @property
    def wire_bytes(self) -> int:
        """The counter of the same name in `statistics`."""
        return self._counted[_WIRE_BYTES]

    @property
    def left_behind(self) -> bool:
        """Whether the others have finished the current iteration: results of a later one were seen."""
        return self._state[NEWEST] > self._state[ITERATION]

    @property
    def over(self) -> bool:
        """Whether the current iteration ended elsewhere: its blocks are closed, or results of a later one were seen."""
        return not self._state[OPEN] or self.left_behind

    def is_over(self, iteration: int) -> bool:
        """Return whether an iteration that was begun here is over, here or elsewhere."""
        return self.over or self.iteration > iteration

    @property
    def missing(self) -> list[int]:
        """Open blocks of the current iteration, ascending."""
        # copied: the engine changes it, and flatnonzero() reads it twice
        missing: list[int] = np.flatnonzero(self._open.copy()).tolist() if self._state[OPEN] else []
        return missing

    @property
    def share(self) -> float:
        """The share of the current iteration's blocks that are closed, 0 to 1."""
        return 1 - self._state[OPEN] / max(1, self._state[COUNT])

    @property
    def waiting_count(self) -> int:
        """Contributions that count among the k and wait for the window."""
        return self._state[WAITING]


def array_at(kind: Any, size: int, address: int) -> npt.NDArray[Any]:
    """Return the core's memory as an array, without a copy."""
    return np.ctypeslib.as_array((kind * size).from_address(address))
