"""A gradient that is reduced while it is computed."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.collectives.work import Work, WorkOutcome
from kofn.host.compression.pieces import Pieces
from kofn.host.errors import CollectiveError, GradientError


class StreamedGradient(ABC):
    """The mean of all workers' gradients, float32, each of which is given in pieces: Communicator.begin() makes it.

        gradient = communicator.begin(1_000_000)
        for begin, layer in backward():
            gradient.put(begin, layer)
        step(gradient.wait(0, 1_000_000))

    Pieces may come in any order, from any thread; each element once.  Any number of gradients may be begun; each takes
    part once those before it are done.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def put(self, begin: int, values: Floats) -> None:
        """Elements from `begin` on, float32 of any shape, which are copied.

        CollectiveError where they are not finite, are outside of the gradient or were put before: nothing has happened
        then; or why the gradient's work has failed.
        """
        with collective():
            self._pieces.put(begin, values)

    def priority(self, begin: int, end: int, level: int) -> None:
        """Of what has not left yet, that of a higher level leaves first; the level of everything is 0 at first."""
        with collective():
            self._pieces.prioritise(begin, end, level)

    @abstractmethod
    def wait(self, begin: int, end: int, timeout: float | None = None) -> Floats:
        """The mean of these elements, (end - begin,), once it is there; as Work.result()."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> WorkOutcome[Floats]:
        """The whole mean; as Work.wait().  CollectiveError where no piece comes for long."""


class PieceByPiece(StreamedGradient):
    """By a call for each piece, so that all workers must put the same ones; priorities change nothing."""

    def __init__(self, elements: int, reduce: Callable[[Floats, str], Work[Floats]], limit_s: float) -> None:
        """`reduce`: begin an all-reduce by this name, in place; `limit_s`: how long no piece may come."""
        super().__init__(Pieces(np.zeros(elements, np.float32), elements))
        self._reduce, self._limit_s = reduce, limit_s
        self._changed = threading.Condition()
        self._works: dict[tuple[int, int], Work[Floats]] = {}
        self._failed = ""

    def fail(self, reason: str) -> None:
        """No piece can be put any more: who waits for one is told why."""
        with self._changed:
            self._failed = reason
            self._changed.notify_all()

    def put(self, begin: int, values: Floats) -> None:
        super().put(begin, values)
        end = begin + values.size
        work = self._reduce(self._pieces.values[begin:end], f"{begin} to {end}")
        with self._changed:
            self._works[begin, end] = work
            self._changed.notify_all()

    def wait(self, begin: int, end: int, timeout: float | None = None) -> Floats:
        with collective():
            self._pieces.check_range(begin, end)
        deadline = None if timeout is None else time.monotonic() + timeout
        for work in self._calls_of(begin, end, deadline):
            work.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return self._pieces.values[begin:end]

    def result(self, timeout: float | None = None) -> WorkOutcome[Floats]:
        mean = self.wait(0, self._pieces.values.size, timeout)
        outcomes = [work.wait() for work in self._works.values()]
        sent, received = (sum(getattr(one, name) for one in outcomes) for name in ("sent_bytes", "received_bytes"))
        return replace(outcomes[-1], value=mean, sent_bytes=sent, received_bytes=received)

    def _calls_of(self, begin: int, end: int, deadline: float | None) -> list[Work[Floats]]:
        """Those of the pieces with these elements, once all were put."""
        with self._changed:
            while True:
                made = [(edges, work) for edges, work in self._works.items() if edges[0] < end and begin < edges[1]]
                if sum(min(end, last) - max(begin, first) for (first, last), _ in made) == end - begin:
                    return [work for _, work in made]
                if self._failed:
                    raise CollectiveError(self._failed)
                self._changed.wait(self._left_s(deadline))

    def _left_s(self, deadline: float | None) -> float:
        """For the next piece to come; TimeoutError or CollectiveError when that is over."""
        now, give_up_s = time.monotonic(), self._pieces.put_s + self._limit_s
        if deadline is not None and now >= deadline:
            raise TimeoutError(f"the mean is not there yet: {self._pieces.described}")
        if now >= give_up_s:
            raise CollectiveError(self._pieces.awaited(self._limit_s))
        return min(give_up_s, give_up_s if deadline is None else deadline) - now


@contextmanager
def collective() -> Iterator[None]:
    """What is wrong with a piece, as a communicator says it."""
    try:
        yield
    except GradientError as error:
        raise CollectiveError(str(error)) from error
