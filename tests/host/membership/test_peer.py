"""Results from peers, over gRPC: each peer is asked for its own; an unreachable one does not stop the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.wire.packet import bit_of
from kofn_host.membership import peer
from kofn_host.membership.peer import Peers, PeerService
from kofn_host.protocol.results import BlockId, Result
from kofn_host.workload.replica import ReplicaState


def result(iteration: int, block: int) -> Result:
    return Result(
        id=BlockId(iteration, block),
        scale=-3,
        lanes=1,
        k=2,
        count=2,
        weight=7,
        members=bit_of(63, block) | 1,
        values=bytes(range(256)),
    )


async def said(**message: object) -> None:
    """Say nothing: there is no controller."""


async def serve(held: Sequence[Result], job: int = 1, state: ReplicaState | None = None) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    service = PeerService(
        job,
        held=lambda first, last: [one for one in held if first <= one.id.iteration <= last],
        fresh=lambda follower: [],
        state=lambda: state,
    )
    kofn_pb2_grpc.add_PeerServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_results_of_several_peers_complete_each_other() -> None:
    async def scenario() -> None:
        one, one_address = await serve([result(1, 0), result(2, 0)])
        other, other_address = await serve([result(1, 0), result(1, 1)])
        peers = Peers(1, 3, None, said)
        peers.update({0: "127.0.0.1:1", 1: one_address, 2: other_address, 3: "itself"})  # port 1 is closed
        answers = [results async for results in peers.fetch(1, 1)]
        assert answers == [[result(1, 0)], [result(1, 0), result(1, 1)]]
        await peers.close()
        await one.stop(0)
        await other.stop(0)

    asyncio.run(scenario())


def test_follower_gets_results_as_the_peer_gets_them_until_the_peer_ends() -> None:
    batches = [[result(3, 0), result(3, 1)], [], [result(4, 0)]]

    async def scenario() -> None:
        server = grpc.aio.server()
        service = PeerService(
            1,
            held=lambda first, last: [],
            fresh=lambda follower: batches.pop(0) if batches else [],
            state=lambda: None,
        )
        kofn_pb2_grpc.add_PeerServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        peers = Peers(1, 2, None, said)
        assert [results async for results in peers.follow(0, 3)] == [], "the peer is not known"
        peers.update({0: f"127.0.0.1:{port}"})
        got = list[list[Result]]()
        async for results in peers.follow(0, 3):
            got.append(results)
            if len(got) == 2:
                await server.stop(0)
        assert got == [[result(3, 0), result(3, 1)], [result(4, 0)]], "the peer is not silent, so nothing else comes"
        await peers.close()

    asyncio.run(scenario())


def test_peer_without_results_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations may take longer than the time after which a silent peer is given up."""
    monkeypatch.setattr(peer, "STILL_HERE_S", 0.02)
    monkeypatch.setattr(peer, "FETCH_TIMEOUT_S", 5.0)

    async def scenario() -> None:
        server, address = await serve([])
        peers = Peers(1, 2, None, said)
        peers.update({0: address})
        got = list[list[Result]]()
        async for results in peers.follow(0, 3):
            got.append(results)
            if len(got) == 3:
                break
        assert got == [[], [], []]
        await peers.close()
        await server.stop(0)

    asyncio.run(scenario())


def test_replica_arrives_unchanged() -> None:
    random = np.random.default_rng(3)
    arrays: dict[str, Any] = {
        "parameters": random.normal(size=400_000).astype(np.float32),
        "optimizer.velocity": random.normal(size=400_000).astype(np.float32),
        "results": random.integers(-(2**60), 2**60, 400_128),
        "values": random.random(10),
        "optimizer.torch": np.arange(7, dtype=np.uint8),
        "optimizer.none": np.zeros((0, 3), np.int16),
        "optimizer.table": random.random((3, 5)),
        "optimizer.one": np.array(7),
    }

    async def scenario() -> None:
        young, young_address = await serve([])  # has no parameters yet
        old, old_address = await serve([], state=ReplicaState(iteration=7, arrays=arrays))
        peers = Peers(1, 2, None, said)
        peers.update({0: young_address, 1: old_address})
        state = await peers.state()
        assert state is not None
        assert state.iteration == 7
        assert all(
            (state.arrays[name].dtype, state.arrays[name].tolist()) == (arrays[name].dtype, arrays[name].tolist())
            for name in arrays
        )
        await peers.close()
        await young.stop(0)
        await old.stop(0)

    asyncio.run(scenario())


def test_request_of_another_job_is_refused() -> None:
    async def scenario() -> None:
        server, address = await serve([result(1, 0)], job=7)
        async with grpc.aio.insecure_channel(address) as channel:
            request = kofn_pb2.ResultRange(job=1, first_iteration=1, last_iteration=1)
            try:
                await kofn_pb2_grpc.PeerStub(channel).FetchResults(request).read()
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
                assert error.details() == "this worker serves job 7, got job 1"
        await server.stop(0)

    asyncio.run(scenario())
