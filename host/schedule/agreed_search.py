"""A search that all workers go through together, again where times change, and that is a part of a replica's state."""

from collections.abc import Callable, Collection

import numpy as np

from kofn.host.arrays import Integers
from kofn.host.compression.side_values import SideValues
from kofn.host.schedule.families import PassSchedule
from kofn.host.schedule.search import MICRO, Heard, Measured, Search

WATCHED = 64
"""Iterations, after it is done, that say together whether it is still right."""

CHANGED = 1.4
"""How many times longer or shorter their median may be than what the search has found."""

_COUNT, _WATCHED, _K, _BEGUN = range(4)


class AgreedSearch:
    """`new` makes it as it begins; `heard`, int64, changes in place: how many iterations were heard, how many were
    watched, k when it was done, and how often it was begun anew; then what was heard in each; then what was watched
    last.
    """

    def __init__(self, new: Callable[[], Search]) -> None:
        self._new = new
        self._search = new()
        self._begun = 0
        self.heard: Integers = np.zeros((1 + self._search.most + WATCHED, len(Heard._fields)), np.int64)

    @property
    def search(self) -> Search:
        """Where it is; another replica's `heard` may have come."""
        count, begun = int(self.heard[0, _COUNT]), int(self.heard[0, _BEGUN])
        if self._search.heard != count or self._begun != begun:
            self._search, self._begun = self._new(), begun
            for row in self.heard[1 : count + 1].tolist():
                self._search.hear(Heard(*row))
        return self._search

    @property
    def schedule(self) -> PassSchedule:
        """Of the iteration that comes."""
        return self.search.schedule

    def said(self, measured: Measured) -> SideValues:
        return self.search.said(measured)

    def hear(self, said: Collection[SideValues], k: int) -> None:
        """What an iteration's members said, and how many were waited for."""
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
        """Begin anew where the last iterations took much longer or shorter, or all had another k."""
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
            self._begin_anew()

    def _begin_anew(self) -> None:
        begun = self.heard[0, _BEGUN] + 1
        self.heard[:] = 0
        self.heard[0, _BEGUN] = begun
