"""The packets' results: digests, messages, packet-ins, and the outputs of an injected packet."""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock

from kofn_switch.engine.controls import Controls
from kofn_switch.errors import SwitchError
from kofn_switch.native import INJECT_BYTES, TAKE_BYTES, records
from kofn_switch.state.entries import Digest, LogReport


class Outcomes(Controls):
    """The methods that take the packets' results, and `inject`; see Engine."""

    def __init__(self, core: int) -> None:
        super().__init__(core)
        self._injecting = Lock()

    def take_digests(self, timeout_s: float) -> list[Digest]:
        """Return the digests since the last call, oldest first; wait up to `timeout_s` for the first one.

        The switch keeps a bounded number of digests, and `stats` counts dropped digests. Digests of a replaced program
        are dropped.
        """
        taken = self._take(self._native.core_take_digests, timeout_s)
        with self._lock:
            return [self._now.digest(record) for record in self._of_now(taken)]

    def take_reports(self, timeout_s: float) -> list[LogReport]:
        """Return the program's log messages since the last call, as `take_digests` does."""
        taken = self._take(self._native.core_take_reports, timeout_s)
        with self._lock:
            return [self._now.report(record) for record in self._of_now(taken)]

    def _of_now(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the records of the running program, without the program's number in front."""
        return [record[4:] for record in records if int.from_bytes(record[:4], "little") == self._swaps]

    def take_packet_ins(self, timeout_s: float) -> list[bytes]:
        """Return the packets sent to the CPU port since the last call; wait up to `timeout_s` for the first one."""
        return self._take(self._native.core_take_packet_ins, timeout_s)

    def _take(self, function: Callable[..., int], timeout_s: float) -> list[bytes]:
        buffer = ctypes.create_string_buffer(TAKE_BYTES)
        size = function(self._core, buffer, TAKE_BYTES, max(0, int(timeout_s * 1000)))
        return records(ctypes.string_at(buffer, size))

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet as received on `port`. Return (port, packet) for each output, also to the CPU port.

        Tests and tools use this: it needs no sockets, and the ports need not exist.
        """
        with self._injecting:
            size = self._native.core_inject(self._core, port, packet, len(packet), self._injected, INJECT_BYTES)
            if size < 0:
                raise SwitchError(f"a packet cannot be injected: {os.strerror(-size)}")
            collected = ctypes.string_at(self._injected, size)
        return [(int.from_bytes(record[:4], "little"), record[4:]) for record in records(collected)]

    @cached_property
    def _injected(self) -> ctypes.Array[ctypes.c_char]:
        """The buffer for an injected packet's outputs, several megabytes, allocated at the first injection."""
        return ctypes.create_string_buffer(INJECT_BYTES)
