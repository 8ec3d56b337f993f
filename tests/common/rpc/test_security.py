"""Access to the management network: every wrong kind of caller against real servers."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.failures import refused_handshake
from kofn_common.rpc.security import CONTROLLER, OPERATOR, TOKEN_KEY, Credentials, channel, worker_name
from tests.common.rpc.lab import METHODS, intruders, load, raw_call, serving, tokenless
from tests.waiting import PATIENCE_S

DENIED, UNAUTHENTICATED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


def with_server(folder: Path, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving(load(folder, CONTROLLER, 1, 2)) as address:
            await scenario(address)

    asyncio.run(run())


async def failure(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value


async def attach(line: grpc.aio.Channel, job: int, rank: int) -> pb.ControllerMessage:
    call = kofn_pb2_grpc.CoordinatorStub(line).Attach(timeout=PATIENCE_S)
    await call.write(pb.WorkerMessage(hello=pb.Hello(job=job, rank=rank)))
    answer = await call.read()
    assert isinstance(answer, pb.ControllerMessage)
    return answer


def test_every_method_of_the_protocol_is_known() -> None:
    assert {"/kofn.Coordinator/Attach", "/kofn.Inspector/SetObjective", "/kofn.Peer/FetchState"} <= set(METHODS)


@pytest.mark.parametrize("method", [*METHODS, "/kofn.Inspector/NoSuchMethod"])
def test_every_method_without_a_token_is_unauthenticated(own: Path, method: str) -> None:
    async def scenario(address: str) -> None:
        operator = load(own, OPERATOR)
        async with tokenless(operator, address) as line:
            error = await failure(raw_call(line, method))
        assert (error.code(), error.details()) == (
            UNAUTHENTICATED,
            "the call must have a job's token (kofn-token), got none",
        )
        assert not error.trailing_metadata()
        async with channel(dataclasses.replace(operator, tokens={1: "0" * 32}), address, CONTROLLER) as line:
            error = await failure(raw_call(line, method))
        assert (error.code(), error.details()) == (UNAUTHENTICATED, "not the token of a job that is served here")

    with_server(own, scenario)


@pytest.mark.parametrize("method", METHODS)
def test_same_calls_with_a_token_pass_the_guard(own: Path, method: str) -> None:
    async def scenario(address: str) -> None:
        async with channel(load(own, worker_name(1, 0), 1), address, CONTROLLER) as line:
            try:
                await raw_call(line, method)
            except grpc.aio.AioRpcError as error:
                assert error.code() in (DENIED, grpc.StatusCode.UNIMPLEMENTED)

    with_server(own, scenario)


def test_stream_is_refused_before_its_first_message(own: Path) -> None:
    async def scenario(address: str) -> None:
        async with tokenless(load(own, worker_name(1, 0), 1), address) as line:
            call = kofn_pb2_grpc.CoordinatorStub(line).Attach(timeout=PATIENCE_S)  # nothing is written
            assert (await failure(call.read())).code() is UNAUTHENTICATED

    with_server(own, scenario)


def test_two_tokens_are_refused(own: Path) -> None:
    async def scenario(address: str) -> None:
        operator = load(own, OPERATOR, 1)
        async with channel(operator, address, CONTROLLER) as line:
            stub = kofn_pb2_grpc.InspectorStub(line)
            another = ((TOKEN_KEY, operator.tokens[1]),)
            error = await failure(stub.GetStatus(pb.StatusRequest(), metadata=another, timeout=PATIENCE_S))
            assert error.code() is UNAUTHENTICATED

    with_server(own, scenario)


def test_handshake_without_our_authoritys_certificate_fails(own: Path, foreign: Path) -> None:
    async def scenario(address: str) -> None:
        for kind, line in intruders(load(own, OPERATOR), load(foreign, OPERATOR), address):
            async with line:
                for method in METHODS:
                    error = await failure(raw_call(line, method))
                    assert error.code() is grpc.StatusCode.UNAVAILABLE, (kind, method)
                    assert refused_handshake(error, secure=kind != "plaintext"), (kind, error.details())

    with_server(own, scenario)


def test_servers_identity_is_checked(own: Path, foreign: Path) -> None:
    async def scenario(address: str) -> None:
        operator = load(own, OPERATOR)
        async with channel(operator, address, worker_name(1, 0)) as line:
            error = await failure(raw_call(line, METHODS[0]))
        assert refused_handshake(error, secure=True) == "its certificate is some other process's"
        async with channel(load(foreign, OPERATOR), address, CONTROLLER) as line:
            error = await failure(raw_call(line, METHODS[0]))
        reason = "its certificate is of another authority than the one here"
        assert refused_handshake(error, secure=True) == reason

    with_server(own, scenario)


def test_correct_credentials_are_accepted(own: Path) -> None:
    async def scenario(address: str) -> None:
        async with channel(load(own, OPERATOR), address, CONTROLLER) as line:
            status = await kofn_pb2_grpc.InspectorStub(line).GetStatus(pb.StatusRequest(job=7), timeout=PATIENCE_S)
            assert status.job == 7
        async with channel(load(own, worker_name(1, 2), 1), address, CONTROLLER) as line:
            assert (await attach(line, job=1, rank=2)).HasField("welcome")

    with_server(own, scenario)


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        (worker_name(1, 1), 1, "the caller must be worker 2 of job 1, your certificate is worker 1's of job 1"),
        (worker_name(2, 0), 2, "the caller must be worker 2 of job 1, your certificate is worker 0's of job 2"),
        (worker_name(1, 2), 2, "your certificate is worker 2's of job 1, but your token is of job 2"),
        (OPERATOR, 1, "the caller must be worker 2 of job 1, your certificate is the operator's"),
    ],
)
def test_worker_must_be_the_one_of_its_certificate(own: Path, name: str, token: int, words: str) -> None:
    async def scenario(address: str) -> None:
        async with channel(load(own, name, token), address, CONTROLLER) as line:
            error = await failure(attach(line, job=1, rank=2))
            assert (error.code(), error.details()) == (DENIED, words)

    with_server(own, scenario)


def test_calls_are_restricted_to_their_callers(own: Path) -> None:
    async def scenario(address: str) -> None:
        async with channel(load(own, worker_name(1, 0), 1), address, CONTROLLER) as line:
            inspector = kofn_pb2_grpc.InspectorStub(line)
            watched: Any = inspector.WatchStatus(pb.StatusRequest(job=3), timeout=PATIENCE_S)
            assert (await watched.read()).job == 3
            error = await failure(inspector.GetStatus(pb.StatusRequest(), timeout=PATIENCE_S))
            assert error.details() == "the caller must be the operator, your certificate is worker 0's of job 1"
        async with channel(load(own, worker_name(2, 0), 2), address, CONTROLLER) as line:
            error = await failure(
                kofn_pb2_grpc.InspectorStub(line).WatchStatus(pb.StatusRequest(), timeout=PATIENCE_S).read()
            )
            assert error.details().startswith("the caller must be a worker of job 1 or the operator, ")

    with_server(own, scenario)


def test_server_without_credentials_uses_plaintext(own: Path) -> None:
    async def run() -> None:
        assert Credentials.load(None, OPERATOR) is None
        async with serving(None) as address:
            async with channel(None, address, CONTROLLER) as line:
                assert (await attach(line, job=1, rank=2)).HasField("welcome")
            async with channel(load(own, OPERATOR), address, CONTROLLER) as line:
                error = await failure(raw_call(line, METHODS[0]))
            assert refused_handshake(error, secure=True) == "it speaks without TLS, certificates are used here"

    asyncio.run(run())


def test_absent_server_is_no_refused_handshake(own: Path) -> None:
    async def run() -> None:
        for credentials in (None, load(own, OPERATOR)):
            async with channel(credentials, "127.0.0.1:1", CONTROLLER) as line:
                error = await failure(raw_call(line, METHODS[0]))
                assert refused_handshake(error, secure=credentials is not None) is None

    asyncio.run(run())
