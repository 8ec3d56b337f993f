"""A run's calls to its controller: wait until the controller is up, read statuses, set an objective."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from kofn.run.errors import RunError
from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.security import CONTROLLER, OPERATOR, Credentials, channel, reconnect

RETRY_S = 0.2
CALL_S = 2.0
SET_S = 5.0
INTERVAL_S = 0.1
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
RECONNECT = reconnect(500, 500)
"""The channel's options: the client finds a restarted controller within half a second."""


class ControllerClient:
    """The controller as the operator sees it; use as a context manager.

    async with ControllerClient("127.0.0.1:50052", certificates=folder.certificates) as client:
        async for status in client.statuses(job=1): ...
    """

    def __init__(self, address: str, *, certificates: Path | None) -> None:
        """Make a client without a connection; without certificates it uses plaintext."""
        credentials = Credentials.load(certificates, OPERATOR)
        self._channel = channel(credentials, address, CONTROLLER, RECONNECT)
        self._stub = kofn_pb2_grpc.InspectorStub(self._channel)

    async def __aenter__(self) -> "ControllerClient":
        """Return the client, which connects at the first call."""
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def ready(self) -> AsyncIterator[bool]:
        """Yield repeatedly whether the controller answers and is connected to its switch. Raise RunError if the
        controller refuses the call."""
        while True:
            try:
                status = await self._stub.GetStatus(kofn_pb2.StatusRequest(), timeout=CALL_S)
                yield status.switch_connected
            except grpc.aio.AioRpcError as error:
                _refusal(error)
                yield False

    async def statuses(self, job: int) -> AsyncIterator[kofn_pb2.Status | None]:
        """Yield a job's statuses, endlessly. Yield None when the controller has gone, and statuses again when the
        controller is back."""
        request = kofn_pb2.StatusRequest(interval_s=INTERVAL_S, job=job)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for status in self._stub.WatchStatus(request):
                    yield status
            yield None
            await asyncio.sleep(RETRY_S)

    async def status(self, job: int) -> kofn_pb2.Status | None:
        """Return a job's status with the switch's present counters; None if the controller does not answer."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await self._stub.GetStatus(kofn_pb2.StatusRequest(job=job), timeout=CALL_S)
        return None

    async def set_objective(self, job: int, objective: str) -> str | None:
        """Set an objective for an event, as `kofn set-k` does. Return the reason as text if the controller does not
        answer. Raise RunError if the controller refuses."""
        request = kofn_pb2.Objective(objective=objective, job=job, planned=True)
        try:
            await self._stub.SetObjective(request, timeout=SET_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            _refusal(error)
            return "the controller does not answer"
        return None


def _refusal(error: grpc.aio.AioRpcError) -> None:
    """Raise RunError unless a later call may get another answer."""
    if error.code() not in AWAY:
        raise RunError(f"the controller refuses: {error.code().name}: {error.details()}") from None
