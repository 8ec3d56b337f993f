"""A session's access to its job's slots in the switches.

The switch's entry of the job has k and the generation. As long as the session has admitted no generation, an existing
entry stays, because workers may be training with it. The module knows nothing of connections: `switch_link.SwitchLink`
sets `write`.

In a tree, `Slots` represents the root and decides on k and the generation. `LeafSlots` represents one leaf and copies
both from the root.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from kofn_controller.errors import PushError
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.p4runtime.entries import Found
from kofn_controller.p4runtime.layout import SlotLayout


class Wanted(NamedTuple):
    """The content that a job's entry should have."""

    k: int
    generation: int


JobSlots: TypeAlias = "Slots | LeafSlots"
"""A job's slots in one switch."""


async def unwritten(slots: JobSlots) -> None:
    """Confirm the wanted k without a switch."""
    slots.confirm(slots.wanted.k)


def _unheard(news: object) -> None:
    """Ignore the news."""


@dataclass(slots=True, kw_only=True)
class Slots:
    """The wanted content of the job's entry, and the listeners to the switch's news."""

    layout: SlotLayout
    k: int
    generation: int = 0  # the generation that the session has admitted; 0: none
    found: Found | None = None  # the switch's entry at the latest connection
    tried: bool = False  # the admitted generation has, or may have, been written
    latest: int = 0  # the highest generation that was ever seen in a switch, of any job
    write: Callable[[JobSlots], Awaitable[None]] = unwritten
    on_arrival: Callable[[Arrival], object] = _unheard
    on_force: Callable[[int], object] = _unheard  # called when the switch has confirmed another k
    on_lost: Callable[[str], object] = _unheard  # called with the reason when the admitted generation's slots are lost
    on_found: Callable[[Found | None], object] = (
        _unheard  # called with the switch's entry while no generation is admitted
    )
    away: Callable[[], str] = str  # returns why the switch does not answer; empty if it does
    followers: frozenset[int] = frozenset()  # the ranks of the workers to which the switch should send no results
    grouped: frozenset[int] | None = None  # those without results in the switch's group; None: not known
    in_force: int = 0  # the k that the switch confirmed last; 0: none
    since_s: float = 0.0  # when the switch confirmed `in_force`, on the monotonic clock
    refusal: str = ""  # why a switch refused the latest write; empty if none did
    leaves: Sequence["LeafSlots"] = ()  # the leaves' slots in a tree, by rack
    _news: str = ""  # the reason for the next call of on_lost; empty: none is due

    @property
    def job(self) -> int:
        return self.layout.job.id

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.k, self.generation)

    async def set_k(self, k: int) -> None:
        """Put k into force, at once or when the switch is connected again. PushError if a switch refuses."""
        self.k = k
        if self.generation:
            await self._write()

    async def admit(self, generation: int, k: int) -> None:
        """Admit packets of this generation, at once or when the switch is connected again. PushError if a switch
        refuses.
        """
        self.generation, self.k, self.tried = generation, k, False
        self.found = None  # the new entry replaces the found one
        for leaf in self.leaves:
            leaf.tried = False
        await self._write()

    async def _write(self) -> None:
        """Write the wanted entry to the only switch or the root, then to the leaves, whose k is only a hint."""
        written = [await _outcome(self.write(self))]
        written += await asyncio.gather(*(_outcome(leaf.write(leaf)) for leaf in self.leaves))
        for refusal in filter(None, written):
            raise refusal

    def adopt(self) -> None:
        """Continue with the k and the generation of the found entry."""
        assert self.found is not None
        self.generation, self.k, self.tried = self.found.generation, self.found.k, True
        self.confirm(self.k)

    def confirm(self, k: int) -> None:
        """Note that the switch has confirmed this k."""
        self.refusal = ""
        if k != self.in_force:
            self.in_force, self.since_s = k, time.monotonic()
            self.on_force(k)

    def differs(self) -> str:
        """Return why the wanted k is not in force; empty if it is, or if no generation is admitted."""
        if self.in_force == self.k or not self.generation:
            return ""
        return self.away() or self.refusal or "the switch has not answered yet"

    def absent(self) -> str:
        """Return which switches do not answer, and why; empty if all answer."""
        return "; ".join(filter(None, [self.away(), *(leaf.away() for leaf in self.leaves)]))

    def prepare(self, found: Found | None) -> Wanted | None:
        """Return the content that a job's entry should have in a switch that now has the entry `found`. Return None if
        the switch should have no entry, as when the admitted generation's slots are lost.
        """
        self.found = found
        if self.generation and self.tried and (found is None or found.generation != self.generation):
            now = "no entry" if found is None else f"generation {found.generation}"
            switch = "the root" if self.leaves else "the switch"
            self._news = f"{switch} has {now} of job {self.job}, not generation {self.generation}"
            self.generation = self.in_force = 0
        if self.generation:
            self.tried = True  # the switch may have the entry from now on, even if its answer is lost
            return self.wanted
        return _kept(found)

    def tell(self, latest: int) -> None:
        """Note the highest generation in the switch. Call on_lost or on_found, after the switch has the entries of
        `prepare`.
        """
        self.latest = max(self.latest, latest)
        words, self._news = self._news, ""
        if words:
            self.on_lost(words)
        elif not self.generation:
            self.on_found(self.found)

    def arrived(self, arrival: Arrival) -> None:
        """Pass on an arrival at the switch."""
        self.on_arrival(arrival)


@dataclass(slots=True, kw_only=True)
class LeafSlots:
    """A job's slots in the leaf of one rack. The leaf's entry has the k and the generation of the root's entry.

    If a leaf's slots are lost, the leaf gets its entries again with the same generation, and the job continues.
    """

    root: Slots
    rack: int
    tried: bool = False
    grouped: frozenset[int] | None = None
    write: Callable[[JobSlots], Awaitable[None]] = unwritten
    away: Callable[[], str] = str

    @property
    def followers(self) -> frozenset[int]:
        return self.root.followers

    @property
    def layout(self) -> SlotLayout:
        return self.root.layout

    @property
    def wanted(self) -> Wanted:
        return self.root.wanted

    def confirm(self, k: int) -> None:
        """Ignore the k of a leaf, on which nothing depends."""

    def prepare(self, found: Found | None) -> Wanted | None:
        """Return the content that the entry should have in a leaf that now has the entry `found`; None for no entry."""
        if self.root.generation:
            self.tried = True
            return self.wanted
        return _kept(found)

    def tell(self, latest: int) -> None:
        """Note the highest generation in the leaf."""
        self.root.latest = max(self.root.latest, latest)

    def arrived(self, arrival: Arrival) -> None:
        """Pass on the arrival of a worker of the rack."""
        first = self.rack * self.layout.rack_workers
        self.root.arrived(replace(arrival, worker=first + arrival.worker, rack=self.rack))


def _kept(found: Found | None) -> Wanted | None:
    """Return the content of the found entry, which stays; None without an entry."""
    return None if found is None else Wanted(found.k, found.generation)


async def _outcome(write: Awaitable[None]) -> PushError | None:
    """Return the PushError of a write; None if it succeeds."""
    try:
        await write
    except PushError as error:
        return error
    return None
