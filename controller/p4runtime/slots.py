"""A session's access to its job's slots in the switch.

The switch's entry of the job has k and the generation. As long as the session has admitted no generation, an existing
entry stays, because workers may be training with it. The module knows nothing of connections: `switch_link.SwitchLink`
sets `write`.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import finsy as fy

from kofn.controller.estimate.measurements import Arrival
from kofn.controller.p4runtime.entries import Found, SlotLayout, exact_entries, job_entry


async def unwritten(slots: "Slots") -> None:
    """Confirm the wanted k without a switch."""
    slots.confirm(slots.k)


def _unheard(news: object) -> None:
    """Ignore the news."""


@dataclass(slots=True, kw_only=True)
class Slots:
    """The wanted content of the job's entry, and the listeners to the switch's news."""

    layout: SlotLayout
    k: int
    generation: int = 0  # admitted by the session; 0: none
    found: Found | None = None  # the switch's entry at the latest connection
    tried: bool = False  # the admitted generation has, or may have, been written
    latest: int = 0  # the highest generation that was ever seen in the switch, of any job
    write: Callable[["Slots"], Awaitable[None]] = unwritten
    on_arrival: Callable[[Arrival], object] = _unheard
    on_force: Callable[[int], object] = _unheard  # called when the switch has confirmed another k
    on_lost: Callable[[str], object] = _unheard  # called with the reason when the admitted generation's slots are lost
    on_found: Callable[[Found | None], object] = _unheard  # called with the switch's entry while none is admitted
    away: Callable[[], str] = str  # returns why the switch does not answer; empty: it does
    in_force: int = 0  # the k that the switch confirmed last; 0: none
    since_s: float = 0.0  # when it confirmed that, on the monotonic clock
    refusal: str = ""  # why the switch refused the latest write; empty: it did not
    _news: str = ""  # the reason that on_lost has not been called with yet

    @property
    def job(self) -> int:
        return self.layout.job.id

    async def set_k(self, k: int) -> None:
        """Put k into force, at once or when the switch is connected again. PushError if the switch refuses."""
        self.k = k
        if self.generation:
            await self.write(self)

    async def admit(self, generation: int, k: int) -> None:
        """Admit packets of this generation, at once or when the switch is connected again. PushError if it refuses."""
        self.generation, self.k, self.tried = generation, k, False
        self.found = None  # the new entry replaces it
        await self.write(self)

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

    def prepare(self, found: Found | None) -> list[fy.P4TableEntry]:
        """Return the entries that the job should have in a switch with the entry `found`; none if the admitted
        generation's slots are lost.
        """
        self.found = found
        if self.generation and self.tried and (found is None or found.generation != self.generation):
            now = "no entry" if found is None else f"generation {found.generation}"
            self._news = f"the switch has {now} of job {self.job}, not generation {self.generation}"
            self.generation = self.in_force = 0
        if self.generation:
            self.tried = True  # the switch may have it from now on, even if its answer is lost
            return self.entries()
        return [] if found is None else self._entries(found.k, found.generation)

    def entries(self) -> list[fy.P4TableEntry]:
        """Return the entries of the admitted generation: the job's own, which has k, and that of its exact sums."""
        return self._entries(self.k, self.generation)

    def _entries(self, k: int, generation: int) -> list[fy.P4TableEntry]:
        job, base = self.layout.job, self.layout.base
        return [job_entry(job, k, generation, base), *exact_entries(job, generation, base)]

    def tell(self) -> None:
        """Call on_lost or on_found, after the switch has the entries of `prepare`."""
        words, self._news = self._news, ""
        if words:
            self.on_lost(words)
        elif not self.generation:
            self.on_found(self.found)
