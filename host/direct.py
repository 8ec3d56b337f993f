"""Training by a collective of the workers alone, which needs every one of them in every iteration.

Nothing comes late and nothing is left over, so there are no books, and nobody has results that another may miss.  Who
is gone takes the job with it.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable

import numpy as np

from host.account import Account
from host.aggregate import Aggregate
from host.collective import Collective, Floats, Reduced, Times
from host.errors import AgentError, HostError
from host.history import Result
from host.holders import Holders
from host.plan import Plan
from host.replica import State
from host.residual import Books
from run.late import RULES, Treatment


class Direct:
    """A Reducer by the Collective that `connect` makes when all workers are there; `plan`: of a job that sends all."""

    def __init__(self, connect: Callable[[], Collective], plan: Plan) -> None:
        self.decision, self.rule = 0, RULES["merge"]
        self.iteration = self.generation = 0
        self.entered, self.age = False, 0
        self.over = threading.Event()
        """Never set."""
        self.times = Times()
        self._connect, self._plan = connect, plan
        self._collective: Collective | None = None
        self._failure: HostError | None = None
        self._bytes = {"bytes_sent": 0, "bytes_received": 0}

    def all_reduce(
        self,
        gradient: Floats | None,
        *,
        begun: int | None = None,
        batch: int = 0,
        stay: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> tuple[float | None, list[Aggregate | State]]:
        """As Reducer, but `meanwhile` is called before; CollectiveError says who is gone."""
        assert self._collective is not None
        assert gradient is not None
        meanwhile()
        handed_s = time.monotonic()
        reduced = self._collective.all_reduce([gradient], progress=self._heed)
        self.times = reduced.times
        self._bytes["bytes_sent"] += reduced.sent_bytes
        self._bytes["bytes_received"] += reduced.received_bytes
        done = self._aggregate(reduced)
        self.iteration += 1
        return handed_s, [done]

    def catch_up(self) -> list[Aggregate | State]:
        """Nobody is ever ahead."""
        return []

    def skip(self) -> list[Aggregate | State]:
        """Nothing can go on without this worker."""
        raise AgentError(f"iteration {self.iteration} needs every worker: none can leave it out")

    async def join_first(self, iteration: int, generation: int, holders: Holders) -> None:
        """All come together now."""
        self.iteration, self.generation = iteration, generation
        self._collective = await asyncio.to_thread(self._connect)

    async def join_running(self, generation: int, holders: Holders, ask: Callable[[], Awaitable[State]]) -> State:
        """Refused."""
        raise AgentError("the job runs already: its collective needs every worker from the beginning to the end")

    def held(self, first: int, last: int) -> Iterable[Result]:
        """Nothing."""
        return ()

    def regroup(self, generation: int) -> None:
        """The slots are nothing to this job."""
        self.generation = generation

    async def resume(self, generation: int) -> None:
        """It has never stopped."""

    def treat(self, treatment: Treatment) -> None:
        """Nothing is ever late."""

    def fail(self, error: HostError) -> None:
        """As Reducer; heard in mid-call where the collective tells of its progress."""
        self._failure = error

    async def close(self) -> None:
        """As Reducer."""
        if self._collective is not None:
            await asyncio.to_thread(self._collective.close)

    def statistics(self) -> dict[str, int]:
        """Payload of the collective's connections."""
        return dict(self._bytes)

    def books(self) -> Books | None:
        """None."""
        return None

    def account(self) -> Account | None:
        """None."""
        return None

    def _heed(self, share: float) -> None:
        """Raise what fail() was told."""
        if self._failure is not None:
            raise self._failure

    def _aggregate(self, reduced: Reduced) -> Aggregate:
        """Everyone's gradient is in it, once."""
        count = reduced.count
        return Aggregate(
            iteration=self.iteration,
            mean=reduced.arrays[0],
            total=np.zeros(0, np.int64),
            k=count,
            ks=(count, count),
            count=count,
            members=list(range(count)),
            missed=0,
            gradients=count,
            contributors=count,
            least=count,
            notes={},
            plan=self._plan,
            encoding=None,
        )
