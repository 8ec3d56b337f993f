"""What a worker wants of the others: results that it has missed, and to know what of its own was counted."""

from collections.abc import AsyncIterator
from typing import Protocol

from kofn.host.protocol.results import Result
from kofn.host.workload.replica import ReplicaState


class PeerSource(Protocol):
    """The other workers, as sources of what this one has missed."""

    def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        """What each one holds of iterations first..last, one by one; `everyone`: insist where one is hard to reach."""

    async def state(self) -> ReplicaState | None:
        """The replica of one of them; None when nobody has any."""
