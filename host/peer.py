"""Worker to worker: results that the switch has forgotten, over gRPC on the management network."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

import grpc

from host.protocol import BlockId, Result
from rpc import kofn_pb2, kofn_pb2_grpc

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 5.0

HeldResults = Callable[[int, int], Iterable[Result]]
"""Protocol.results: what this worker holds of iterations first..last."""


class PeerService(kofn_pb2_grpc.PeerServicer):
    """Serves what this worker still holds."""

    def __init__(self, job: int, held: HeldResults) -> None:
        self._job = job
        self._held = held

    async def FetchResults(  # noqa: N802  # the name is the service's
        self,
        request: kofn_pb2.ResultRange,
        context: "grpc.aio.ServicerContext[kofn_pb2.ResultRange, kofn_pb2.BlockResult]",
    ) -> AsyncIterator[kofn_pb2.BlockResult]:
        """Every result of the range, in order."""
        if request.job != self._job:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"job {request.job}: job {self._job} is served here")
        for result in list(self._held(request.first_iteration, request.last_iteration)):
            yield _to_message(result)


class Peers:
    """Asks the other workers, one after another."""

    def __init__(self, job: int, addresses: Mapping[int, str]) -> None:
        self._job = job
        self._addresses = dict(addresses)

    async def fetch(self, iteration: int) -> AsyncIterator[list[Result]]:
        """What each peer holds of an iteration, a list a peer; stop when you have what you want."""
        request = kofn_pb2.ResultRange(job=self._job, first_iteration=iteration, last_iteration=iteration)
        for rank, address in self._addresses.items():
            try:
                results = await asyncio.wait_for(self._fetch_from(address, request), FETCH_TIMEOUT_S)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                log.warning("worker %d at %s gave no results: %s", rank, address, error)
                continue
            yield results

    async def _fetch_from(self, address: str, request: kofn_pb2.ResultRange) -> list[Result]:
        """Everything that one peer holds of the range."""
        async with grpc.aio.insecure_channel(address) as channel:
            call = kofn_pb2_grpc.PeerStub(channel).FetchResults(request)
            return [_from_message(message) async for message in call]


def _to_message(result: Result) -> kofn_pb2.BlockResult:
    """Result -> BlockResult."""
    return kofn_pb2.BlockResult(
        iteration=result.id.iteration,
        block=result.id.block,
        scale=result.scale,
        lanes=result.lanes,
        k=result.k,
        count=result.count,
        members=result.members,
        values=result.values,
    )


def _from_message(message: kofn_pb2.BlockResult) -> Result:
    """BlockResult -> Result."""
    return Result(
        id=BlockId(message.iteration, message.block),
        scale=message.scale,
        lanes=message.lanes,
        k=message.k,
        count=message.count,
        members=message.members,
        values=message.values,
    )
