"""A probe's blocks: contributions of known numbers, retransmitted until the sum has come."""

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import (
    HEADER_BYTES,
    MEMBERS_BITS,
    MEMBERS_BYTES,
    PACKET_BYTES_MAX,
    WORD_LANES,
    Kind,
    KofnHeader,
    decode_header,
    encode,
    members_of,
    places_of,
)
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.arrays import Values
from kofn_host.collectives import connected_socket
from kofn_host.kernels.lanes import pack, unpack
from kofn_host.transport.datagrams import Packet

EXCHANGE_S = 3.0
RESEND_S = 0.25


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The probe's identity, and the addresses to probe."""

    job: int
    exact: int  # the job of exact sums, whose packets may set k
    rank: int
    workers: int
    racks: int
    controller: str
    service: str
    certs: Path | None


class ProbeError(Exception):
    """A step that failed; the message has the measurement."""


@dataclass(slots=True, kw_only=True)
class ProbeBlocks:
    """Sends blocks to the switch and checks the sums that come back."""

    plan: ProbePlan
    generation: int
    iteration: int
    _socket: socket.socket | None = None
    _answers: dict[int, Packet] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _strange: str = ""

    def close(self) -> None:
        """Close the socket, if it is open."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _open(self) -> socket.socket:
        """Return the socket, which the first call opens. Raise OSError if that fails."""
        if self._socket is None:
            self._socket = connected_socket(self.plan.service)
            asyncio.get_running_loop().add_reader(self._socket, self._receive, self._socket)
        return self._socket

    def _receive(self, opened: socket.socket) -> None:
        try:
            datagram = opened.recv(PACKET_BYTES_MAX + 1)
            header = decode_header(datagram)
            body = HEADER_BYTES + header.bitmaps * MEMBERS_BYTES
            if header.bitmaps:  # a tree's answer has the members of all racks
                members = datagram[HEADER_BYTES:body]
                racks = (members[at : at + MEMBERS_BYTES] for at in range(0, len(members), MEMBERS_BYTES))
                header = header._replace(members=int.from_bytes(b"".join([*racks][::-1])))
            self._take(header, datagram[body:])
        except WireError as error:
            self._strange = f"; the answer was {error}"
        except (BlockingIOError, ConnectionRefusedError):
            return

    def _take(self, header: KofnHeader, values: bytes) -> None:
        """Keep the first answer about each block."""
        if header.kind in (Kind.RESULT, Kind.LATE):
            self._answers.setdefault(header.block, (header, values))
        else:
            self._strange = f"; the switch answered {Kind(header.kind).name}"
        self._news.set()

    async def block(self, number: int, *, words: int, alone: bool) -> str:
        """Contribute a block until the sum comes, and check the sum. With `alone`, k is 1 and only this probe gets the
        sum."""
        plan = self.plan
        ranks = [plan.rank] if alone else list(range(plan.workers))
        places = places_of(plan.workers, plan.racks)
        place = places[plan.rank]
        header = KofnHeader(
            job=plan.exact if alone else plan.job,
            worker=place % MEMBERS_BITS,
            words=words,
            generation=self.generation,
            iteration=self.iteration,
            block=number,
            slot=number,
            **({"k": 1, "recipient": place} if alone else {}),
        )
        packet = header, pack(_values(plan.rank, words), 32)
        begin = time.monotonic()
        answer, values = await self._answer(number, packet)
        members, held = members_of(answer.members, places), (answer.count, answer.weight)
        if members != ranks or held != (len(ranks), len(ranks) * WEIGHT_UNIT):
            raise ProbeError(
                f"the sum is of workers {members}, count {held[0]}, weight {held[1]}: {ranks} was expected"
            )
        wrong = np.flatnonzero(unpack(values, 32) != sum(_values(rank, words) for rank in ranks))
        if wrong.size:
            raise ProbeError(
                f"{wrong.size} of {words * WORD_LANES} sums are wrong, the first is that of lane {wrong[0]}"
            )
        return f"{_size(packet)} bytes, {words * WORD_LANES} sums exact, in {(time.monotonic() - begin) * 1e3:.1f} ms"

    async def _answer(self, number: int, packet: Packet) -> Packet:
        """Send a packet repeatedly until an answer comes; return the answer."""
        opened, sent, deadline = self._open(), 0, time.monotonic() + EXCHANGE_S
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise ProbeError(f"no answer to {sent} packets of {_size(packet)} bytes{self._strange}")
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                opened.send(encode(*packet))
            sent += 1
            self._news.clear()
            try:
                async with asyncio.timeout(RESEND_S):
                    await self._news.wait()
            except TimeoutError:
                continue
        return self._answers[number]


def _size(packet: Packet) -> int:
    return HEADER_BYTES + len(packet[1])


def _values(rank: int, words: int) -> Values:
    """Return a worker's contribution: different in every lane and for every rank."""
    return np.arange(words * WORD_LANES, dtype=np.int32) - 7 + 100_000 * (rank + 1)
