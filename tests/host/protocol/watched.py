"""A Protocol that tests inspect, and drive block by block."""

import ctypes
from typing import Any

import numpy as np

from kofn_common.wire.packet import KofnHeader
from kofn_common.wire.sizes import PARTS
from kofn_host import structs
from kofn_host.arrays import Integers
from kofn_host.engine.engine import EnginePort
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.core_state import array_at
from kofn_host.protocol.instructions import Instruction, Packed, Send, request_of


class Watched(Protocol):
    def jump(self, *given: Any, **more: Any) -> list[Instruction]:
        return self.begin(*given, **more, jump=True)

    def _attach(self, address: int) -> None:
        super()._attach(address)
        places, blocks = structs.CorePlaces(), self.layout.total
        self.library.core_read(self.address, ctypes.byref(places))
        self._blocks = array_at(ctypes.c_int32, blocks, places.blocks)
        waiting = array_at(structs.Waiting, blocks * PARTS, places.waiting)
        self._waits = waiting["values"].reshape(blocks, PARTS)[:, 0]

    def contribute(
        self, block: int, packed: Packed, *, now: float, part: int = 0, counts: bool = True, uses: int | None = None
    ) -> list[Instruction]:
        """Call contribute_all() with one block."""
        return self.contribute_all([(block, packed)], now=now, part=part, counts=counts, uses=uses)

    def packet_in(self, header: KofnHeader, values: bytes, now: float) -> list[Instruction]:
        """Take an answer of the switch."""
        return self.packets_in([(header, values)], now)

    def leaves(self, sent: Send, at: float) -> None:
        """Note that a packet leaves this host only then, so its answer is not due earlier."""
        request = request_of(sent.header.block, sent.header.part)
        self._call("mark_sent_at", request, sent.launch, at)

    @property
    def blocks(self) -> Integers:
        """The blocks of the current iteration, ascending."""
        return self._blocks[: self._state.count].astype(np.int64)

    @property
    def given(self) -> int:
        """The latest iteration to which all workers are known to have contributed; 0: none, or
        `workers` was not given.
        """
        return self._state.given

    @property
    def deadline(self) -> float | None:
        """When timer() is due; None while no request is in flight."""
        deadline: float = self._call("deadline_s")
        return deadline if deadline < np.inf else None

    @property
    def waiting(self) -> list[int]:
        """The blocks whose part 0 waits for the window."""
        waiting: list[int] = np.flatnonzero(self._waits.copy()).tolist() if self._state.waiting_count else []
        return waiting


class WatchedBeside(Watched, EnginePort):
    """An EnginePort that tests inspect in the same way."""
