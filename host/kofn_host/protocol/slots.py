"""The switch's slots on a host, from slots.c: a packet in, the switch's answers out."""

import ctypes
import weakref
from ctypes import c_int32

from kofn_common.wire.packet import EVERYONE, HEADER_BYTES, KofnHeader, encode_header, headers_of
from kofn_host import structs
from kofn_host.errors import ProtocolError
from kofn_host.native import library

Answer = tuple[int, KofnHeader, bytes]
"""The receiving rank, the header and the values."""

NUMBERS = 1 << 16
"""The number of slots that a header can name."""


class NativeSlots(structs.Slots):
    """The slots of a job of `workers` workers on a switch alone, or on a root.

    A block closes with `k` counted contributions, or when a lane has no more `room` for another contribution.  Packets
    of another `generation` are dropped.
    """

    @classmethod
    def open(cls, *, workers: int, k: int, slots: int, racks: int = 0) -> "NativeSlots":
        """Return empty slots of generation 0, at the root of a tree if there are racks.

        Raises ProtocolError, CompilerMissing.
        """
        address = library().slots_open(workers, k, min(slots, NUMBERS), racks)
        if not address:
            raise ProtocolError(f"no memory for {slots} slots")
        opened = cls.from_address(address)
        weakref.finalize(opened, library().slots_close, address)
        return opened

    def handle(self, header: KofnHeader, values: bytes) -> list[Answer]:
        """Handle a worker's packet at a switch alone; return the answers, which have the same values or no values."""
        head, to = ctypes.create_string_buffer(HEADER_BYTES), (c_int32 * 4)()
        found = library().slots_put(ctypes.addressof(self), encode_header(header), values, len(values), head, to)
        if not found:
            return []
        (answer,), (size, first, end, recipient) = headers_of(head.raw), to
        sums = ctypes.string_at(found, size)
        return [
            (rank, answer._replace(worker=rank), sums)
            if recipient in (EVERYONE, rank)
            else (rank, answer._replace(worker=rank, words=0), b"")
            for rank in range(first, end)
        ]
