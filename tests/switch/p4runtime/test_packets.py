"""Packets between the controller and the data plane, with the program's metadata."""

import asyncio

import finsy as fy
import pytest
from finsy.proto import p4r, rpc_code

from tests.switch.p4runtime.harness import Target, frame, primary

TO_CONTROLLER = 1
EGRESS_PORT, PAD = 1, 2

pytestmark = pytest.mark.root


def test_packet_to_the_controller_has_its_metadata(target: Target) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            packets = switch.read_packets()
            heard = asyncio.ensure_future(anext(aiter(packets)))
            await asyncio.sleep(0)  # let it open its queue
            target.send(3, frame(TO_CONTROLLER, value=1))
            packet = await asyncio.wait_for(heard, 10)
            assert packet.payload == frame(TO_CONTROLLER, value=1)
            assert packet.metadata == {"ingress_port": 3, "reason": 5, "length": len(packet.payload)}

    asyncio.run(scenario())


@pytest.mark.parametrize("port", [1, 3])
def test_packet_from_the_controller_leaves_by_its_metadata(target: Target, port: int) -> None:
    async def scenario() -> None:
        async with target.client() as switch:
            await switch.write([fy.P4PacketOut(frame(0, value=7), egress_port=port, pad=0)])
            assert await target.receive(port) == frame(0, value=7)

    asyncio.run(scenario())


def metadata(**fields: bytes) -> list[p4r.PacketMetadata]:
    ids = {"egress_port": EGRESS_PORT, "pad": PAD, "seven": 7}
    return [p4r.PacketMetadata(metadata_id=ids[name], value=value) for name, value in fields.items()]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (metadata(egress_port=b"\1"), "packet_out must have every metadata field, got no pad"),
        (metadata(egress_port=b"\1", pad=b"\0", seven=b"\0"), "no metadata field of packet_out has id 0x7"),
        (metadata(egress_port=b"\2\0", pad=b"\0"), "egress_port of packet_out is 0x200, which does not fit bit<9>"),
        (metadata(egress_port=b"\1", pad=b"\0") + metadata(pad=b"\0"), "pad of packet_out is given twice"),
    ],
)
def test_wrong_metadata_is_reported_on_the_stream(
    embedded: Target, fields: list[p4r.PacketMetadata], words: str
) -> None:
    async def scenario() -> None:
        async with primary(embedded) as client:
            packet = p4r.PacketOut(payload=frame(0), metadata=fields)
            await client.stream.write(p4r.StreamMessageRequest(packet=packet))
            error = (await client.hear()).error
            assert words in error.message
            assert list(error.packet_out.packet_out.metadata) == fields

    asyncio.run(scenario())


def test_only_the_primary_sends_packets(embedded: Target) -> None:
    async def scenario() -> None:
        async with primary(embedded), embedded.stub() as stub:
            stream = stub.StreamChannel()
            await stream.write(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"x")))
            error = (await stream.read()).error
            assert error.canonical_code == rpc_code.PERMISSION_DENIED
            assert error.message.startswith("Not primary: only the primary may send packet; the primary has election")
            stream.cancel()

    asyncio.run(scenario())
