"""A run follows its controller when it goes away and returns, and distinguishes a refusal from an absence."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kofn.run.controller_client import ControllerClient
from kofn.run.errors import RunError
from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, Credentials, add_port, grpc_server


class FakeController(kofn_pb2_grpc.InspectorServicer):
    """Answers with its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def GetStatus(self, request: kofn_pb2.StatusRequest, context: Any) -> kofn_pb2.Status:  # noqa: N802
        return kofn_pb2.Status(job=self.number, switch_connected=True)

    async def WatchStatus(  # noqa: N802
        self, request: kofn_pb2.StatusRequest, context: Any
    ) -> AsyncIterator[kofn_pb2.Status]:
        yield kofn_pb2.Status(job=request.job, k=self.number)
        await asyncio.sleep(60)

    async def SetObjective(self, request: kofn_pb2.Objective, context: Any) -> kofn_pb2.Status:  # noqa: N802
        if request.objective == "best":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "objective is 'best'")
        return kofn_pb2.Status(job=request.job)


async def serve(number: int, port: int = 0, folder: Path | None = None) -> tuple[grpc.aio.Server, int]:
    credentials = Credentials.load(folder, CONTROLLER)
    server = grpc_server(credentials, [("grpc.so_reuseport", 0)])
    kofn_pb2_grpc.add_InspectorServicer_to_server(FakeController(number), server)
    port = add_port(server, f"127.0.0.1:{port}", credentials)
    await server.start()
    return server, port


def test_controller_is_followed_when_it_returns() -> None:
    async def run() -> None:
        server, port = await serve(1)
        seen: list[int | None] = []
        async with ControllerClient(f"127.0.0.1:{port}", certificates=None) as client:
            async for status in client.statuses(7):
                seen.append(None if status is None else status.k)
                if seen == [1]:
                    await server.stop(None)
                if seen == [1, None]:
                    server, _ = await serve(2, port)
                if status is not None and status.k == 2:
                    assert status.job == 7
                    break
        await server.stop(None)
        assert seen[:2] == [1, None]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_client_uses_the_operators_certificate(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    make_certificates(folder, {1: 1})

    async def run() -> None:
        server, port = await serve(1, folder=folder)
        async with ControllerClient(f"127.0.0.1:{port}", certificates=folder) as client:
            assert await anext(client.ready())
        async with ControllerClient(f"127.0.0.1:{port}", certificates=None) as stranger:
            assert not await anext(stranger.ready())
        await server.stop(None)

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.slow
def test_refusal_is_no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn.run.controller_client.SET_S", 0.5)

    async def run() -> None:
        server, port = await serve(1)
        async with ControllerClient(f"127.0.0.1:{port}", certificates=None) as client:
            assert await client.set_objective(1, "all") is None
            with pytest.raises(RunError, match="the controller refuses: INVALID_ARGUMENT: objective is 'best'"):
                await client.set_objective(1, "best")
            await server.stop(None)
            assert await client.set_objective(1, "all") == "the controller does not answer"

    asyncio.run(asyncio.wait_for(run(), 30))
