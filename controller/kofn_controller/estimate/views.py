"""Compares two views of one event: the worker's report and the switch's digest.

A disagreement is counted and described; the module does not decide which side is right.
"""

from dataclasses import dataclass, field
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

KEPT = 32
"""Maximum number of a worker's reports, and of its digests, that wait for their counterpart; older messages are
dropped."""

TOLERANCE_S = 0.020
"""Least difference of times that counts, because threads of both sides may wait for a processor."""

LATE_VERDICTS = frozenset({"LATE", "STALE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The worker's view."""

    first_block_s: float
    sent: bool
    late: bool
    together: bool  # the worker started with the others, because it was in time in the iteration before


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchDigest:
    """The switch's view."""

    verdict: str
    timestamp_us: int
    rack: int = 0  # each rack's switch has its own clock


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTimePair:
    """Both views of the first worker of a rack that was in time in an iteration. The times of the rack's other workers
    are compared with this worker's."""

    rank: int
    said: WorkerReport
    seen: SwitchDigest


@dataclass(slots=True, kw_only=True)
class Views:
    """Pairs the reports and digests of `workers` workers, and compares them."""

    workers: int
    count: list[int] = field(init=False)  # disagreements, by worker
    latest: list[str] = field(init=False)  # the latest disagreement in words, by worker
    _said: list[dict[int, WorkerReport]] = field(init=False)
    _seen: list[dict[int, SwitchDigest]] = field(init=False)
    _on_time: list[int] = field(init=False)  # the latest iteration that each worker finished in time
    _reference: dict[tuple[int, int], OnTimePair] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.count, self.latest = [0] * self.workers, [""] * self.workers
        self._said = [{} for _ in range(self.workers)]
        self._seen = [{} for _ in range(self.workers)]
        self._on_time = [0] * self.workers

    def report(self, rank: int, iteration: int, *, first_block_s: float, sent: bool, late: bool) -> None:
        """Take the worker's view of an iteration."""
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

    def arrival(self, rank: int, iteration: int, seen: SwitchDigest) -> None:
        """Take the switch's view: the first packet of the worker's first block."""
        self._missing(rank, iteration)
        said = self._said[rank].pop(iteration, None)
        if said is not None:
            self._compare(rank, iteration, said, seen)
        else:
            self._seen[rank][iteration] = seen
            _bound(self._seen[rank], KEPT)

    def _missing(self, rank: int, before: int) -> None:
        """Count blocks that the switch never saw. Digests come in order, so a digest of iteration `before` ends the
        wait for digests of earlier iterations.
        """
        for iteration in [known for known in self._said[rank] if known < before]:
            said = self._said[rank].pop(iteration)
            if said.sent and not said.late:
                self._disagree(rank, iteration, "it sent its first block, but the switch never saw it")

    def _compare(self, rank: int, iteration: int, said: WorkerReport, seen: SwitchDigest) -> None:
        """Compare both views of an iteration."""
        if not said.sent:
            self._disagree(rank, iteration, f"it had no block ready, but the switch saw one ({seen.verdict})")
        elif seen.verdict in LATE_VERDICTS and not said.late:
            self._disagree(rank, iteration, f"it was in time, but the switch found it {seen.verdict}")
        elif said.together and not said.late:
            self._compare_times(rank, iteration, said, seen)

    def _compare_times(self, rank: int, iteration: int, said: WorkerReport, seen: SwitchDigest) -> None:
        """Compare the lags behind another worker that started together with this one, by the clocks of both sides."""
        other = self._reference.setdefault((iteration, seen.rack), OnTimePair(rank=rank, said=said, seen=seen))
        _bound(self._reference, KEPT)
        said_s = said.first_block_s - other.said.first_block_s
        seen_s = (seen.timestamp_us - other.seen.timestamp_us) * 1e-6
        if abs(said_s - seen_s) > max(TOLERANCE_S, 0.5 * max(abs(said_s), abs(seen_s))):
            gaps = f"{_gap(said_s)} worker {other.rank}, but the switch saw it {_gap(seen_s)}"
            self._disagree(rank, iteration, f"it was {gaps}")

    def _disagree(self, rank: int, iteration: int, words: str) -> None:
        """Count a disagreement, and keep its description."""
        self.count[rank] += 1
        self.latest[rank] = f"iteration {iteration}: worker {rank} says that {words}"


def _gap(lag_s: float) -> str:
    """Describe a lag in words."""
    milliseconds = round(1e3 * lag_s)
    return f"{abs(milliseconds)} ms {'before' if milliseconds < 0 else 'after'}"


def _bound(entries: dict[Key, Value], most: int) -> None:
    """Drop the oldest entries above `most`."""
    while len(entries) > most:
        del entries[next(iter(entries))]
