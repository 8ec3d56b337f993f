"""The results that a worker sends to a worker that follows it: each result once, soon after this worker has got it."""

from collections.abc import AsyncGenerator, Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from kofn_host.protocol.core import Protocol
from kofn_host.protocol.results import Result

FOLLOW_S = 4e-3
"""The time after which a follower gets the next results."""

Follow = Callable[[int, int], AsyncGenerator[list[Result], None]]
"""Yields a peer's results from an iteration on, as the peer gets them; ends when the peer is silent."""


class Follower:
    """Remembers which of a worker's results a follower has got, from iteration `first` on."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._sent: dict[int, NDArray[np.bool_]] = {}  # by iteration: whether each block's result was sent

    def fresh(self, protocol: Protocol) -> Iterable[Result]:
        """Return the results that the follower has not got."""
        found = list[Result]()
        iteration, current = self._first, protocol.iteration
        while (iteration := protocol.next_results(iteration)) >= 0:
            results = protocol.results_of(iteration)
            sent = self._sent.setdefault(iteration, np.zeros(protocol.layout.total, np.bool_))
            found += results[np.flatnonzero(~sent[results.blocks])]
            sent[results.blocks] = True
            if iteration < current:  # all its results are known
                del self._sent[iteration]
                self._first = iteration + 1
            iteration += 1
        return found
