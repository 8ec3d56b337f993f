"""Training through a communicator of the workers, which needs all workers in every iteration.

No gradient is late and no gradient stays pending, so there is no ledger, and no worker misses results.  If a worker is
lost, the job ends.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np

from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.results.account import Account
from kofn_common.results.memory import Memory
from kofn_common.rpc import kofn_pb2
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.agent.following import Follow, Follower
from kofn_host.agent.peer_source import PeerSource
from kofn_host.arrays import Floats
from kofn_host.collectives.communicator import Communicator
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.compression.plan import Plan
from kofn_host.engine.link_pacing import LinkReport
from kofn_host.errors import AgentError, GradientError, HostError
from kofn_host.kernels.kernel import kernel
from kofn_host.protocol.results import Result
from kofn_host.workload.replica import ReplicaState


class UnprobedLink:
    """The link of a worker whose collective waits for every worker."""

    follows = False

    def heard(self, link: kofn_pb2.Link, follow: Follow) -> None:
        """Do nothing: no packets are paced."""

    def report(self) -> LinkReport | None:
        return None

    def fresh(self, follower: Follower) -> Iterable[Result]:
        return ()


class PeerToPeer:
    """A Reducer that uses a Communicator, which `connect` makes once all workers have joined.

    `plan`: the plan of a job that sends all blocks.
    """

    def __init__(self, connect: Callable[[], Communicator], plan: Plan) -> None:
        self.decision, self.rule, self.ledger = 0, RULES["merge"], None
        self.iteration = self.generation = 0
        self.entered = False
        self.link = UnprobedLink()
        self.over = threading.Event()
        """Never set: no gradient is late."""
        self._connect, self._plan = connect, plan
        self._communicator: Communicator | None = None
        self._failure = Future[None]()
        self._counts = Counter({"bytes_sent": 0, "bytes_received": 0})

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
        """Average a gradient over all workers; CollectiveError names a lost worker."""
        assert self._communicator is not None
        gradient = given.gradient
        assert gradient is not None
        check_finite(gradient)
        handed_s = time.monotonic()
        work = self._communicator.all_reduce(gradient, op="mean")
        either: tuple[Future[Any], ...] = (work, self._failure)
        wait(either, return_when=FIRST_COMPLETED)
        if self._failure.done():
            self._failure.result()
        outcome = work.wait()
        self._counts.update(
            {"bytes_sent": outcome.sent_bytes, "bytes_received": outcome.received_bytes, **outcome.counts}
        )
        done = Aggregate.of_all(self.iteration, outcome.value, outcome.count, self._plan)
        self.iteration += 1
        return Exchange(handed_s=handed_s, ended=[done], times=outcome.times)

    def catch_up(self) -> list[Update]:
        return []

    def skip(self) -> list[Update]:
        """Raise AgentError: no iteration can end without this worker."""
        raise AgentError(f"iteration {self.iteration} needs every worker: none can skip it")

    async def join_first(
        self, iteration: int, generation: int, peer_source: PeerSource, state: ReplicaState | None = None
    ) -> None:
        self.iteration, self.generation = iteration, generation
        self._communicator = await asyncio.to_thread(self._connect)

    async def join_running(
        self, generation: int, peer_source: PeerSource, ask: Callable[[], Awaitable[ReplicaState]]
    ) -> ReplicaState:
        raise AgentError("the job runs already: its collective needs every worker from the beginning to the end")

    def held(self, first: int, last: int) -> Iterable[Result]:
        return ()

    def regroup(self, generation: int) -> None:
        """Note the generation; this job uses no slots."""
        self.generation = generation

    async def resume(self, generation: int) -> None:
        """Do nothing: the job was not stopped."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Do nothing: no gradient is late."""

    def fail(self, error: HostError) -> None:
        """Raise this error in the training thread, also during a call."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def close(self) -> None:
        if self._communicator is not None:
            await asyncio.to_thread(self._communicator.close)

    def statistics(self) -> dict[str, int]:
        """Return the payload bytes of all calls, and the number of their packets if the communicator counts packets."""
        return dict(self._counts)

    @property
    def memory(self) -> Memory:
        """Empty: no gradient stays pending."""
        return Memory()

    def totals(self) -> LedgerTotals | None:
        return None

    def account(self) -> Account | None:
        return None


def check_finite(gradient: Floats, first: int = 0, of: str = "") -> None:
    """Raise GradientError if an element is not finite: it would ruin all replicas.

    For the message, `first` is the first element's number and `of` names the gradient.
    """
    if (bad := kernel().first_bad(gradient, float(np.finfo(np.float32).max))) >= 0:
        raise GradientError(f"gradient element {first + bad}{of} must be finite, got {gradient[bad]}")
