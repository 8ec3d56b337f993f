"""A search that all workers go through together, and that is a part of a replica's state."""

from collections.abc import Callable, Collection

import numpy as np

from kofn.host.arrays import Integers
from kofn.host.compression.side_values import SideValues
from kofn.host.schedule.families import PassSchedule
from kofn.host.schedule.search import Heard, Measured, Search

HEARD_MOST = 1000
"""Iterations that a search may take."""


class AgreedSearch:
    """`new` makes it as it begins; `heard`, int64, changes in place: how many iterations were heard, then what in
    each.
    """

    def __init__(self, new: Callable[[], Search]) -> None:
        self._new = new
        self._search = new()
        self.heard: Integers = np.zeros((HEARD_MOST + 1, len(Heard._fields)), np.int64)

    @property
    def search(self) -> Search:
        """Where it is; another replica's `heard` may have come."""
        count = int(self.heard[0, 0])
        if self._search.heard != count:
            self._search = self._new()
            for row in self.heard[1 : count + 1].tolist():
                self._search.hear(Heard(*row))
        return self._search

    @property
    def schedule(self) -> PassSchedule:
        """Of the iteration that comes."""
        return self.search.schedule

    def said(self, measured: Measured) -> SideValues:
        return self.search.said(measured)

    def hear(self, said: Collection[SideValues]) -> None:
        """What an iteration's members said."""
        search = self.search
        if search.done or not said:
            return
        heard = Heard.of(said)
        search.hear(heard)
        self.heard[0, 0] = search.heard
        self.heard[search.heard] = heard
