"""A collective call under way, and its outcome."""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kofn_host.collectives.call import Array
from kofn_host.stopwatch import Times

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOutcome(Generic[T]):
    """The outcome of a call.

    `value`: the call's array, None for a barrier.  `count`: the number of workers whose values are in the array: the
    least number over all blocks. `sent_bytes`, `received_bytes`: UDP or TCP payload.  `counts`: the packets of a
    protocol, by names of results.worker_metrics.Totals.

    `skipped`: for elastic calls, the means of later calls that the others have finished without this worker, in order.
    This worker's next call joins the call after the last of these.
    """

    value: T
    count: int
    times: Times = field(default_factory=Times)
    sent_bytes: int = 0
    received_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: Sequence[Array] = ()


class Work(Future[T]):
    """A call under way: a Future of its array (None for a barrier) without cancellation; `await` it in asyncio.

    result() and exception() take a limit in seconds.  After that time they raise TimeoutError, and the call continues.
    Without a limit they return too, because every call ends or fails.  Callbacks run in the communicator's threads: a
    callback may make calls, but must not wait for them.
    """

    def __init__(self, call: str) -> None:
        super().__init__()
        self._call = call
        self._outcome: WorkOutcome[T] | None = None
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{self._call} is not done after {timeout:g} s") from error

    def wait(self, timeout: float | None = None) -> WorkOutcome[T]:
        """Wait as result() does; return the array with count, times and bytes."""
        self.result(timeout)
        assert self._outcome is not None
        return self._outcome

    def finish(self, outcome: WorkOutcome[T]) -> None:
        """Finish the call; only the communicator calls this."""
        self._outcome = outcome
        self.set_result(outcome.value)

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()
