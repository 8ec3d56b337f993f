"""The interface for fetching results and replicas from other workers, and for reporting an occupied slot."""

from collections.abc import AsyncIterator
from typing import Protocol

from kofn_host.protocol.results import BlockId, Result
from kofn_host.workload.replica import ReplicaState


class PeerSource(Protocol):
    """The other workers, from which this one fetches."""

    def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        """Yield each peer's results of iterations first..last; `everyone`: ask unreachable peers again."""

    async def state(self) -> ReplicaState | None:
        """Return a peer's replica; None if no peer has one."""

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        """Tell the controller that a damaged packet has occupied this block's slot.

        The slot has a later block of this generation, and no worker has this block's result.
        """
