"""Blocks to the switch and their sums back, for a probe: contributions of known numbers, until the sum is there."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from host.errors import WireError
from host.lanes import pack, unpack
from host.transport import Transport
from host.wire import (
    HEADER_BYTES,
    WORD_LANES,
    Header,
    Kind,
    Values,
    decode_header,
    encode,
    members_of,
)

EXCHANGE_S = 3.0
RESEND_S = 0.25


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are and whom we ask."""

    job: int
    rank: int
    workers: int
    controller: str
    service: str
    certs: Path | None


class ProbeError(Exception):
    """A step that failed; the message says what was measured."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Blocks to the switch and sums back."""

    plan: Plan
    generation: int
    iteration: int
    _transport: Transport | None = None
    _answers: dict[int, tuple[Header, bytes]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _strange: str = ""

    def close(self) -> None:
        """Give the socket back, if there is one."""
        if self._transport is not None:
            self._transport.close()

    def _open(self) -> Transport:
        """The socket, from the first packet on; OSError where it cannot be had."""
        if self._transport is None:
            self._transport = Transport(self.plan.service)
            self._transport.listen(asyncio.get_running_loop(), self._take)
        return self._transport

    def _take(self, datagrams: list[bytes]) -> None:
        """Keep what has come, by block."""
        for datagram in datagrams:
            try:
                header = decode_header(datagram)
            except WireError as error:
                self._strange = f"; what came was {error}"
                continue
            if header.kind in (Kind.RESULT, Kind.LATE):
                self._answers.setdefault(header.block, (header, datagram[HEADER_BYTES:]))
            else:
                self._strange = f"; the switch answered {Kind(header.kind).name}"
        self._news.set()

    async def block(self, number: int, *, words: int, alone: bool) -> str:
        """Contribute a block until its sum comes, and check that; `alone`: k = 1, and the sum comes to us only."""
        plan = self.plan
        ranks = [plan.rank] if alone else list(range(plan.workers))
        header = Header(
            job=plan.job,
            worker=plan.rank,
            words=words,
            generation=self.generation,
            iteration=self.iteration,
            block=number,
            slot=number,
            **({"k": 1, "owner": plan.rank} if alone else {}),
        )
        datagram = encode(header, pack(_values(plan.rank, words), 32))
        begin = time.monotonic()
        answer, values = await self._answer(number, datagram)
        members, held = members_of(answer.members), (answer.count, answer.gradients)
        if members != ranks or held != (len(ranks), len(ranks)):
            raise ProbeError(
                f"the sum is of workers {members}, count {held[0]}, gradients {held[1]}: {ranks} was to be expected"
            )
        wrong = np.flatnonzero(unpack(values, 32) != sum(_values(rank, words) for rank in ranks))
        if wrong.size:
            raise ProbeError(
                f"{wrong.size} of {words * WORD_LANES} sums are wrong, the first is that of lane {wrong[0]}"
            )
        return f"{len(datagram)} bytes, {words * WORD_LANES} sums exact, in {(time.monotonic() - begin) * 1e3:.1f} ms"

    async def _answer(self, number: int, datagram: bytes) -> tuple[Header, bytes]:
        """Send again and again until there is one."""
        transport, sent, deadline = self._open(), 0, time.monotonic() + EXCHANGE_S
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise ProbeError(f"no answer to {sent} packets of {len(datagram)} bytes{self._strange}")
            transport.send(datagram)
            sent += 1
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), RESEND_S)
            except TimeoutError:
                continue
        return self._answers[number]


def _values(rank: int, words: int) -> Values:
    """What a worker contributes: different in every lane and for every rank."""
    return np.arange(words * WORD_LANES, dtype=np.int32) - 7 + 100_000 * (rank + 1)
