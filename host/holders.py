"""What a worker wants of the others: results that it has missed, and to know what of its own was counted."""

from collections.abc import AsyncIterator
from typing import Protocol

from host.errors import AgentError
from host.history import Result
from host.replica import State
from host.residual import Residual


class Holders(Protocol):
    """The other workers, as sources of what this one has missed."""

    def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        """What each one holds of iterations first..last, one by one; `everyone`: insist where one is hard to reach."""

    async def state(self) -> State | None:
        """The replica of one of them; None when nobody has any."""


async def settle(residual: Residual, iteration: int, holders: Holders) -> None:
    """Learn from peers what of an iteration's blocks was counted; AgentError when nobody can tell."""
    if residual.unsettled(iteration):
        async for results in holders.fetch(iteration, iteration):
            for result in results:
                residual.settle(result)
    check_settled(residual, iteration)


def check_settled(residual: Residual, iteration: int) -> None:
    """AgentError when it is not known of a block of this iteration, which is over, whether it was counted."""
    if unknown := residual.unsettled(iteration):
        raise AgentError(
            f"no worker knows whether blocks {unknown[:8]} of iteration {iteration}, which this worker has sent, were"
            " counted: it cannot go on without losing or repeating gradients"
        )
