"""What a worker wants of the others: results that it has missed, and to know what of its own was counted."""

from collections.abc import AsyncIterator
from typing import Protocol

from kofn.host.compression.ledger import Ledger
from kofn.host.errors import AgentError
from kofn.host.protocol.results import Result
from kofn.host.workload.replica import ReplicaState


class PeerSource(Protocol):
    """The other workers, as sources of what this one has missed."""

    def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        """What each one holds of iterations first..last, one by one; `everyone`: insist where one is hard to reach."""

    async def state(self) -> ReplicaState | None:
        """The replica of one of them; None when nobody has any."""


async def settle(ledger: Ledger, iteration: int, peer_source: PeerSource) -> None:
    """Learn from peers what of an iteration's blocks was counted; AgentError when nobody can tell."""
    if ledger.unsettled(iteration):
        async for results in peer_source.fetch(iteration, iteration):
            for result in results:
                ledger.settle_results(result)
    check_settled(ledger, iteration)


def check_settled(ledger: Ledger, iteration: int) -> None:
    """AgentError when it is not known of a block of this iteration, which is over, whether it was counted."""
    if unknown := ledger.unsettled(iteration):
        raise AgentError(
            f"no worker knows whether blocks {unknown[:8]} of iteration {iteration}, which this worker has sent, were"
            " counted: it cannot go on without losing or repeating gradients"
        )
