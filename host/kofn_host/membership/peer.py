"""The exchange of workers over gRPC on the management network: results that the switch has lost, and whole replicas."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

import grpc

from kofn_common.rpc import kofn_pb2, kofn_pb2_grpc
from kofn_common.rpc.security import Context, Credentials, channel, permit, worker_name
from kofn_common.wire.packet import MEMBERS_BYTES
from kofn_common.wire.sizes import RACKS_MAX
from kofn_host.agent.following import FOLLOW_S, Follower
from kofn_host.protocol.results import BlockId, Result
from kofn_host.workload.replica import ReplicaState, from_parts, to_parts

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 5.0
STILL_HERE_S = 1.0
"""The longest time between two messages to a follower."""

INSIST = 3
"""The most attempts to reach a peer, if an answer of every peer is needed."""
INSIST_PAUSE_S = 0.3

HeldResults = Callable[[int, int], Iterable[Result]]
"""Returns the results of iterations first..last that this worker holds, as Protocol.results() does."""

FreshResults = Callable[[Follower], Iterable[Result]]
"""Returns the results of this worker that a follower has not got."""

Answer = TypeVar("Answer")
Stub: TypeAlias = "kofn_pb2_grpc.PeerAsyncStub"


class PeerService(kofn_pb2_grpc.PeerServicer):
    """Serves this worker's results and replica to its peers."""

    def __init__(
        self, job: int, held: HeldResults, fresh: FreshResults, state: Callable[[], ReplicaState | None]
    ) -> None:
        self._job, self._held, self._fresh, self._state = job, held, fresh, state

    async def FetchResults(  # noqa: N802  # the name is the service's
        self, request: kofn_pb2.ResultRange, context: Context
    ) -> AsyncIterator[kofn_pb2.BlockResult]:
        """Stream all held results of the range in order; old results have members only."""
        await self._check(request.job, context)
        for result in list(self._held(request.first_iteration, request.last_iteration)):
            yield _to_message(result)

    async def FollowResults(  # noqa: N802
        self, request: kofn_pb2.FollowRequest, context: Context
    ) -> AsyncIterator[kofn_pb2.BlockResults]:
        """Stream results as this worker gets them, until the follower ends the call. An empty message every
        STILL_HERE_S says that there are none."""
        await self._check(request.job, context)
        follower, said_s = Follower(request.first_iteration), 0.0
        while True:
            results = [_to_message(result) for result in self._fresh(follower)]
            if results or time.monotonic() > said_s + STILL_HERE_S:
                yield kofn_pb2.BlockResults(results=results)
                said_s = time.monotonic()
            await asyncio.sleep(FOLLOW_S)

    async def FetchState(  # noqa: N802
        self, request: kofn_pb2.StateRequest, context: Context
    ) -> AsyncIterator[kofn_pb2.StatePart]:
        """Stream the replica as it is between two iterations."""
        await self._check(request.job, context)
        state = await asyncio.to_thread(self._state)  # state() may have to wait for the training thread
        if state is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this worker has no parameters yet")
            return
        for array, data in to_parts(state):
            yield kofn_pb2.StatePart(iteration=state.iteration, array=array, data=data)

    async def _check(self, job: int, context: Context) -> None:
        """Abort unless the caller is a worker of this job and asks about this job."""
        await permit(context, ("worker", self._job))
        if job != self._job:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this worker serves job {self._job}, got job {job}")


class Peers:
    """Asks the other workers of `job`, one after another; `update` sets their addresses.

    `say` sends a message to the controller.
    """

    def __init__(
        self, job: int, rank: int, credentials: Credentials | None, say: Callable[..., Awaitable[None]]
    ) -> None:
        self._job, self._rank, self._credentials, self._say = job, rank, credentials, say
        self._addresses: dict[int, str] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}

    def update(self, addresses: Mapping[int, str]) -> None:
        """Set the addresses of all attached workers, by rank."""
        self._addresses = {rank: address for rank, address in sorted(addresses.items()) if rank != self._rank}

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        """Yield each peer's results of iterations first..last as one list; `everyone`: retry unreachable peers."""
        request = kofn_pb2.ResultRange(job=self._job, first_iteration=first, last_iteration=last)
        for rank in list(self._addresses):
            results = await self._ask(rank, lambda stub: _results(stub, request), INSIST if everyone else 1)
            if results is not None:
                yield results

    async def follow(self, rank: int, first: int) -> AsyncGenerator[list[Result], None]:
        """Yield a peer's results from iteration `first` on, as the peer gets them; end when the peer does not answer,
        or sends nothing for FETCH_TIMEOUT_S."""
        if (address := self._addresses.get(rank)) is None:
            return
        request = kofn_pb2.FollowRequest(job=self._job, first_iteration=first)
        call = self._stub(rank, address).FollowResults(request)
        try:
            while True:
                async with asyncio.timeout(FETCH_TIMEOUT_S):
                    message = await call.read()
                if not isinstance(message, kofn_pb2.BlockResults):
                    return
                yield [_from_message(result) for result in message.results]
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            log.warning("worker %d at %s, whose results this worker takes: %s", rank, address, _reason(error))
        finally:
            call.cancel()

    async def state(self) -> ReplicaState | None:
        """Return the replica of the first peer that sends one; None if no peer does."""
        for rank in list(self._addresses):
            state = await self._ask(rank, lambda stub: _state(stub, kofn_pb2.StateRequest(job=self._job)), 1)
            if state is not None:
                log.info("took the parameters of worker %d after iteration %d", rank, state.iteration)
                return state
        return None

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        """Tell the controller that a damaged packet has occupied this block's slot, as PeerSource.report_ahead()."""
        ahead = kofn_pb2.SlotAhead(generation=generation, iteration=block.iteration, block=block.block)
        await self._say(slot_ahead=ahead)

    async def close(self) -> None:
        for opened in self._channels.values():
            await opened.close()

    async def _ask(self, rank: int, question: Callable[[Stub], Awaitable[Answer]], attempts: int) -> Answer | None:
        """Return a peer's answer; None if the peer gives no answer or has left."""
        for attempt in range(attempts):
            if (address := self._addresses.get(rank)) is None:
                return None
            try:
                async with asyncio.timeout(FETCH_TIMEOUT_S):
                    return await question(self._stub(rank, address))
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                log.warning("worker %d at %s: %s", rank, address, _reason(error))
            if attempt + 1 < attempts:
                await asyncio.sleep(INSIST_PAUSE_S)
        return None

    def _stub(self, rank: int, address: str) -> Stub:
        """Return the stub of a peer; a peer that rejoins has a new address, and gets a new channel."""
        if address not in self._channels:
            self._channels[address] = channel(self._credentials, address, worker_name(self._job, rank))
        return kofn_pb2_grpc.PeerStub(self._channels[address])


async def _results(stub: Stub, request: kofn_pb2.ResultRange) -> list[Result]:
    """Return the results of the range that one peer holds."""
    return [_from_message(message) async for message in stub.FetchResults(request)]


async def _state(stub: Stub, request: kofn_pb2.StateRequest) -> ReplicaState:
    iteration, parts = 0, defaultdict[str, bytes](bytes)
    async for part in stub.FetchState(request):
        iteration = part.iteration
        parts[part.array] += part.data
    return from_parts(iteration, parts)


def _reason(error: Exception) -> str:
    """Return the reason of a missing answer in one line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"no answer in {FETCH_TIMEOUT_S:.0f} s"


def _to_message(result: Result) -> kofn_pb2.BlockResult:
    return kofn_pb2.BlockResult(
        iteration=result.id.iteration,
        block=result.id.block,
        scale=result.scale,
        lanes=result.lanes,
        k=result.k,
        count=result.count,
        weight=result.weight,
        members=result.members.to_bytes(RACKS_MAX * MEMBERS_BYTES, "little").rstrip(b"\0"),
        values=result.values,
    )


def _from_message(message: kofn_pb2.BlockResult) -> Result:
    return Result(
        id=BlockId(message.iteration, message.block),
        scale=message.scale,
        lanes=message.lanes,
        k=message.k,
        count=message.count,
        weight=message.weight,
        members=int.from_bytes(message.members, "little"),
        values=message.values,
    )
