"""A worker's stream to the controller: a refused worker gets the reason at once; a broken stream reconnects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.certificates import make_certificates
from kofn_common.rpc.security import CONTROLLER, Context, Credentials, add_port, grpc_server, worker_name
from kofn_host.errors import AgentError
from kofn_host.membership.controller_stream import ControllerStream
from tests.waiting import PATIENCE_S


class Controller(kofn_pb2_grpc.CoordinatorServicer):
    """Welcomes every worker, and sends the messages that a test gives it."""

    def __init__(self) -> None:
        self.heard: list[pb.WorkerMessage] = []
        self.say: asyncio.Queue[pb.ControllerMessage | grpc.StatusCode] = asyncio.Queue()

    async def Attach(  # noqa: N802
        self, messages: AsyncIterator[pb.WorkerMessage], context: Context
    ) -> AsyncIterator[pb.ControllerMessage]:
        self.heard.append(await anext(messages))
        yield pb.ControllerMessage(welcome=pb.Welcome(workers=2, k=2, first_iteration=1, generation=5, running=True))
        while not isinstance(said := await self.say.get(), grpc.StatusCode):
            yield said
        await context.abort(said, "as the test wants it")


async def serve(credentials: Credentials | None) -> tuple[grpc.aio.Server, Controller, str]:
    server, controller = grpc_server(credentials), Controller()
    kofn_pb2_grpc.add_CoordinatorServicer_to_server(controller, server)
    port = add_port(server, "127.0.0.1:0", credentials)
    await server.start()
    return server, controller, f"127.0.0.1:{port}"


def line(
    address: str, credentials: Credentials | None = None
) -> tuple[ControllerStream, list[pb.ControllerMessage], list[Any]]:
    heard: list[pb.ControllerMessage] = []
    failures: list[AgentError] = []
    hello = pb.Hello(job=1, rank=0)
    return (
        ControllerStream(address, credentials, hello=lambda: hello, hear=heard.append, fail=failures.append),
        heard,
        failures,
    )


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_worker_without_the_right_certificate_is_told_so_at_once(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_certificates(tmp_path / name, {1: 2})
    stranger = Credentials.load(tmp_path / "theirs", worker_name(1, 0), [1])

    async def scenario() -> None:
        server, _, address = await serve(Credentials.load(tmp_path / "ours", CONTROLLER, [1]))
        for credentials, reason in ((None, "it wants a certificate"), (stranger, "another authority")):
            coordinator, *_ = line(address, credentials)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(AgentError, match=f"refused: {reason}|refused: its certificate is of {reason}"):
                    await coordinator.attach()
            await coordinator.close()
        await server.stop(0)

    asyncio.run(scenario())


def test_broken_stream_reconnects_and_repeats_the_finished_iteration() -> None:
    async def scenario() -> None:
        server, controller, address = await serve(None)
        coordinator, heard, failures = line(address)
        assert (await coordinator.attach()).generation == 5
        controller.say.put_nowait(grpc.StatusCode.UNAVAILABLE)
        await until(lambda: heard)
        assert heard[0].welcome.running
        assert len(controller.heard) == 2
        controller.say.put_nowait(pb.ControllerMessage(stop=pb.Stop(reason="all done")))
        await coordinator.finish("target", 10)
        assert coordinator.stopped.is_set()
        assert not failures
        await coordinator.close()
        await server.stop(0)

    asyncio.run(scenario())


def test_replaced_worker_does_not_reconnect() -> None:
    async def scenario() -> None:
        server, controller, address = await serve(None)
        coordinator, _, failures = line(address)
        await coordinator.attach()
        controller.say.put_nowait(grpc.StatusCode.ABORTED)
        await until(lambda: failures)
        assert "accepted another process" in str(failures[0])
        assert len(controller.heard) == 1
        await coordinator.close()
        await server.stop(0)

    asyncio.run(scenario())
