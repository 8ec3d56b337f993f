"""A worker's stream to the controller: attach, report, finish; the worker attaches again whenever the stream breaks.

While the controller cannot be reached, training continues with the last k in the switch; only reports are lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TypeAlias

import grpc

from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.failures import refused_handshake
from kofn_common.rpc.security import CONTROLLER, Credentials, channel, reconnect
from kofn_common.running_clock import RunningClock
from kofn_host.errors import AgentError

log = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 60.0
AGAIN_S, AGAIN_MAX_S = 0.2, 2.0
AWAY_S = 8.0
RECONNECT = reconnect(200, 1000)

Hear: TypeAlias = Callable[[kofn_pb2.ControllerMessage], None]
Call: TypeAlias = "grpc.aio.StreamStreamCall[kofn_pb2.WorkerMessage, kofn_pb2.ControllerMessage]"


class ControllerStream:
    """A worker's stream to the controller; a new stream replaces a broken one.

    `hello` returns the worker's current Hello; `hear` gets every message after the first Welcome, except Stop; `fail`
    is called when another process has taken this worker's place.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials | None,
        *,
        hello: Callable[[], kofn_pb2.Hello],
        hear: Hear,
        fail: Callable[[AgentError], None],
    ) -> None:
        self._address, self._hello, self._hear, self._fail = address, hello, hear, fail
        self._secure = credentials is not None
        self._channel = channel(credentials, address, CONTROLLER, RECONNECT)
        self._call: Call | None = None
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._keeper: asyncio.Task[None] | None = None
        self._finished: kofn_pb2.WorkerMessage | None = None
        self.stopped = asyncio.Event()
        """Set when the controller sends Stop."""

    async def attach(self) -> kofn_pb2.Welcome:
        """Join the job; return when the job starts, or at once if it is already running.

        AgentError if the controller refuses or sends no Welcome within ATTACH_TIMEOUT_S.
        """
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                call, welcome = await self._open_first()
        except TimeoutError:
            raise AgentError(f"no Welcome from the controller at {self._address} in {ATTACH_TIMEOUT_S:.0f} s") from None
        self._keeper = asyncio.create_task(self._stay_attached(call))
        return welcome

    async def _open_first(self) -> tuple[Call, kofn_pb2.Welcome]:
        """Open the first stream, trying again while the controller is unreachable; AgentError if it refuses."""
        while True:
            try:
                return await self._open()
            except grpc.aio.AioRpcError as error:
                reason = refused_handshake(error, secure=self._secure)
                if reason is None and error.code() is not grpc.StatusCode.UNAVAILABLE:
                    reason = f"{error.code().name}: {error.details()}"
                if reason is not None:
                    raise AgentError(f"the controller at {self._address} refused: {reason}") from error
            await asyncio.sleep(AGAIN_S)

    async def say(self, **message: object) -> None:
        """Send one message, such as `report=...`; without a connection to the controller the message is dropped."""
        if self._call is not None:
            await self._write(self._call, kofn_pb2.WorkerMessage(**message))  # type: ignore[arg-type]

    async def finish(self, reason: str, timeout_s: float) -> None:
        """Report that training has ended here; wait, at most `timeout_s`, until it has ended at all workers.

        Without a connection to the controller the end at other workers is unknown.  Then wait AWAY_S after the last
        contact, so that slower peers can still fetch results.
        """
        self._finished = kofn_pb2.WorkerMessage(finished=kofn_pb2.Finished(reason=reason))
        if self._call is not None:
            await self._write(self._call, self._finished)
        clock = RunningClock(4 * AGAIN_S, asyncio.get_running_loop().time)
        began = seen = clock()
        while not self.stopped.is_set() and clock() < min(began + timeout_s, seen + AWAY_S):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self.stopped.wait()
            seen = seen if self._call is None else clock()
        if not self.stopped.is_set():
            log.warning("no Stop from the controller in %.0f s", clock() - began)

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._call is not None:
            self._call.cancel()
        await self._channel.close()

    async def _open(self) -> tuple[Call, kofn_pb2.Welcome]:
        """Open a stream; return it with its Welcome."""
        call = kofn_pb2_grpc.CoordinatorStub(self._channel).Attach()
        await call.write(kofn_pb2.WorkerMessage(hello=self._hello()))
        message = await call.read()
        if not isinstance(message, kofn_pb2.ControllerMessage) or not message.HasField("welcome"):
            if await call.code() == grpc.StatusCode.OK:
                raise AgentError(f"the controller at {self._address} ended the stream before its Welcome")
            raise await _error_of(call)
        self._call = call
        return call, message.welcome

    async def _stay_attached(self, call: Call) -> None:
        """Follow the controller's messages until Stop; reconnect when the stream breaks.

        Call `fail` if another process has taken this worker's place (ABORTED).
        """
        while not await self._read_until_stop(call):
            if await call.code() == grpc.StatusCode.ABORTED:
                self._fail(
                    AgentError(
                        f"the controller at {self._address} has accepted another process in this worker's place:"
                        f" {await call.details()}"
                    )
                )
                return
            call, welcome = await self._open_again()
            self._hear(kofn_pb2.ControllerMessage(welcome=welcome))
            if self._finished is not None:
                await self._write(call, self._finished)
        self.stopped.set()

    async def _read_until_stop(self, call: Call) -> bool:
        """Pass all messages on; return True after Stop, False when the stream broke."""
        try:
            while isinstance(message := await call.read(), kofn_pb2.ControllerMessage):
                if message.HasField("stop"):
                    log.info("stop: %s", message.stop.reason)
                    return True
                self._hear(message)
            why = "it closed the stream"
        except grpc.aio.AioRpcError as error:
            why = error.details() or error.code().name
        self._call = None
        log.warning("the controller at %s is gone (%s): continuing with the k in the switch", self._address, why)
        return False

    async def _open_again(self) -> tuple[Call, kofn_pb2.Welcome]:
        """Try to open a stream until one opens; log each new reason once."""
        pause_s, said = AGAIN_S, ""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)
            try:
                opened = await self._open()
            except (grpc.aio.AioRpcError, AgentError) as error:
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
                if why != said:
                    log.warning("the controller at %s: %s; trying again", self._address, why)
                said = why or ""
                continue
            log.info("attached to the controller at %s again", self._address)
            return opened

    async def _write(self, call: Call, message: kofn_pb2.WorkerMessage) -> None:
        """Write a message; on a broken stream the message is lost, and _read_until_stop() notices the break."""
        try:
            async with self._writing:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            log.debug("not sent to the controller: %s", message.WhichOneof("message"))


async def _error_of(call: Call) -> grpc.aio.AioRpcError:
    """Turn the status of an ended stream into the error that read() does not raise."""
    metadata = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(await call.code(), metadata, metadata, await call.details())
