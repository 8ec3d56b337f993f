"""One job's slots in the switch, as its session sees them: who may use them, and what became of them.

The switch's entry of the job holds k and the generation. As long as the session has admitted no generation, whatever
entry is there stays: workers may be training with it. Knows nothing of connections: `switch_link.SwitchLink` sets
`write`.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import finsy as fy

from kofn.controller.estimate.measurements import Arrival
from kofn.controller.p4runtime.entries import Found, SlotLayout, exact_entries, job_entry


async def unwritten(slots: "Slots") -> None:
    """There is no switch: as if one had answered."""
    slots.confirm(slots.k)


def _unheard(news: object) -> None:
    """Ignore the news."""


@dataclass(slots=True, kw_only=True)
class Slots:
    """The wanted content of the job's entry, and the listeners to the switch's news."""

    layout: SlotLayout
    k: int
    generation: int = 0  # admitted by the session; 0: none
    found: Found | None = None  # what the switch had when it was connected last
    tried: bool = False  # the admitted generation has been written, or may have been
    latest: int = 0  # the highest generation that was ever seen in the switch, of any job
    write: Callable[["Slots"], Awaitable[None]] = unwritten
    on_arrival: Callable[[Arrival], object] = _unheard
    on_force: Callable[[int], object] = _unheard  # the switch has confirmed another k
    on_lost: Callable[[str], object] = _unheard  # the admitted generation's slots are gone; why, in words
    on_found: Callable[[Found | None], object] = _unheard  # none is admitted, and this is there
    away: Callable[[], str] = str  # why the switch does not answer; empty: it does
    in_force: int = 0  # the k that the switch confirmed last; 0: none
    since_s: float = 0.0  # when, on the monotonic clock
    refusal: str = ""  # what the switch said to the latest write, where it refused it
    _news: str = ""  # what on_lost is still to be told

    @property
    def job(self) -> int:
        return self.layout.job.id

    async def set_k(self, k: int) -> None:
        """Put k into force, at once or when the switch is back and ours. PushError where it refuses."""
        self.k = k
        if self.generation:
            await self.write(self)

    async def admit(self, generation: int, k: int) -> None:
        """Let packets of this generation in, at once or when the switch is back. PushError where it refuses."""
        self.generation, self.k, self.tried = generation, k, False
        self.found = None  # it is replaced
        await self.write(self)

    def adopt(self) -> None:
        """Go on with the k and the generation that were found."""
        assert self.found is not None
        self.generation, self.k, self.tried = self.found.generation, self.found.k, True
        self.confirm(self.k)

    def confirm(self, k: int) -> None:
        """The switch has answered that this k is in its entry: what it is from now on at the latest."""
        self.refusal = ""
        if k != self.in_force:
            self.in_force, self.since_s = k, time.monotonic()
            self.on_force(k)

    def differs(self) -> str:
        """Why the wanted k is not in force; empty: it is, or nothing is admitted yet."""
        if self.in_force == self.k or not self.generation:
            return ""
        return self.away() or self.refusal or "the switch has not answered yet"

    def prepare(self, found: Found | None) -> list[fy.P4TableEntry]:
        """The job's entry as it shall be where `found` is now: none where the admitted generation's slots are lost."""
        self.found = found
        if self.generation and self.tried and (found is None or found.generation != self.generation):
            now = "no entry" if found is None else f"generation {found.generation}"
            self._news = f"the switch has {now} of job {self.job}, not generation {self.generation}"
            self.generation = self.in_force = 0
        if self.generation:
            self.tried = True  # from here on it may be there, even if the answer to the write is lost
            return self.entries()
        return [] if found is None else self._entries(found.k, found.generation)

    def entries(self) -> list[fy.P4TableEntry]:
        """Those of the admitted generation: the job's, the only one that has to do with k, and its exact sums'."""
        return self._entries(self.k, self.generation)

    def _entries(self, k: int, generation: int) -> list[fy.P4TableEntry]:
        job, base = self.layout.job, self.layout.base
        return [job_entry(job, k, generation, base), *exact_entries(job, generation, base)]

    def tell(self) -> None:
        """The switch is as `prepare` wanted it: the session hears what that means."""
        words, self._news = self._news, ""
        if words:
            self.on_lost(words)
        elif not self.generation:
            self.on_found(self.found)
