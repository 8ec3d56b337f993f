"""The state of the protocol core, read from its memory."""

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_host import structs
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.slot_query import SlotQuery


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counters of this worker, for the metrics; the core counts all fields up to wire_bytes."""

    retransmissions: int = 0
    pulls: int = 0
    stale: int = 0
    refused: int = 0
    foreign: int = 0  # packets of another job, of a kind that only workers send, or of an impossible iteration
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
        self._state = structs.Core.from_address(address)
        places = structs.CorePlaces()
        self.library.core_read(self.address, ctypes.byref(places))
        self._open = array_at(ctypes.c_uint8, self.layout.total, places.open)
        self._counted = structs.Statistics.from_address(places.statistics)
        self.query = SlotQuery(places.query)
        """The members of a block that does not close, if this worker has asked the switch in this iteration."""

    @property
    def iteration(self) -> int:
        """The current iteration; 0 before the first."""
        return self._state.iteration

    @property
    def generation(self) -> int:
        """The generation of the slots in use."""
        return self._state.generation

    @property
    def k(self) -> int:
        """The k of the newest iteration with a known result; 0: not known."""
        return self._state.k

    @property
    def regrouping(self) -> bool:
        """Whether resume() must follow a regroup()."""
        return bool(self._state.regrouping)

    @property
    def follows(self) -> bool:
        """Whether results come from a peer."""
        return bool(self._state.follows)

    @property
    def statistics(self) -> Statistics:
        for name, _ in structs.Statistics._fields_:
            setattr(self._own, name, getattr(self._counted, name))
        return self._own

    @property
    def wire_bytes(self) -> int:
        """The counter of the same name in `statistics`."""
        return self._counted.wire_bytes

    @property
    def left_behind(self) -> bool:
        """Whether the others have finished the current iteration: results of a later iteration were seen."""
        return self._state.newest > self._state.iteration

    @property
    def over(self) -> bool:
        """Whether the current iteration ended elsewhere: its blocks are closed, or there are results of a later one."""
        return not self._state.open_count or self.left_behind

    def is_over(self, iteration: int) -> bool:
        """Return whether an iteration that was begun here is over, here or elsewhere."""
        return self.over or self.iteration > iteration

    @property
    def missing(self) -> list[int]:
        """Open blocks of the current iteration, ascending."""
        # copied: the engine changes the array, and flatnonzero() reads the array twice
        missing: list[int] = np.flatnonzero(self._open.copy()).tolist() if self._state.open_count else []
        return missing

    @property
    def share(self) -> float:
        """The share of the current iteration's blocks that are closed, 0 to 1."""
        return 1 - self._state.open_count / max(1, self._state.count)

    @property
    def waiting_count(self) -> int:
        """Contributions that count among the k and wait for the window."""
        return self._state.waiting_count


def array_at(kind: Any, size: int, address: int) -> npt.NDArray[Any]:
    """Return the core's memory as an array, without a copy."""
    return np.frombuffer((kind * size).from_address(address), np.dtype(kind))
