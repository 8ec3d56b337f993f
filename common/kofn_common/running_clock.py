"""A clock by which this process measures how long other processes have been silent. The clock stands still while this
process does not run (SIGSTOP, a paused machine)."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TICK_S = 1.0


class RunningClock:
    """A monotonic clock in seconds, read by calling it. A running process reads the clock at least every `most_s`
    seconds; if two readings are further apart, the process did not run, and only `most_s` of the interval counts. Any
    thread may read it.

    >>> readings = iter([0.0, 1.0, 76.0, 76.5])
    >>> clock = RunningClock(2.0, lambda: next(readings))
    >>> [clock() for _ in range(3)]
    [1.0, 3.0, 3.5]
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_s, self._clock = most_s, clock
        self._read_s = self._clock()
        self._stood_s = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            now_s = self._clock()
            self._stood_s += max(0.0, now_s - self._read_s - self._most_s)
            self._read_s = now_s
            return now_s - self._stood_s


@asynccontextmanager
async def running_timeout(limit_s: float) -> AsyncIterator[None]:
    """Raise TimeoutError after `limit_s`, as asyncio.timeout() does, but measured by a RunningClock."""
    clock = RunningClock(2 * TICK_S, asyncio.get_running_loop().time)
    end_s = clock() + limit_s
    async with asyncio.timeout(None) as timeout:

        async def watch() -> None:
            while (left_s := end_s - clock()) > 0:
                await asyncio.sleep(min(TICK_S, left_s))
            timeout.reschedule(0.0)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
