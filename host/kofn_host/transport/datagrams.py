"""Batches of kofn packets between a socket and Python: host/kofn_host/engine/datagrams.c through ctypes."""

import ctypes
import socket
import weakref
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kofn_common.gso import COALESCED_BYTES
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import (
    CHECKSUM,
    HEADER_BYTES,
    PACKET_BYTES_MAX,
    KofnHeader,
    check,
    encode_header,
    headers_of,
)
from kofn_host.native import library

BATCH = 128
"""The most datagrams that one call receives."""

_ROOM = PACKET_BYTES_MAX - HEADER_BYTES + 1  # one byte more, to recognise datagrams that are too long

Packet = tuple[KofnHeader, bytes]
"""Header and values."""


class Received(NamedTuple):
    """Received datagrams.

    `packets`: the valid packets; `senders`: the senders of the valid packets, if requested; `errors`: one for each
    invalid datagram; `sizes`: the sizes of all datagrams.
    """

    packets: list[Packet]
    senders: list[int]
    errors: list[WireError]
    sizes: list[int]


class Sent(NamedTuple):
    """Whether the kernel accepted each packet, and the errno of the kernel's last refusal."""

    accepted: list[bool]
    error: int


class Datagrams:
    """The packets of one socket.

    With `senders`, receive() returns the senders' IPv4 addresses as numbers.  With `joins`, packets may be coalesced
    (udp.may_join).  receive() never waits; send() waits for room if the socket blocks.  From the first receive() on,
    nothing else may read the socket, since the kernel may coalesce what it receives.  Raises CompilerMissing without a
    C compiler.
    """

    def __init__(self, opened: socket.socket, *, senders: bool = False, joins: bool = False) -> None:
        self._joins = c_int32(COALESCED_BYTES if joins else 0)
        self._socket, self._library = opened, library()
        self._heads = np.empty(BATCH * HEADER_BYTES, np.uint8)
        self._bodies = np.empty((BATCH, _ROOM), np.uint8)
        self._sizes, self._sums = np.empty(BATCH, np.int64), np.empty(BATCH, np.uint16)
        self._senders = np.empty(BATCH, ">u4") if senders else None
        self._rows = self._bodies.ctypes.data + _ROOM * np.arange(BATCH, dtype=np.uint64)
        self._buffers = (
            *(self._heads.ctypes.data, HEADER_BYTES, self._rows.ctypes.data, _ROOM, BATCH),
            *(self._sizes.ctypes.data, self._sums.ctypes.data),
            None if self._senders is None else self._senders.ctypes.data,
        )
        self._head_bytes, self._body_bytes = self._heads.data, self._bodies.data.cast("B")

    @property
    def joins(self) -> bool:
        """Whether packets are still coalesced: the kernel may have refused."""
        return bool(self._joins.value)

    @cached_property
    def _incoming(self) -> c_void_p:
        found = self._library.incoming_open(self._socket.fileno())
        if not found:
            raise MemoryError("no memory to receive datagrams")
        weakref.finalize(self, self._library.incoming_close, found)
        return c_void_p(found)

    def receive(self) -> Received:
        """Receive at most BATCH waiting datagrams; after BATCH datagrams, more may wait in an unreadable socket."""
        count = self._library.datagrams_receive(self._incoming, *self._buffers)
        sizes, sums = self._sizes[:count].tolist(), self._sums[:count].tolist()
        packets, wrong, good, errors = list[Packet](), set[int](), self._body_bytes, list[WireError]()
        headers = headers_of(self._head_bytes[: count * HEADER_BYTES])
        for at, (header, size, damaged) in enumerate(zip(headers, sizes, sums, strict=True)):
            try:
                check(header, size, damaged)
            except WireError as error:
                errors.append(error)
                wrong.add(at)
            else:
                packets.append((header, bytes(good[at * _ROOM : at * _ROOM + size - HEADER_BYTES])))
        senders = [] if self._senders is None else self._senders[:count].tolist()
        return Received(packets, [sender for at, sender in enumerate(senders) if at not in wrong], errors, sizes)

    def send(self, packets: Sequence[Packet], addresses: Sequence[int] | None = None, port: int = 0) -> Sent:
        """Send packets with checksums to the connected peer, or to the packets' IPv4 `addresses` at `port`."""
        count = len(packets)
        heads = ctypes.create_string_buffer(b"".join([encode_header(header) for header, _ in packets]))
        bodies = (c_char_p * count)(*[values for _, values in packets])
        sizes = (c_int64 * count)(*[len(values) for _, values in packets])
        accepted, error = ctypes.create_string_buffer(count), c_int32()
        to = None if addresses is None else np.array(addresses, ">u4")
        took = self._library.datagrams_send(
            *(self._socket.fileno(), heads, HEADER_BYTES, CHECKSUM.start, bodies, sizes, count),
            *(
                None if to is None else to.ctypes.data,
                socket.htons(port),
                accepted,
                ctypes.byref(self._joins),
                ctypes.byref(error),
            ),
        )
        return Sent([True] * count if took == count else [bool(flag) for flag in accepted.raw], error.value)
