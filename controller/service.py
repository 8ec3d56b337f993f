"""gRPC around a session: Coordinator for the workers, Inspector for the command line and other onlookers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import grpc

from controller.errors import AttachError, StartError
from controller.push import SwitchLink
from controller.session import Seat, Session
from controller.status import status
from rpc import kofn_pb2 as pb
from rpc import kofn_pb2_grpc
from run.errors import ConfigError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 2000),  # a worker whose machine or namespace vanished sends no FIN
    ("grpc.keepalive_timeout_ms", 3000),  # and one on a busy machine may answer late
    ("grpc.http2.ping_timeout_ms", 3000),  # gRPC waits for the longer of the two; this one's default is a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # workers may ask as often
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),  # a second controller must fail, not share the port
)

WATCH_INTERVAL_S = 0.5
WATCH_LEAST_S = 0.05


class Coordinator(kofn_pb2_grpc.CoordinatorServicer):
    """The workers' side."""

    def __init__(self, session: Session) -> None:
        """All calls are about this session."""
        self._session = session

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.WorkerMessage], context: Context
    ) -> AsyncIterator[pb.ControllerMessage]:
        """One worker's stream: from its Hello until either side ends it."""
        seat = await self._seat(request_iterator, context)
        reader = asyncio.create_task(self._read(seat, request_iterator))
        try:
            while (message := await _next(seat.outbox, reader)) is not None:
                yield message
        finally:
            reader.cancel()
            self._session.leave(seat.rank)

    async def _seat(self, messages: AsyncIterator[pb.WorkerMessage], context: Context) -> Seat:
        """The seat of who says Hello; anyone else is told why not."""
        first = await anext(messages, None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a Hello")
        try:
            return self._session.attach(first.hello)
        except AttachError as error:
            await context.abort(error.code, str(error))
        raise AssertionError("context.abort raises")

    async def _read(self, seat: Seat, messages: AsyncIterator[pb.WorkerMessage]) -> None:
        """Take reports until the worker has said all."""
        async for message in messages:
            match message.WhichOneof("message"):
                case "report":
                    self._session.report(seat.rank, message.report)
                case "finished":
                    self._session.finish(seat.rank, message.finished.reason)


async def _next(outbox: asyncio.Queue[pb.ControllerMessage], reader: asyncio.Task[None]) -> pb.ControllerMessage | None:
    """What to send next; None once the worker has closed its side and everything is sent."""
    if not outbox.empty():
        return outbox.get_nowait()
    getter = asyncio.create_task(outbox.get())
    try:
        await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            return getter.result()
        reader.result()  # a fault of ours in there is not to be swallowed
        return None
    finally:
        getter.cancel()


class Inspector(kofn_pb2_grpc.InspectorServicer):
    """The onlookers' side."""

    def __init__(self, session: Session, link: SwitchLink) -> None:
        """All calls are about this session and switch."""
        self._session, self._link = session, link

    async def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.Status:  # noqa: N802
        """What is known now."""
        return status(self._session, self._link)

    async def WatchStatus(  # noqa: N802
        self, request: pb.StatusRequest, context: Context
    ) -> AsyncIterator[pb.Status]:
        """A status now and after each change, at most one each interval."""
        interval_s = max(request.interval_s or WATCH_INTERVAL_S, WATCH_LEAST_S)
        shown = None
        while True:
            if shown != (version := (self._session.version, self._link.connected)):
                shown = version
                yield status(self._session, self._link)
            await asyncio.sleep(interval_s)

    async def SetObjective(self, request: pb.Objective, context: Context) -> pb.Status:  # noqa: N802
        """Follow another objective at once."""
        try:
            self._session.set_objective(request.objective)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return status(self._session, self._link)


def serve(session: Session, link: SwitchLink, addresses: Sequence[str]) -> tuple[grpc.aio.Server, list[int]]:
    """A server, not yet started, and its ports (port 0 takes a free one); StartError names an address in use."""
    server = grpc.aio.server(options=KEEPALIVE)
    kofn_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(session), server)
    kofn_pb2_grpc.add_InspectorServicer_to_server(Inspector(session, link), server)
    return server, [_bind(server, address) for address in addresses]


def _bind(server: grpc.aio.Server, address: str) -> int:
    """Listen at one address."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise StartError(
            f"cannot listen at {address}: in use by another controller (`kofn stop` ends a run), "
            "or no address of this machine"
        )
    return port
