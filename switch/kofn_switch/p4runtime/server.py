"""The P4Runtime server of one engine, from open to closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from finsy.proto import p4r_grpc

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.service import P4RuntimeService
from kofn_switch.p4runtime.uplink import Uplink, in_loop

MESSAGE_MAX = 256 << 20  # bytes, as in simple_switch_grpc: a program's JSON can be large
GRACE_S = 0.3  # seconds for running requests when the server is closed

OPTIONS = (
    ("grpc.so_reuseport", 0),  # two switches at one address would share its clients
    ("grpc.max_receive_message_length", MESSAGE_MAX),
    ("grpc.max_send_message_length", MESSAGE_MAX),
)


@asynccontextmanager
async def serving(
    engine: Engine, *, device_id: int, address: str, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Serve P4Runtime at HOST:PORT (port 0: any) within the block, and yield the port number.

    `credentials` turn TLS on. Raises RuntimeError when the server cannot listen there.
    """
    service = P4RuntimeService(engine, device_id)
    server = grpc.aio.server(options=OPTIONS)
    p4r_grpc.add_P4RuntimeServicer_to_server(service, server)
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    await server.start()
    digests = Uplink("digests", engine.take_digests, in_loop(service.streams.take_digests))
    packets = Uplink("packet-ins", engine.take_packet_ins, in_loop(service.streams.take_packets))
    idle = Uplink("idle timeouts", engine.take_idle, in_loop(service.streams.take_idle))
    try:
        yield port
    finally:
        service.streams.close()
        await asyncio.gather(server.stop(GRACE_S), *(uplink.close() for uplink in (digests, packets, idle)))
