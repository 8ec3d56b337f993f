"""What a worker needs of whoever reduces its gradients, to train with it and to be a member of its job.

An Agent meets it, whose sums a switch or a parameter server makes; and Direct, for collectives of the workers alone.
"""

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from host.account import Account
from host.aggregate import Aggregate
from host.collective import Times
from host.errors import HostError
from host.history import Result
from host.holders import Holders
from host.model import Floats
from host.replica import State
from host.residual import Books
from run.late import Rule, Treatment


class Reducer(Protocol):
    """One worker's place in the iterations of a job.

    The training thread calls what says so; everything else is the event loop's that it lives on.
    """

    decision: int
    """Number of the last Decision of the controller that this worker has heard."""

    age: int
    """Of the gradient that was contributed last: the iterations that had ended by then since it was begun."""

    rule: Rule
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

    @property
    def times(self) -> Times:
        """Where the time of the latest all_reduce() has gone."""

    def all_reduce(
        self,
        gradient: Floats | None,
        *,
        begun: int | None = None,
        batch: int = 0,
        stay: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> tuple[float | None, list[Aggregate | State]]:
        """Give a gradient, shape (elements,), to the current iteration and wait for its end; None when it is `entered`.

        It is the worker's `batch`-th one of iteration `begun` (None: the current one); with `stay`, and where it does
        not count, nothing is waited for.  `meanwhile` is called once, by some thread, while the gradient is on its way.
        Returns when it was handed over (time.monotonic), and the aggregates of all iterations that have ended; a State
        replaces all before it.  None for the time: these have to be heard of first, nothing was given.
        """

    def catch_up(self) -> list[Aggregate | State]:
        """Everything that the others have finished before this worker came."""

    def skip(self) -> list[Aggregate | State]:
        """Contribute nothing to the current iteration; returns what all_reduce() does."""

    # -- for the management network

    async def join_first(self, iteration: int, generation: int, holders: Holders) -> None:
        """The job begins with this iteration."""

    async def join_running(self, generation: int, holders: Holders, ask: Callable[[], Awaitable[State]]) -> State:
        """The job runs already: go on from a peer's replica, which `ask` gets; returns that."""

    def held(self, first: int, last: int) -> Iterable[Result]:
        """What this worker has of iterations first..last, for its peers."""

    def regroup(self, generation: int) -> None:
        """The switch has lost the job's slots: send nothing until resume()."""

    async def resume(self, generation: int) -> None:
        """Everyone has regrouped."""

    def treat(self, treatment: Treatment) -> None:
        """Treat late gradients so from now on."""

    def fail(self, error: HostError) -> None:
        """This worker cannot go on: the training thread is told."""

    async def close(self) -> None:
        """Give everything back."""

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """What it has done, as run.metrics.Totals names it."""

    def books(self) -> Books | None:
        """What became of all gradients; None where nothing can be left over."""

    def account(self) -> Account | None:
        """The same by their weight; None likewise."""
