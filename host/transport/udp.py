"""A worker's UDP socket: packets out to the switch's service address, packets in, as many at a time as there are.

Knows nothing of blocks.  UDP's checksum is switched off: packets have kofn's own (p4src/checksum.p4).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from kofn.host.errors import WireError
from kofn.host.protocol.deadline_timer import Clock, Timer
from kofn.host.stopwatch import UNTIMED, Part
from kofn.host.transport.datagrams import Datagrams, Packet, datagrams
from kofn.host.transport.fault_injection import Copy, Faults
from kofn.host.transport.pacing import PAUSE_S, Pacer, TokenBucket
from kofn.host.wire import packet as wire
from kofn.host.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX, PORT

_SO_NO_CHECK = 11  # linux/asm-generic/socket.h; Python has no name for it
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_RECEIVE_BUFFER_BYTES, _SEND_BUFFER_BYTES = 16 << 20, 4 << 20
_BATCH = 256

HELD_S = 0.02
"""How long a datagram that is to be reordered waits for one that passes it."""

_BEHIND_S = 1e-6  # timers of one moment may run in any order

Carry = Callable[[list[bytes]], None]
"""What is to be done with datagrams."""

Take = Callable[[list[Packet]], None]
"""What is to be done with packets."""

Refuse = Callable[[WireError], None]
"""Hears what is wrong with what is none."""


@dataclass(slots=True)
class Traffic:
    """What went over the socket: UDP payload bytes and packets."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    send_failures: int = 0


class _Held(NamedTuple):
    """A datagram that waits for another to pass it."""

    due_s: float  # when it would have arrived
    datagram: bytes
    timer: Timer


class SendQueue:
    """One direction of a worker's network with its faults: gives each datagram to `take` when it arrives.

    One datagram is held back at a time; the one that comes after it is not, or neither would pass.
    """

    def __init__(self, faults: Faults, clock: Clock, take: Carry) -> None:
        """The faults' time begins now."""
        self._faults, self._clock, self._take = faults, clock, take
        self._started_s = clock.time()
        self._held: _Held | None = None

    def carry(self, datagrams: list[bytes]) -> None:
        """What arrives at once is given at once, and together."""
        arrived: list[bytes] = []
        for datagram in datagrams:
            now = self._clock.time()
            for copy in self._faults.fate(datagram, now - self._started_s):
                self._place(copy, now, arrived)
        if arrived:
            self._take(arrived)

    def _place(self, copy: Copy, now: float, arrived: list[bytes]) -> None:
        """One copy: held back, or on its way with the held one behind it."""
        due_s = now + copy.delay_s
        if copy.held and self._held is None:
            timer = self._clock.call_at(due_s + HELD_S, self._wait_is_over)
            self._held = _Held(due_s, copy.datagram, timer)
            return
        self._arrive_at(due_s, now, copy.datagram, arrived)
        if self._held is not None:
            held, self._held = self._held, None
            held.timer.cancel()
            after_s = now if max(held.due_s, due_s) <= now else max(held.due_s, due_s + _BEHIND_S)
            self._arrive_at(after_s, now, held.datagram, arrived)

    def _arrive_at(self, due_s: float, now: float, datagram: bytes, arrived: list[bytes]) -> None:
        if due_s <= now:
            arrived.append(datagram)
        else:
            self._clock.call_at(due_s, self._take, [datagram])

    def _wait_is_over(self) -> None:
        """Nothing passed the held datagram."""
        if self._held is not None:
            held, self._held = self._held, None
            self._take([held.datagram])


class Transport:
    """A non-blocking UDP socket connected to `service`, bound to `local` (all addresses), both with this port."""

    def __init__(
        self,
        service: str,
        local: str = "",
        *,
        sending: Faults | None = None,
        receiving: Faults | None = None,
        bucket: TokenBucket | None = None,
        port: int = PORT,
    ) -> None:
        """Packets leave at the bucket's rate, before anything happens to them; None: as they come."""
        self.traffic = Traffic()
        self.during: Callable[[Part], AbstractContextManager[object]] = lambda part: UNTIMED
        """Is told what the event loop's time goes into (collectives.collective.Stopwatch)."""
        self.more: Callable[[], object] = lambda: None
        """Is called before packets that have waited leave: it may send others, to leave with them."""
        self._bucket = bucket
        self._pacer: Pacer[Packet] | None = None
        self._many: Datagrams | None = None
        self._sending, self._receiving = sending, receiving
        self._socket = udp_socket(local, port)
        _enlarge(self._socket, _SO_SNDBUFFORCE, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._socket.connect((service, port))
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, loop: asyncio.AbstractEventLoop, take: Take, refuse: Refuse, packets: ModuleType = wire) -> None:
        """Give packets to `take` as they come, and to `refuse` what is wrong with others, until close().

        `packets`: the module that makes and reads them one by one; wire.packet's may go many at a time.
        """
        self._loop, self._take, self._refuse, self._packets = loop, take, refuse, packets
        self._out = SendQueue(self._sending, loop, self._send_all) if self._sending else None
        self._in = SendQueue(self._receiving, loop, self._arrive) if self._receiving else None
        self._pacer = Pacer(self._bucket, loop, self._leave_paced, self._rings) if self._bucket else None
        self._many = datagrams(self._socket) if packets is wire else None
        self._reads = True
        loop.add_reader(self._socket, self._readable)

    def send(self, packets: Sequence[Packet]) -> list[float | None]:
        """Let packets go, only after listen(): each now (None), or in its turn, with the time when that will be."""
        if self._pacer is not None:
            leave_s = self._pacer.send([(packet, HEADER_BYTES + len(packet[1])) for packet in packets])
            self._read_or_wait()
            return leave_s
        self._leave(packets)
        return [None] * len(packets)

    @property
    def waiting(self) -> int:
        """Packets that wait for their turn."""
        return 0 if self._pacer is None else len(self._pacer)

    def _rings(self) -> None:
        """Packets that have waited leave now; what has come may let others leave with them."""
        self.look()
        self.more()

    def look(self) -> None:
        """Take what has come and waits to be read until others leave."""
        if not self._reads and self._socket.fileno() >= 0:
            self._readable()

    def _leave_paced(self, packets: Sequence[Packet]) -> None:
        self._leave(packets)
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """If queued packets leave soon, read then: reading earlier lets none leave sooner, and wakes the worker."""
        loop, pacer = self._loop, self._pacer
        if loop is None or pacer is None or self._socket.fileno() < 0:
            return
        rings_s = pacer.rings_s
        reads = rings_s is None or rings_s > loop.time() + 2 * PAUSE_S
        if reads and not self._reads:
            loop.add_reader(self._socket, self._readable)
        elif self._reads and not reads:
            loop.remove_reader(self._socket)
        self._reads = reads

    def _leave(self, packets: Sequence[Packet]) -> None:
        """Hand packets to the network, which may have faults."""
        with self.during("send"):
            if self._out is None and self._many is not None:
                self._send_many(self._many, packets)
            else:
                made = [self._packets.encode(header, values) for header, values in packets]
                (self._send_all if self._out is None else self._out.carry)(made)

    def _send_many(self, many: Datagrams, packets: Sequence[Packet]) -> None:
        """As _send(), all at once."""
        if self._socket.fileno() < 0:
            return
        left = many.send(packets).left
        sizes = [HEADER_BYTES + len(values) for (_, values), went in zip(packets, left, strict=True) if went]
        self.traffic.packets_sent += len(sizes)
        self.traffic.bytes_sent += sum(sizes)
        self.traffic.send_failures += len(packets) - len(sizes)

    def close(self) -> None:
        """Stop listening and give the port back; what waits or is delayed is lost."""
        if self._pacer is not None:
            self._pacer.close()
        if self._socket.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
            self._socket.close()

    def _send_all(self, datagrams: list[bytes]) -> None:
        """What comes out of the line with faults."""
        for datagram in datagrams:
            self._send(datagram)

    def _send(self, datagram: bytes) -> None:
        """Hand it to the kernel; what that cannot take is lost, as on any network, and counted."""
        if self._socket.fileno() < 0:
            return
        try:
            self._socket.send(datagram)
        except (BlockingIOError, ConnectionRefusedError):
            self.traffic.send_failures += 1
            return
        self.traffic.packets_sent += 1
        self.traffic.bytes_sent += len(datagram)

    def _readable(self) -> None:
        with self.during("receive"):
            if self._in is None and self._many is not None:
                packets, _, errors, sizes = self._many.receive()
                self._came(sizes)
                self._give(packets, errors)
            else:
                (self._arrive if self._in is None else self._in.carry)(self._receive())

    def _arrive(self, datagrams: list[bytes]) -> None:
        """Datagrams are here, out of the line with faults perhaps after the end."""
        if self._socket.fileno() < 0:
            return
        packets, errors = list[Packet](), list[WireError]()
        for datagram in datagrams:
            try:
                packets.append((self._packets.decode_header(datagram), datagram[HEADER_BYTES:]))
            except WireError as error:
                errors.append(error)
        self._give(packets, errors)

    def _give(self, packets: list[Packet], errors: list[WireError]) -> None:
        """Pass on what has come."""
        for error in errors:
            self._refuse(error)
        self._take(packets)

    def _came(self, sizes: Sequence[int]) -> None:
        self.traffic.packets_received += len(sizes)
        self.traffic.bytes_received += sum(sizes)

    def _receive(self) -> list[bytes]:
        """The datagrams that are there, at most a batch."""
        datagrams: list[bytes] = []
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while len(datagrams) < _BATCH:
                datagrams.append(self._socket.recv(PACKET_BYTES_MAX + 1))
        self._came(list(map(len, datagrams)))
        return datagrams


def udp_socket(local: str, port: int) -> socket.socket:
    """Bound, without UDP's checksum, with room for what comes at once; OSError where the address is not to be had."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        _enlarge(opened, _SO_RCVBUFFORCE, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind((local, port))
    except BaseException:
        opened.close()
        raise
    return opened


def _enlarge(opened: socket.socket, forced: int, limited: int, size: int) -> None:
    """A buffer for a whole window of packets; the system's limit binds only those who are not root."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, forced, size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, limited, size)
