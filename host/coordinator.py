"""A worker's line to the controller: attach, report, finish.

When the controller goes away after the Welcome, training goes on with the last k; only the reports are lost.
"""

import asyncio
import logging

import grpc

from host.errors import AgentError
from rpc import kofn_pb2, kofn_pb2_grpc

log = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 60.0


class Coordinator:
    """The Attach stream of one worker."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address)
        self._call: grpc.aio.StreamStreamCall[kofn_pb2.WorkerMessage, kofn_pb2.ControllerMessage] | None = None
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._reader: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()
        """Set when the controller says Stop, or is gone."""

    async def attach(self, hello: kofn_pb2.Hello) -> kofn_pb2.Welcome:
        """Join the job; returns when all its workers have.  AgentError when refused or nobody answers."""
        stub = kofn_pb2_grpc.CoordinatorStub(self._channel)
        call = stub.Attach(wait_for_ready=True, timeout=None)
        try:
            await asyncio.wait_for(call.write(kofn_pb2.WorkerMessage(hello=hello)), ATTACH_TIMEOUT_S)
            message = await asyncio.wait_for(call.read(), ATTACH_TIMEOUT_S)
        except TimeoutError:
            raise AgentError(f"no Welcome from the controller at {self._address} in {ATTACH_TIMEOUT_S:.0f} s") from None
        except grpc.aio.AioRpcError as error:
            raise AgentError(f"the controller at {self._address} refused: {error.details()}") from error
        if not isinstance(message, kofn_pb2.ControllerMessage) or not message.HasField("welcome"):
            raise AgentError(f"the controller at {self._address} ended the stream before its Welcome")
        self._call = call
        self._reader = asyncio.create_task(self._read(call))
        return message.welcome

    async def report(self, report: kofn_pb2.Report) -> None:
        """One iteration's times."""
        await self._write(kofn_pb2.WorkerMessage(report=report))

    async def finish(self, reason: str, timeout_s: float) -> None:
        """Say that training is over here and wait, at most `timeout_s`, until it is over everywhere."""
        await self._write(kofn_pb2.WorkerMessage(finished=kofn_pb2.Finished(reason=reason)))
        try:
            await asyncio.wait_for(self.stopped.wait(), timeout_s)
        except TimeoutError:
            log.warning("no Stop from the controller in %.0f s", timeout_s)

    async def close(self) -> None:
        """Leave."""
        if self._reader is not None:
            self._reader.cancel()
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def _write(self, message: kofn_pb2.WorkerMessage) -> None:
        """Write unless the controller is gone."""
        if self._call is None or self.stopped.is_set():
            return
        try:
            async with self._writing:
                await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._lost(error)

    async def _read(
        self, call: "grpc.aio.StreamStreamCall[kofn_pb2.WorkerMessage, kofn_pb2.ControllerMessage]"
    ) -> None:
        """Follow what the controller says until it stops us."""
        try:
            while isinstance(message := await call.read(), kofn_pb2.ControllerMessage):
                if message.HasField("decision"):
                    log.info("k = %d from iteration %d", message.decision.k, message.decision.from_iteration)
                if message.HasField("stop"):
                    log.info("stop: %s", message.stop.reason)
                    break
        except grpc.aio.AioRpcError as error:
            self._lost(error)
        self.stopped.set()

    def _lost(self, error: Exception) -> None:
        """Go on without it."""
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
        log.warning("the controller at %s is gone (%s): going on with the last k", self._address, details)
        self.stopped.set()
