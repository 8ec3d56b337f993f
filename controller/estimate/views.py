"""The two views of one event: the worker's report and the switch's digest. Compared, never averaged.

A disagreement is counted and put into words; which side is right is for a person to find out.
"""

from dataclasses import dataclass, field
from typing import TypeVar

Value = TypeVar("Value")

KEPT = 32
"""Iterations of each worker and view that wait for their other half; older ones are dropped."""

TOLERANCE_S = 0.020
"""Least difference in time that counts: the two sides' clocks tick alike, but both sides' threads wait for a CPU."""

LATE_VERDICTS = frozenset({"LATE", "STALE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The worker's half."""

    first_block_s: float
    sent: bool
    late: bool
    together: bool  # it started when the others did: it was in time in the iteration before


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchDigest:
    """The switch's half."""

    verdict: str
    timestamp_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTimePair:
    """The first on-time event of an iteration that both saw: what the others' times are held against."""

    rank: int
    said: WorkerReport
    seen: SwitchDigest


@dataclass(slots=True, kw_only=True)
class Views:
    """Pairs reports and arrivals of `workers` workers; `count` and `latest` (in words) are of each worker."""

    workers: int
    count: list[int] = field(init=False)
    latest: list[str] = field(init=False)
    _said: list[dict[int, WorkerReport]] = field(init=False)
    _seen: list[dict[int, SwitchDigest]] = field(init=False)
    _on_time: list[int] = field(init=False)  # latest iteration that the worker finished in time
    _reference: dict[int, OnTimePair] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.count, self.latest = [0] * self.workers, [""] * self.workers
        self._said = [{} for _ in range(self.workers)]
        self._seen = [{} for _ in range(self.workers)]
        self._on_time = [0] * self.workers

    def report(self, rank: int, iteration: int, *, first_block_s: float, sent: bool, late: bool) -> None:
        """Take the worker's half of an iteration."""
        together = self._on_time[rank] == iteration - 1
        said = WorkerReport(first_block_s=first_block_s, sent=sent, late=late, together=together)
        seen = self._seen[rank].pop(iteration, None)
        if seen is not None:
            self._compare(rank, iteration, said, seen)
        else:
            self._said[rank][iteration] = said
            _bound(self._said[rank], KEPT)
        if not late:
            self._on_time[rank] = iteration

    def arrival(self, rank: int, iteration: int, *, verdict: str, timestamp_us: int) -> None:
        """Take the switch's half: the first packet of the worker's first block."""
        self._missing(rank, iteration)
        seen = SwitchDigest(verdict=verdict, timestamp_us=timestamp_us)
        said = self._said[rank].pop(iteration, None)
        if said is not None:
            self._compare(rank, iteration, said, seen)
        else:
            self._seen[rank][iteration] = seen
            _bound(self._seen[rank], KEPT)

    def _missing(self, rank: int, before: int) -> None:
        """Report blocks that the switch never saw: digests come in order, so a gap before a later one is final."""
        for iteration in [known for known in self._said[rank] if known < before]:
            said = self._said[rank].pop(iteration)
            if said.sent and not said.late:
                self._disagree(rank, iteration, "it handed its first block to the network, the switch never saw it")

    def _compare(self, rank: int, iteration: int, said: WorkerReport, seen: SwitchDigest) -> None:
        """Hold both halves against each other."""
        if not said.sent:
            self._disagree(rank, iteration, f"it had no block ready, the switch saw one ({seen.verdict})")
        elif seen.verdict in LATE_VERDICTS and not said.late:
            self._disagree(rank, iteration, f"it was in time, the switch found it {seen.verdict}")
        elif said.together and not said.late:
            self._compare_times(rank, iteration, said, seen)

    def _compare_times(self, rank: int, iteration: int, said: WorkerReport, seen: SwitchDigest) -> None:
        """Both clocks measure the same lag behind another worker that started together with this one."""
        other = self._reference.setdefault(iteration, OnTimePair(rank=rank, said=said, seen=seen))
        _bound(self._reference, KEPT)
        said_s = said.first_block_s - other.said.first_block_s
        seen_s = (seen.timestamp_us - other.seen.timestamp_us) * 1e-6
        if abs(said_s - seen_s) > max(TOLERANCE_S, 0.5 * max(abs(said_s), abs(seen_s))):
            gaps = f"{_gap(said_s)} worker {other.rank}, the switch saw it {_gap(seen_s)}"
            self._disagree(rank, iteration, f"it was {gaps}")

    def _disagree(self, rank: int, iteration: int, words: str) -> None:
        """Count and remember the latest."""
        self.count[rank] += 1
        self.latest[rank] = f"iteration {iteration}: worker {rank} says that {words}"


def _gap(lag_s: float) -> str:
    """How much later than another, in words."""
    milliseconds = round(1e3 * lag_s)
    return f"{abs(milliseconds)} ms {'before' if milliseconds < 0 else 'after'}"


def _bound(entries: dict[int, Value], most: int) -> None:
    """Drop the oldest entries above `most`."""
    while len(entries) > most:
        del entries[next(iter(entries))]
