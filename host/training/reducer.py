"""What a worker needs of whoever reduces its gradients, to train with it and to be a member of its job.

`Agent` is one: a switch or a parameter server makes its sums. `PeerToPeer` is the other: the workers sum among
themselves.
"""

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from kofn.config.late_rules import LatePolicy, LateRule
from kofn.host.agent.exchange import Contribution, Exchange, Update
from kofn.host.agent.peer_source import PeerSource
from kofn.host.compression.ledger_accounts import LedgerTotals
from kofn.host.errors import HostError
from kofn.host.protocol.results import Result
from kofn.host.workload.replica import ReplicaState
from kofn.results.account import Account
from kofn.results.memory import Memory


class Reducer(Protocol):
    """One worker's place in the iterations of a job.

    The training thread calls what says so; everything else is the event loop's that it lives on.
    """

    decision: int
    """Number of the last Decision of the controller that this worker has heard."""

    @property
    def rule(self) -> LateRule:
        """What becomes of gradients that are late."""

    @property
    def iteration(self) -> int:
        """The one that the training thread works on."""

    @property
    def generation(self) -> int:
        """Of the switch's slots, as far as this worker has heard."""

    # -- for the training thread

    @property
    def over(self) -> threading.Event:
        """Set while the iteration that the training thread works on is over elsewhere."""

    @property
    def entered(self) -> bool:
        """Whether the current iteration's gradient was given already, before a restart."""

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
        """Give a gradient to the current iteration, and wait for its end where the gradient counts.

        Where it is late, `missed` first hears what has ended; where it returns False the gradient is not contributed.
        """

    def catch_up(self) -> list[Update]:
        """Everything that the others have finished before this worker came."""

    def skip(self) -> list[Update]:
        """Contribute nothing to the current iteration; returns what has ended."""

    def link_wait_s(self) -> float | None:
        """Return how long a gradient's last packet waited in this worker's link; None where nothing new is known."""

    # -- for the management network

    async def join_first(self, iteration: int, generation: int, peer_source: PeerSource) -> None:
        """The job begins with this iteration."""

    async def join_running(
        self, generation: int, peer_source: PeerSource, ask: Callable[[], Awaitable[ReplicaState]]
    ) -> ReplicaState:
        """The job runs already: go on from a peer's replica, which `ask` gets; returns that."""

    def held(self, first: int, last: int) -> Iterable[Result]:
        """What this worker has of iterations first..last, for its peers."""

    def regroup(self, generation: int) -> None:
        """The switch has lost the job's slots: send nothing until resume()."""

    async def resume(self, generation: int) -> None:
        """Everyone has regrouped."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Treat late gradients so from now on."""

    def fail(self, error: HostError) -> None:
        """This worker cannot go on: the training thread is told."""

    async def close(self) -> None:
        """Give everything back."""

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """What it has done, as results.worker_metrics.Totals names it."""

    @property
    def memory(self) -> Memory:
        """Of what is left of gradients."""

    def totals(self) -> LedgerTotals | None:
        """What became of all gradients; None where nothing can be left over."""

    def account(self) -> Account | None:
        """The same by their weight; None likewise."""
