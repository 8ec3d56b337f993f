"""The gRPC services around the sessions: Coordinator for workers, Inspector for the command line and other clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc

from kofn_common.config.errors import ConfigError
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.security import OPERATOR, Context, Credentials, add_port, grpc_server, permit
from kofn_controller.errors import AttachError, StartError
from kofn_controller.job.jobs import Jobs
from kofn_controller.job.members import Outbox, Stream
from kofn_controller.job.session import JobSession
from kofn_controller.job.status import status
from kofn_controller.p4runtime.switch_link import SwitchLink

KEEPALIVE = (
    ("grpc.keepalive_time_ms", 2000),  # a worker whose machine or namespace vanished sends no FIN
    ("grpc.keepalive_timeout_ms", 3000),  # a worker on a busy machine may answer late
    ("grpc.http2.ping_timeout_ms", 3000),  # gRPC waits for the longer of both timeouts; this one's default is 60 s
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),  # a worker may ping once in this interval
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),  # a second controller must fail, not share the port
)

WATCH_INTERVAL_S = 0.5
WATCH_LEAST_S = 0.05


class CoordinatorService(kofn_pb2_grpc.CoordinatorServicer):
    """The service for workers. A worker's Hello selects the session of its job."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.WorkerMessage], context: Context
    ) -> AsyncIterator[pb.ControllerMessage]:
        """Serve one worker's stream, from its Hello until either side ends it."""
        session, stream = await self._join(request_iterator, context)
        reader = asyncio.create_task(self._read(session, stream, request_iterator))
        try:
            while (message := await _next(stream.outbox, reader)) is not None:
                if isinstance(message, AttachError):
                    await context.abort(message.code, str(message))
                else:
                    yield message
        finally:
            reader.cancel()
            session.leave(stream)

    async def _join(self, messages: AsyncIterator[pb.WorkerMessage], context: Context) -> tuple[JobSession, Stream]:
        """Return the session and stream of a worker that says Hello; another client gets the reason for its refusal."""
        first = await anext(messages, None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a Hello")
        hello = first.hello
        await permit(context, ("worker", hello.job, hello.rank))
        try:
            session = self._jobs.of_hello(hello)
            return session, session.attach(hello)
        except AttachError as error:
            await context.abort(error.code, str(error))
        raise AssertionError("context.abort raises")

    async def _read(self, session: JobSession, stream: Stream, messages: AsyncIterator[pb.WorkerMessage]) -> None:
        """Pass the worker's messages to its session until the worker closes its side."""
        async for message in messages:
            session.take(stream, message)


async def _next(outbox: Outbox, reader: asyncio.Task[None]) -> pb.ControllerMessage | AttachError | None:
    """Return the next message to send; None once the worker has closed its side and all is sent."""
    if not outbox.empty():
        return outbox.get_nowait()
    getter = asyncio.create_task(outbox.get())
    try:
        await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            return getter.result()
        reader.result()  # raises if reading has failed
        return None
    finally:
        getter.cancel()


class InspectorService(kofn_pb2_grpc.InspectorServicer):
    """The service for operators. A request names a job; 0 means the first one."""

    def __init__(self, jobs: Jobs, links: Sequence[SwitchLink]) -> None:
        self._jobs, self._links = jobs, links

    async def GetStatus(self, request: pb.StatusRequest, context: Context) -> pb.Status:  # noqa: N802
        """Return a status with the switch's present counters."""
        session = await self._session(request.job, context)
        await asyncio.gather(*(link.recount() for link in self._links))
        return self._status(session)

    async def WatchStatus(  # noqa: N802
        self, request: pb.StatusRequest, context: Context
    ) -> AsyncIterator[pb.Status]:
        """Send a status now and after each change, at most one status in each interval."""
        session = await self._session(request.job, context)
        interval_s = max(request.interval_s or WATCH_INTERVAL_S, WATCH_LEAST_S)
        shown = None
        while True:
            if shown != (version := (session.version, *(link.connected for link in self._links))):
                shown = version
                yield self._status(session)
            await asyncio.sleep(interval_s)

    async def SetObjective(self, request: pb.Objective, context: Context) -> pb.Status:  # noqa: N802
        """Follow another objective at once."""
        session = await self._session(request.job, context)
        try:
            session.set_objective(request.objective, planned=request.planned)
        except ConfigError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return self._status(session)

    async def _session(self, job: int, context: Context) -> JobSession:
        """Return the job's session, for operators only; an unknown job is refused with the list of jobs."""
        await permit(context, (OPERATOR,))
        try:
            return self._jobs.find(job)
        except AttachError as error:
            await context.abort(error.code, str(error))
        raise AssertionError("context.abort raises")

    def _status(self, session: JobSession) -> pb.Status:
        return status(session, self._links, list(self._jobs.sessions))


def serve(
    jobs: Jobs, links: Sequence[SwitchLink], addresses: Sequence[str], credentials: Credentials | None = None
) -> tuple[grpc.aio.Server, list[int]]:
    """Return a server that is not started, and its ports (port 0 takes a free one); StartError names an address in
    use. `links` come from `p4runtime.links`."""
    server = grpc_server(credentials, KEEPALIVE)
    kofn_pb2_grpc.add_CoordinatorServicer_to_server(CoordinatorService(jobs), server)
    kofn_pb2_grpc.add_InspectorServicer_to_server(InspectorService(jobs, links), server)
    return server, [_bind(server, address, credentials) for address in addresses]


def _bind(server: grpc.aio.Server, address: str, credentials: Credentials | None) -> int:
    try:
        port = add_port(server, address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise StartError(
            f"cannot listen at {address}: in use by another controller (`kofn stop` ends a run), "
            "or no address of this machine"
        )
    return port
