"""A gradient that is reduced while it is computed."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from kofn_host.arrays import Floats
from kofn_host.collectives.work import Work, WorkOutcome
from kofn_host.compression.pieces import Pieces
from kofn_host.errors import CollectiveError, GradientError


class StreamedGradient(ABC):
    """The mean of all workers' float32 gradients, which are given in pieces; Communicator.begin() creates it.

        gradient = communicator.begin(1_000_000)
        for begin, layer in backward():
            gradient.put(begin, layer)
        step(gradient.wait(0, 1_000_000))

    Pieces may be put in any order, by any thread; every element is put once.  Any number of gradients may be begun; a
    gradient is reduced once the earlier gradients are done.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def put(self, begin: int, values: Floats) -> None:
        """Copy elements, float32 of any shape, to `begin`.

        CollectiveError, without effect, if an element is not finite, is outside of the gradient, or was put before;
        also if the gradient's work has failed.
        """
        with collective():
            self._pieces.put(begin, values)

    def priority(self, begin: int, end: int, level: int) -> None:
        """Set the level of elements; unsent elements of a higher level leave first.  Levels are initially 0."""
        with collective():
            self._pieces.prioritise(begin, end, level)

    @abstractmethod
    def wait(self, begin: int, end: int, timeout: float | None = None) -> Floats:
        """Wait for the mean of these elements, (end - begin,); errors as in Work.result()."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> WorkOutcome[Floats]:
        """Wait for the whole mean, as Work.wait() does.  CollectiveError if no piece is put for too long."""


class PieceByPiece(StreamedGradient):
    """A gradient with one call per piece: all workers must put the same pieces; priorities have no effect."""

    def __init__(self, elements: int, reduce: Callable[[Floats, str], Work[Floats]], limit_s: float) -> None:
        """Begin without pieces.

        `reduce` begins an in-place all-reduce of a piece under a name; `limit_s`: the longest time without a piece.
        """
        super().__init__(Pieces(np.zeros(elements, np.float32), elements))
        self._reduce, self._limit_s = reduce, limit_s
        self._changed = threading.Condition()
        self._works: dict[tuple[int, int], Work[Floats]] = {}
        self._failed = ""

    def fail(self, reason: str) -> None:
        """Raise this error in calls that wait for pieces: no piece can be put any more."""
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
        sent, received = (
            sum(getattr(outcome, name) for outcome in outcomes) for name in ("sent_bytes", "received_bytes")
        )
        return replace(outcomes[-1], value=mean, sent_bytes=sent, received_bytes=received)

    def _calls_of(self, begin: int, end: int, deadline: float | None) -> list[Work[Floats]]:
        """Wait until these elements were put; return the calls of their pieces."""
        with self._changed:
            while True:
                made = [(edges, work) for edges, work in self._works.items() if edges[0] < end and begin < edges[1]]
                if sum(min(end, last) - max(begin, first) for (first, last), _ in made) == end - begin:
                    return [work for _, work in made]
                if self._failed:
                    raise CollectiveError(self._failed)
                self._changed.wait(self._left_s(deadline))

    def _left_s(self, deadline: float | None) -> float:
        """Return the time left for the next piece; TimeoutError or CollectiveError if no time is left."""
        now, give_up_s = time.monotonic(), self._pieces.put_s + self._limit_s
        if deadline is not None and now >= deadline:
            raise TimeoutError(f"the mean is incomplete: {self._pieces.described}")
        if now >= give_up_s:
            raise CollectiveError(self._pieces.awaited(self._limit_s))
        return min(give_up_s, give_up_s if deadline is None else deadline) - now


@contextmanager
def collective() -> Iterator[None]:
    """Turn a piece's GradientError into a CollectiveError."""
    try:
        yield
    except GradientError as error:
        raise CollectiveError(str(error)) from error
