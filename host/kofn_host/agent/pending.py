"""The pending gradients of an agent between two iterations, for checkpoints that PyTorch or another caller writes.

Both functions are for the training thread while no gradient is under way.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from kofn_host.agent.agent import Agent
from kofn_host.arrays import Arrays, Fixed, Integers
from kofn_host.compression.summary_block import Magnitudes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pending:
    """Pending values in units of 2**-40 (blocks, elements), and the weight of the gradients in them (blocks,)."""

    values: Fixed
    weights: Integers


def pending_after(agent: Agent, iteration: int) -> Pending | None:
    """Return the gradients that were pending after an iteration.

    Return None if a later result is known already and no copy was kept (LedgerState.copy_every). With k = n no later
    result can be known. A kept copy is released.
    """
    state = agent.ledger.state

    def copy() -> Arrays | None:
        return state.copy() if state.settled <= iteration else None

    kept = state.take(iteration) or _on_loop(agent, copy)
    return None if kept is None else Pending(*state.pending(kept))


def enter_pending(agent: Agent, pending: Pending, expected: Magnitudes | None) -> None:
    """Add another run's pending gradients to an empty ledger; LedgerError if it is not empty.

    `expected`: the magnitudes that the other run expected in its next iteration, None if it expected none.
    """

    def enter() -> None:
        encoder = agent.encoder
        with agent.protocol.held():
            agent.ledger.state.enter(pending.values, pending.weights)
            if expected is not None:
                encoder.plan = replace(encoder.plan, expected=expected)
                encoder.begin(agent.iteration)

    _on_loop(agent, enter)


def _on_loop(agent: Agent, work: Callable[[], T]) -> T:
    """Do some work on the event loop, which alone changes the ledger."""

    async def run() -> T:
        return work()

    return asyncio.run_coroutine_threadsafe(run(), agent.loop).result()
