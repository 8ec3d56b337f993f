"""Finds the iteration from which on a new k closes every block.

The switch reads k at every packet. While k changes, blocks of the present iterations may close under the old or the new
k. A Decision is sent to the workers only after the switch has confirmed the change, and each report names the latest
Decision that the worker had received when it began the iteration. If every worker had received the Decision before it
began an iteration, then no packet of that iteration was sent before the change: all of its blocks close under the new
k. No clock, no I/O.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedK:
    """The part of a worker's report that concerns k."""

    iteration: int
    decision: int  # the latest Decision that the worker had received when it began the iteration
    least: int  # smallest k under which a block of the iteration closed
    most: int  # largest k under which a block of the iteration closed


@dataclass(slots=True, kw_only=True)
class Agreement:
    """The change of k that the switch confirmed last; 0 means unknown."""

    number: int = 0  # the Decision's number: counts the changes that came into force
    k: int = 0
    first: int = 0  # first iteration in which k closed a block
    certain: int = 0  # first iteration from which on k closes every block
    torn: int = 0  # reports of iterations from `certain` on in which another k closed a block: must be 0
    _begun: dict[int, int] = field(default_factory=dict)  # by rank: first iteration begun after the Decision came

    def confirmed(self, k: int) -> int:
        """Note that the switch has confirmed this k, and return the number of its Decision."""
        self.number += 1
        self.k, self.first, self.certain = k, 0, 0
        self._begun = {}
        return self.number

    def report(self, rank: int, said: AnnouncedK, reached: Mapping[int, int], *, settled: bool) -> bool:
        """Take a worker's report; return True if `certain` becomes known by this report.

        `reached` has, by rank, 0 for a live worker, and for another worker the latest iteration that it is known to
        have begun. `settled` says that no other k is under way to the switch.
        """
        if said.decision == self.number:
            self._begun.setdefault(rank, said.iteration)
        if said.least <= self.k <= said.most and not self.certain:
            self.first = min(self.first, said.iteration) if self.first else said.iteration
        if self.certain:
            self._check(rank, said, settled)
            return False
        if not self.number or any(not last and rank not in self._begun for rank, last in reached.items()):
            return False
        self.certain = max(self._begun.get(rank, last + 1) for rank, last in reached.items())
        return True

    def _check(self, rank: int, said: AnnouncedK, settled: bool) -> None:
        """Count and log a report that contradicts `certain`."""
        if settled and said.iteration >= self.certain and said.most and (said.least, said.most) != (self.k, self.k):
            self.torn += 1
            if self.torn == 1:
                _LOG.error(
                    "worker %d: blocks of iteration %d closed under k = %d to %d, but k = %d was in force from %d on",
                    rank, said.iteration, said.least, said.most, self.k, self.certain,
                )  # fmt: skip
