"""The relay between an engine and its socket: faults in either direction, and Scapy's packets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest

from kofn_common.config.faults import FaultSection
from kofn_common.wire import packet as wire
from kofn_common.wire import scapy_layer
from kofn_common.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX, WORD_BYTES, KofnHeader, encode
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.transport import Transport
from kofn_host.transport.udp import udp_socket
from tests.loopback import loopback

PORT = 19312
WORKER, SWITCH = loopback(98, 1), loopback(98, 254)
SOON_S = 20.0


class Route:
    """A worker's transport with the engine's end, and the switch's socket."""

    def __init__(self, transport: Transport, packets: ModuleType) -> None:
        self.switch = udp_socket(SWITCH, PORT)
        self.switch.connect((WORKER, PORT))
        self.switch.setblocking(False)
        self.engine = transport.open(asyncio.get_running_loop(), packets)

    async def carried(
        self, source: socket.socket, target: socket.socket, sent: Iterable[bytes], count: int
    ) -> list[bytes]:
        """Send datagrams and return the `count` arrivals; no more may arrive."""
        for datagram in sent:
            source.send(datagram)
        loop = asyncio.get_running_loop()
        arrived = [await asyncio.wait_for(loop.sock_recv(target, 1 << 16), SOON_S) for _ in range(count)]
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            target.recv(1 << 16)
        return arrived

    async def leave(self, sent: Iterable[bytes], count: int) -> list[bytes]:
        return await self.carried(self.engine, self.switch, sent, count)

    async def come(self, sent: Iterable[bytes], count: int) -> list[bytes]:
        return await self.carried(self.switch, self.engine, sent, count)


@asynccontextmanager
async def route(*rules: FaultSection, packets: ModuleType = wire) -> AsyncIterator[Route]:
    sending, receiving = (Faults(rules, rank=0, direction=direction, seed=1) for direction in ("send", "receive"))
    transport = Transport(SWITCH, WORKER, port=PORT, sending=sending, receiving=receiving)
    made = Route(transport, packets)
    try:
        yield made
    finally:
        transport.close()
        made.switch.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run the work and check that nothing fails in the background either."""
    wrong: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        await work

    asyncio.run(watched())
    assert wrong == []


def datagrams(count: int) -> list[bytes]:
    return [encode(KofnHeader(block=block, words=1), bytes([block % 256]) * WORD_BYTES) for block in range(count)]


def test_engine_has_the_socket_itself_without_faults() -> None:
    async def work() -> None:
        async with route() as one:
            assert one.engine.getpeername() == (SWITCH, PORT)

    run(work())


@pytest.mark.parametrize("way", ["send", "receive"])
def test_each_direction_has_its_own_faults(way: Any) -> None:
    """The first of five datagrams is lost, the second is duplicated, and the fourth follows the fifth; the other
    direction is intact.
    """
    sent = datagrams(5)
    rules = (
        FaultSection(direction=way, packets=(1,), drop=1.0),
        FaultSection(direction=way, packets=(2,), duplicate=1.0),
        FaultSection(direction=way, packets=(4,), reorder=1.0),
    )

    async def work() -> None:
        async with route(*rules) as one:
            faulty, whole = (one.leave, one.come) if way == "send" else (one.come, one.leave)
            assert await faulty(sent, 5) == [sent[1], sent[1], sent[2], sent[4], sent[3]]
            assert await whole(sent, 5) == sent

    run(work())


def test_faults_may_be_both_ways() -> None:
    """Datagrams are delayed in one direction and have a flipped bit in the other."""
    sent = datagrams(3)
    rules = (FaultSection(direction="send", delay_ms=50.0), FaultSection(direction="receive", corrupt=1.0))

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with route(*rules) as one:
            begun_s = loop.time()
            assert await one.leave(sent, 3) == sent
            assert loop.time() - begun_s >= 0.05
            for before, after in zip(sent, await one.come(sent, 3), strict=True):
                assert (int.from_bytes(before, "big") ^ int.from_bytes(after, "big")).bit_count() == 1

    run(work())


def test_more_datagrams_than_one_read_takes_are_relayed() -> None:
    sent = datagrams(700)

    async def work() -> None:
        async with route(FaultSection(packets=(700,), duplicate=1.0)) as one:
            assert await one.leave(sent, 701) == [*sent, sent[-1]]
            assert await one.come(sent, 701) == [*sent, sent[-1]]

    run(work())


class Spy(ModuleType):
    """Scapy's layer, which keeps the packets that it has made."""

    def __init__(self) -> None:
        super().__init__("spy")
        self.made: list[KofnHeader] = []
        self.read: list[KofnHeader] = []

    def decode_header(self, datagram: bytes) -> KofnHeader:
        self.read.append(scapy_layer.decode_header(datagram))
        return self.read[-1]

    def encode(self, header: KofnHeader, values: bytes) -> bytes:
        self.made.append(header)
        return scapy_layer.encode(header, values)


def test_scapy_makes_every_leaving_packet_and_reads_every_arriving_one() -> None:
    """The bytes are the same, also in a packet of the largest size; an invalid datagram passes unchanged."""
    sent = [
        *datagrams(3),
        encode(KofnHeader(words=32, bitmaps=16), bytes(PACKET_BYTES_MAX - HEADER_BYTES)),
        b"",
        b"no packet",
    ]
    spy = Spy()

    async def work() -> None:
        async with route(packets=spy) as one:
            assert await one.leave(sent, len(sent)) == sent
            assert ([header.block for header in spy.made], spy.read) == ([0, 1, 2, 0], [])
            assert await one.come(sent, len(sent)) == sent
            assert (len(spy.made), [header.block for header in spy.read]) == (4, [0, 1, 2, 0])

    run(work())


def test_scapy_reads_after_the_faults() -> None:
    """A packet with a flipped bit reaches the engine, which counts it."""
    sent, spy = datagrams(2), Spy()

    async def work() -> None:
        async with route(FaultSection(direction="receive", corrupt=1.0), packets=spy) as one:
            assert len([got for got in await one.come(sent, 2) if got not in sent]) == 2
            assert spy.read == []

    run(work())


def test_faults_are_applied_after_scapy() -> None:
    """Scapy would not make a packet with a wrong checksum."""
    sent = datagrams(2)

    async def work() -> None:
        async with route(FaultSection(direction="send", corrupt=1.0), packets=scapy_layer) as one:
            assert len([got for got in await one.leave(sent, 2) if got not in sent]) == 2

    run(work())


def test_relay_survives_an_absent_switch() -> None:
    sent = datagrams(2)

    async def work() -> None:
        async with route(FaultSection(packets=(10_000,), drop=1.0)) as one:
            one.switch.close()
            for datagram in [*sent, *sent]:
                one.engine.send(datagram)
                await asyncio.sleep(0.005)
            one.switch = udp_socket(SWITCH, PORT)
            one.switch.connect((WORKER, PORT))
            one.switch.setblocking(False)
            assert await one.leave(sent, 2) == sent
            assert await one.come(sent, 2) == sent

    run(work())


def test_closed_transport_frees_its_port() -> None:
    """A delayed datagram is lost and does no harm."""

    async def work() -> None:
        async with route(FaultSection(delay_ms=20.0)) as one:
            one.engine.send(b"later")
            await asyncio.sleep(0.005)
        udp_socket(WORKER, PORT).close()
        await asyncio.sleep(0.03)

    run(work())
