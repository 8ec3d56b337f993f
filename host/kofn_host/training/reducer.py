"""The interface between a worker's training and membership, and the reduction of its gradients.

`Agent` implements this interface for sums by a switch or a parameter server, `PeerToPeer` for sums among the workers.
"""

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kofn_common.config.late_rules import LatePolicy, LateRule
from kofn_common.results.account import Account
from kofn_common.results.memory import Memory
from kofn_common.rpc import kofn_pb2
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.agent.following import Follow, Follower
from kofn_host.agent.peer_source import PeerSource
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.engine.link_pacing import LinkReport
from kofn_host.errors import HostError
from kofn_host.protocol.results import Result
from kofn_host.workload.replica import ReplicaState


class ReducerLink(Protocol):
    """A worker's link to the switch."""

    follows: bool
    """Whether this worker can get results from a peer in place of the switch."""

    def heard(self, link: kofn_pb2.Link, follow: Follow) -> None:
        """Take what the controller has found out about this worker's link; `follow` yields a peer's results."""

    def report(self) -> LinkReport | None:
        """Return how long a gradient's last packet waits in the link; None without a new measurement."""

    def fresh(self, follower: Follower) -> Iterable[Result]:
        """Return the results of this worker that a follower has not got."""


class Reducer(Protocol):
    """One worker's place in the iterations of a job.

    The training thread calls the methods under "for the training thread"; the event loop calls the others.
    """

    decision: int
    """Number of the last Decision of the controller that this worker has heard."""

    @property
    def link(self) -> ReducerLink:
        """The worker's link to the switch."""

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of this worker's gradients; None if no gradient can stay pending."""

    @property
    def rule(self) -> LateRule:
        """The rule for late gradients."""

    @property
    def iteration(self) -> int:
        """The iteration that the training thread works on."""

    @property
    def generation(self) -> int:
        """The generation of the switch's slots that this worker last heard of."""

    # -- for the training thread

    @property
    def over(self) -> threading.Event:
        """Set while the iteration that the training thread works on is over elsewhere."""

    @property
    def entered(self) -> bool:
        """Whether the current iteration's gradient was contributed before a restart."""

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
        """Contribute a gradient to the current iteration; if it counts among the k, wait for the iteration's end.

        If the gradient is late, `missed` first gets the ended iterations; if `missed` returns False, nothing is
        contributed.
        """

    def catch_up(self) -> list[Update]:
        """Return the updates that the others finished before this worker joined."""

    def skip(self) -> list[Update]:
        """Contribute nothing to the current iteration; return the updates up to its end."""

    # -- for the management network

    async def join_first(
        self, iteration: int, generation: int, peer_source: PeerSource, state: ReplicaState | None = None
    ) -> None:
        """Begin a job with this iteration; `state`: the replica before this iteration, None: the initial replica."""

    async def join_running(
        self, generation: int, peer_source: PeerSource, ask: Callable[[], Awaitable[ReplicaState]]
    ) -> ReplicaState:
        """Join a running job from a peer's replica, which `ask` fetches; return the replica."""

    def held(self, first: int, last: int) -> Iterable[Result]:
        """Return the results of iterations first..last that this worker holds for its peers."""

    def regroup(self, generation: int) -> None:
        """Send nothing until resume(): the switch has lost the job's slots."""

    async def resume(self, generation: int) -> None:
        """Continue: all workers have regrouped."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Apply this policy to late gradients from now on."""

    def fail(self, error: HostError) -> None:
        """Raise this error in the training thread: the worker cannot continue."""

    async def close(self) -> None:
        """Release all resources."""

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """Return the counters that results.worker_metrics.Totals names."""

    @property
    def memory(self) -> Memory:
        """The memory of pending gradients."""

    def totals(self) -> LedgerTotals | None:
        """Return the ledger's totals over all gradients; None if no gradient can stay pending."""

    def account(self) -> Account | None:
        """Return the account of all gradients by weight; None if no gradient can stay pending."""
