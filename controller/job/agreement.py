"""From which iteration on a k closes every block: what the switch has confirmed, and when the workers heard of it.

The switch reads k at every packet, so blocks of the iterations that are under way while it changes may close under
either. A Decision goes out only after the switch has confirmed the change. A worker says with each report which
Decision it had heard when it began that iteration. An iteration that no worker had begun before it had heard has sent
no packet before the change: all of its blocks close under the new k.  No clock, no I/O.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedK:
    """The part of a worker's report about k: the iteration, the Decision heard before, least and largest k of its
    blocks.
    """

    iteration: int
    decision: int
    least: int
    most: int


@dataclass(slots=True, kw_only=True)
class Agreement:
    """The change that the switch confirmed last; 0 means unknown."""

    number: int = 0  # counts the changes that came into force
    k: int = 0
    first: int = 0  # first iteration of which a block was closed under k
    certain: int = 0  # from this iteration on every block is
    torn: int = 0  # reports of such an iteration in which another k closed a block: there must be none
    _begun: dict[int, int] = field(default_factory=dict)  # by rank: the first iteration that it began after it heard

    def confirmed(self, k: int) -> int:
        """The switch has this k from now on; the number of the Decision that says so."""
        self.number += 1
        self.k, self.first, self.certain = k, 0, 0
        self._begun = {}
        return self.number

    def report(self, rank: int, said: AnnouncedK, reached: Mapping[int, int], *, settled: bool) -> bool:
        """Take a worker's word; True where `certain` becomes known by it.

        `reached`: of every live worker 0, of every other one the latest iteration that it is known to have begun.
        `settled`: no other k is on its way to the switch, which may have it already.
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
        """Once it is certain it has to be so."""
        if settled and said.iteration >= self.certain and said.most and (said.least, said.most) != (self.k, self.k):
            self.torn += 1
            if self.torn == 1:
                _LOG.error(
                    "worker %d: blocks of iteration %d closed under k = %d to %d, but k = %d was in force from %d on",
                    rank, said.iteration, said.least, said.most, self.k, self.certain,
                )  # fmt: skip
