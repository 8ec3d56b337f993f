"""Fetching from peers: results that this worker has missed, and which of its contributions were counted."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from kofn_common.wire import packet as wire
from kofn_host.agent.following import Follow
from kofn_host.agent.peer_source import PeerSource
from kofn_host.compression.ledger import Ledger
from kofn_host.engine.engine import EnginePort
from kofn_host.errors import AgentError
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import AskPeers
from kofn_host.protocol.results import Result
from kofn_host.workload.replica import ReplicaState

KEEP_BYTES = 64 << 20
"""Memory for results that peers may still ask for."""

FETCH_BYTES = 4 << 20
"""The most bytes of later iterations' results that are fetched together with a missed iteration."""

FOLLOW_AGAIN_S = 0.5
"""The time after which a worker follows a peer again that was silent."""

LAST_ITERATION = 2**32 - 1


class Receiver(Protocol):
    """The part of a worker that handles the fetched results."""

    def take_results(self, results: list[Result]) -> None:
        """Handle results from peers."""

    def follow(self, follows: bool) -> None:
        """Expect results from a peer, or from the switch again."""

    def halt(self) -> None:
        """Stop all use of the ledger: it is about to be settled."""

    def jump(self, state: ReplicaState) -> None:
        """Continue from a peer's replica: no worker holds the results of the current iteration any more."""

    def fail(self, error: Exception) -> None:
        """Handle an error: there will be no results."""


class MissedResults:
    """Fetches the results that `protocol` misses, for `receiver`.

    `private`: each block's sum goes to one worker only, so no peer has a missing sum.
    """

    source: PeerSource

    def __init__(self, protocol: EnginePort, ledger: Ledger, receiver: Receiver, *, private: bool) -> None:
        self._protocol, self._ledger, self._receiver, self._private = protocol, ledger, receiver, private
        self._fetching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    def ask(self, asked: Sequence[AskPeers]) -> None:
        """Fetch the current iteration's results, unless a fetch is under way.

        If a block's slot has a later block and no worker has the block's result, a damaged packet has occupied the
        slot. The worker then reports the slot to the controller, and the controller begins a new generation.
        """
        if self._private:
            self.lose("their slots hold later blocks")
        elif self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(asked))

    async def take_all(self) -> None:
        """Take all results that peers have from the current iteration on: the switch will not sum the blocks again."""
        async for results in self.source.fetch(self._protocol.iteration, LAST_ITERATION, everyone=True):
            self._receiver.take_results(results)

    def follow(self, peer: int | None, follow: Follow) -> None:
        """Take the results of this peer as it gets them, because the switch sends this worker none; None: it does."""
        if self._following is not None:
            self._following.cancel()
        self._following = None if peer is None else asyncio.get_running_loop().create_task(self._follow(peer, follow))
        if peer is None:
            self._receiver.follow(False)

    async def _follow(self, peer: int, follow: Follow) -> None:
        """Follow a peer until cancelled. While the peer is silent, or lacks values of the current iteration, ask the
        switch for the open blocks."""
        while True:
            async with aclosing(follow(peer, iteration := self._protocol.iteration)) as stream:
                async for results in stream:
                    self._receiver.follow(True)
                    self._receiver.take_results(results)
                    if any(result.id.iteration == iteration and not result.values for result in results):
                        break
            self._receiver.follow(False)
            await asyncio.sleep(FOLLOW_AGAIN_S)

    def lose(self, why: str) -> None:
        """Fail if each sum goes to one worker only: peers cannot replace the lost sums."""
        if self._private:
            error = (
                f"worker {self._protocol.rank} lacks sums of iteration {self._protocol.iteration}, blocks"
                f" {self._protocol.missing[:8]}: {why}, and no peer holds a sum that goes to one worker"
            )
            self._receiver.fail(AgentError(error))

    def close(self) -> None:
        """Stop fetching."""
        for task in filter(None, (self._fetching, self._following)):
            task.cancel()

    async def _fetch(self, asked: Sequence[AskPeers]) -> None:
        """Fetch until the current iteration is complete; peers also send results of some later iterations."""
        protocol, gone = self._protocol, False
        iteration = protocol.iteration
        last = iteration + FETCH_BYTES // iteration_bytes(protocol.layout)
        protocol.statistics.peer_fetches += 1
        async for results in self.source.fetch(iteration, last):
            gone = gone or any(result.id.iteration == iteration and not result.values for result in results)
            self._receiver.take_results(results)
            if protocol.iteration != iteration or not protocol.missing:
                return
        if gone:
            try:
                await self._resync(iteration)
            except Exception as error:  # reported to the training thread
                self._receiver.fail(error)
            return
        for ask in asked:
            missing = ask.id.iteration == protocol.iteration and ask.id.block in protocol.missing
            if missing and ask.stale_in == protocol.generation:
                await self.source.report_ahead(ask.id, ask.stale_in)  # one report begins a generation, for all blocks
                return

    async def _resync(self, iteration: int) -> None:
        """Take a whole replica and settle the ledger: no worker holds this iteration's sums any more."""
        state = await self.source.state()
        if state is None or state.iteration < iteration:
            return  # the timer asks again
        self._receiver.halt()
        await settle(self._ledger, iteration, self.source)
        if iteration != self._protocol.iteration or not self._protocol.missing:
            return  # the iteration's results have arrived meanwhile
        self._protocol.statistics.resyncs += 1
        self._receiver.jump(state)


async def settle(ledger: Ledger, iteration: int, source: PeerSource) -> None:
    """Learn from peers which of an iteration's blocks were counted; AgentError if no worker knows."""
    if ledger.sent.unsettled(iteration):
        async for results in source.fetch(iteration, iteration):
            for result in results:
                ledger.settle_results(result)
    check_settled(ledger, iteration)


async def settle_restarted(ledger: Ledger, source: PeerSource, *, over: bool) -> None:
    """Settle the ledger's last two iterations, from before this worker died; `over`: the later one has ended."""
    begun = ledger.begun
    if begun:
        async for results in source.fetch(begun - 1, begun):
            for result in results:
                ledger.settle_results(result)
                ledger.reconcile(result)
    if over:
        check_settled(ledger, begun)


def check_settled(ledger: Ledger, iteration: int) -> None:
    """Raise AgentError if it is unknown whether a block of this ended iteration was counted."""
    if unknown := ledger.sent.unsettled(iteration):
        raise AgentError(
            f"no worker knows whether blocks {unknown[:8]} of iteration {iteration}, which this worker has sent, were"
            " counted: it cannot continue without losing or repeating gradients"
        )


def iteration_bytes(layout: BlockLayout) -> int:
    """Return the size of an iteration's results in the widest lanes."""
    return layout.blocks * layout.words * wire.WORD_BYTES


def kept_iterations(layout: BlockLayout) -> int:
    """Return the number of iterations whose results a worker keeps for its peers."""
    return max(1, KEEP_BYTES // iteration_bytes(layout))
