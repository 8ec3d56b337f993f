"""A search that all workers run together, as part of a replica's state; it restarts when iteration times change."""

from collections.abc import Callable, Collection

import numpy as np

from kofn_host.arrays import Integers
from kofn_host.compression.side_values import SideValues
from kofn_host.schedule.families import PassSchedule
from kofn_host.schedule.search import MICRO, Heard, Measured, Search

WATCHED = 64
"""The number of iterations after a search: their median time decides whether the search's result still holds."""

CHANGED = 1.4
"""The largest factor by which the median time of the watched iterations may differ from the time that the search has
found."""

_COUNT, _WATCHED, _K, _BEGUN = range(4)


class AgreedSearch:
    """A search that `new` creates; its state `heard`, int64, changes in place.

    Row 0: iterations heard, iterations watched, k at the end of the search, number of restarts.  Then one row per heard
    iteration, then one row for each of the last WATCHED watched iterations.
    """

    def __init__(self, new: Callable[[], Search]) -> None:
        self._new = new
        self._search = new()
        self._begun = 0
        self.heard: Integers = np.zeros((1 + self._search.most + WATCHED, len(Heard._fields)), np.int64)

    @property
    def search(self) -> Search:
        """The search in its current state; the search is replayed if another replica's state has replaced `heard`."""
        count, begun = int(self.heard[0, _COUNT]), int(self.heard[0, _BEGUN])
        if self._search.heard != count or self._begun != begun:
            self._search, self._begun = self._new(), begun
            for row in self.heard[1 : count + 1].tolist():
                self._search.hear(Heard(*row))
        return self._search

    @property
    def schedule(self) -> PassSchedule:
        """The schedule of the next iteration."""
        return self.search.schedule

    def said(self, measured: Measured) -> SideValues:
        return self.search.said(measured)

    def hear(self, said: Collection[SideValues], k: int) -> None:
        """Take the side values of an iteration's members, and its k."""
        search = self.search
        if not said:
            return
        heard = Heard.of(said)
        if search.done:
            self._watch(search, heard, k)
            return
        search.hear(heard)
        self.heard[0, _COUNT] = search.heard
        self.heard[search.heard] = heard
        self.heard[0, _K] = k

    def _watch(self, search: Search, heard: Heard, k: int) -> None:
        """Restart if iterations now take much more or less time, or if all of them had another k than the search."""
        if not heard.largest or search.found_s is None:
            return
        watched, last = int(self.heard[0, _WATCHED]), self.heard[1 + search.most :]
        last[watched % WATCHED, :2] = heard.largest, k
        self.heard[0, _WATCHED] = watched + 1
        if watched + 1 < WATCHED:
            return
        times = float(np.median(last[:, 0])) / MICRO / search.found_s
        others = (last[:, 1] != self.heard[0, _K]).all() and (last[:, 1] == k).all()
        if others or not 1 / CHANGED <= times <= CHANGED:
            self._restart()

    def _restart(self) -> None:
        begun = self.heard[0, _BEGUN] + 1
        self.heard[:] = 0
        self.heard[0, _BEGUN] = begun
