"""A server with every service of kofn.proto behind the guard, and clients with every kind of credentials."""

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc

from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.security import CONTROLLER, Credentials, add_port, channel, grpc_server, permit
from tests.waiting import PATIENCE_S

NAME = (("grpc.ssl_target_name_override", "controller.kofn"), ("grpc.enable_http_proxy", 0))
METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


class Coordinator(kofn_pb2_grpc.CoordinatorServicer):
    """Welcomes a worker whose certificate matches its stated identity."""

    async def Attach(self, request_iterator: AsyncIterator[pb.WorkerMessage], context: Any) -> Any:  # noqa: N802
        async for message in request_iterator:
            await permit(context, ("worker", message.hello.job, message.hello.rank))
            yield pb.ControllerMessage(welcome=pb.Welcome(workers=1))


class Inspector(kofn_pb2_grpc.InspectorServicer):
    """Answers operators; workers of job 1 may watch, too."""

    async def GetStatus(self, request: pb.StatusRequest, context: Any) -> pb.Status:  # noqa: N802
        await permit(context, ("operator",))
        return pb.Status(job=request.job)

    async def WatchStatus(self, request: pb.StatusRequest, context: Any) -> Any:  # noqa: N802
        await permit(context, ("worker", 1), ("operator",))
        yield pb.Status(job=request.job)


@contextlib.asynccontextmanager
async def listening(server: grpc.aio.Server, credentials: Credentials | None) -> AsyncIterator[str]:
    """Serve while the address is needed."""
    port = add_port(server, "127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def serving(credentials: Credentials | None) -> AsyncIterator[str]:
    """Yield the address of all services; methods that are not implemented here answer UNIMPLEMENTED."""
    server = grpc_server(credentials)
    kofn_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(), server)
    kofn_pb2_grpc.add_InspectorServicer_to_server(Inspector(), server)  # type: ignore[abstract]  # on purpose
    kofn_pb2_grpc.add_PeerServicer_to_server(kofn_pb2_grpc.PeerServicer(), server)  # type: ignore[abstract]
    async with listening(server, credentials) as address:
        yield address


def tokenless(credentials: Credentials, address: str, peer: str = CONTROLLER) -> grpc.aio.Channel:
    """Return a channel with a good certificate that sends no token."""
    return channel(dataclasses.replace(credentials, tokens={}), address, peer)


def intruders(own: Credentials, foreign: Credentials, address: str) -> Iterator[tuple[str, grpc.aio.Channel]]:
    """Yield clients that must fail in the handshake, by their fault."""
    yield "plaintext", channel(None, address, CONTROLLER)
    bare = grpc.ssl_channel_credentials(own.authority)
    yield "no certificate", grpc.aio.secure_channel(address, bare, options=NAME)
    yield "another authority", channel(foreign, address, CONTROLLER)
    trusting = dataclasses.replace(foreign, authority=own.authority)
    yield "another authority's certificate", channel(trusting, address, CONTROLLER)


async def raw_call(line: grpc.aio.Channel, method: str, request: bytes = b"") -> list[bytes]:
    """Call any method with one message of bytes and return all its answers."""
    ask: Any = line.stream_stream(method)
    call = ask(_once(request), timeout=PATIENCE_S)
    return [answer async for answer in call]


async def _once(request: bytes) -> AsyncIterator[bytes]:
    yield request


def load(folder: Path, name: str, *jobs: int) -> Credentials:
    """Return credentials that must exist."""
    credentials = Credentials.load(folder, name, jobs)
    assert credentials is not None
    return credentials
