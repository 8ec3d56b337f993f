"""The real services behind the guard: the permitted callers of each method of kofn.proto. A new method must be added
here.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kofn_common.config.job import JobSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.security import CONTROLLER, OPERATOR, channel, grpc_server, worker_name
from kofn_host.membership.peer import PeerService
from tests.common.rpc.lab import METHODS, listening, load, tokenless
from tests.controller.harness import serving, setup
from tests.waiting import PATIENCE_S

HELLO = pb.WorkerMessage(hello=pb.Hello(job=1, rank=0, peer_address="10.9.9.0:50053"))

ALLOWED: dict[str, tuple[Any, str]] = {
    "/kofn.Coordinator/Attach": (HELLO, worker_name(1, 0)),
    "/kofn.Inspector/GetStatus": (pb.StatusRequest(), OPERATOR),
    "/kofn.Inspector/WatchStatus": (pb.StatusRequest(), OPERATOR),
    "/kofn.Inspector/SetObjective": (pb.Objective(objective="all"), OPERATOR),
    "/kofn.Peer/FetchResults": (pb.ResultRange(job=1), worker_name(1, 1)),
    "/kofn.Peer/FollowResults": (pb.FollowRequest(job=1), worker_name(1, 1)),
    "/kofn.Peer/FetchState": (pb.StateRequest(job=1), worker_name(1, 1)),
}
"""A valid request for each method, and a permitted caller."""

REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNAVAILABLE,  # the controller's certificate is a server's, so the handshake fails
}
CALLERS = [(CONTROLLER, 1), (OPERATOR, 1), (worker_name(1, 0), 1), (worker_name(1, 1), 1), (worker_name(2, 0), 2)]


@asynccontextmanager
async def controller(folder: Path) -> AsyncIterator[str]:
    sessions = [setup(JobSection(id=1, workers=2), hosts=3), setup(JobSection(id=2, workers=1), hosts=3)]
    async with serving(*sessions, credentials=load(folder, CONTROLLER, 1, 2)) as running:
        yield running.address


@asynccontextmanager
async def worker(folder: Path) -> AsyncIterator[str]:
    credentials = load(folder, worker_name(1, 0), 1)
    server = grpc_server(credentials)
    service = PeerService(1, lambda first, last: [], lambda follower: [], lambda: None)
    kofn_pb2_grpc.add_PeerServicer_to_server(service, server)
    async with listening(server, credentials) as address:
        yield address


def place(method: str) -> tuple[Any, str]:
    """Return the service of a method, and its name."""
    return (worker, worker_name(1, 0)) if "/kofn.Peer/" in method else (controller, CONTROLLER)


async def outcome(line: grpc.aio.Channel, method: str, request: Any) -> grpc.StatusCode:
    """Return the status of the first answer or of the refusal."""
    call: Any = line.stream_stream(method)(timeout=PATIENCE_S)
    try:
        await call.write(request.SerializeToString())
        if method != "/kofn.Coordinator/Attach":
            await call.done_writing()
        async with asyncio.timeout(0.3):  # an accepted Attach waits for the others
            await call.read()
            return grpc.StatusCode.OK
    except TimeoutError:
        return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    finally:
        call.cancel()


def test_every_method_has_its_callers() -> None:
    assert sorted(ALLOWED) == sorted(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_only_permitted_callers_are_served(own: Path, method: str) -> None:
    async def run() -> None:
        served, name = place(method)
        request, allowed = ALLOWED[method]
        async with served(own) as address:
            for caller, job in CALLERS:
                async with channel(load(own, caller, job), address, name) as line:
                    code = await outcome(line, method, request)
                good = caller == allowed or (name != CONTROLLER and job == 1 and "worker" in caller)
                assert (code not in REFUSALS) is good, (caller, code)

    asyncio.run(run())


@pytest.mark.parametrize("method", METHODS)
def test_no_caller_is_served_without_a_token(own: Path, method: str) -> None:
    async def run() -> None:
        served, name = place(method)
        request, allowed = ALLOWED[method]
        async with served(own) as address, tokenless(load(own, allowed, 1), address, name) as line:
            assert await outcome(line, method, request) is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(run())


def test_hello_of_another_rank_takes_no_seat(own: Path) -> None:
    async def run() -> None:
        session = setup(JobSection(id=1, workers=3))
        async with serving(session, credentials=load(own, CONTROLLER, 1)) as running:
            async with channel(load(own, worker_name(1, 1), 1), running.address, CONTROLLER) as line:
                call = kofn_pb2_grpc.CoordinatorStub(line).Attach(timeout=PATIENCE_S)
                await call.write(HELLO)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call.read()
            assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert (
                error.value.details() == "the caller must be worker 0 of job 1, your certificate is worker 1's of job 1"
            )
            async with channel(load(own, OPERATOR), running.address, CONTROLLER) as line:
                status = await kofn_pb2_grpc.InspectorStub(line).GetStatus(pb.StatusRequest(), timeout=PATIENCE_S)
            assert [worker.state for worker in status.worker] == ["absent"] * 3

    asyncio.run(run())


PLAINTEXT = re.compile(r"(insecure_channel|add_insecure_port|secure_channel|add_secure_port)\(")


def test_one_module_opens_channels_and_ports() -> None:
    root = Path(pb.__file__).parents[3]
    rooms = ("common", "controller", "host", "jobs", "kofn", "pytorch")  # without the switch: its server is BMv2's
    sources = [path for room in rooms for path in (root / room).rglob("*.py")]
    found = {f"{path.parent.name}/{path.name}" for path in sources if PLAINTEXT.search(path.read_text())}
    assert found == {"rpc/security.py", "run/switch_identity.py"}, (
        "only P4Runtime's port may be plaintext, as BMv2's is"
    )
