"""The outages of a resumed trial: each is the time from the end of a checkpoint's iteration to the start of the next
iteration."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from msgspec import structs

from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.worker_metrics import Iteration, WorkerMetrics


@dataclass(frozen=True, slots=True)
class Outages:
    """Times in which no worker trained, as pairs of Unix times in ascending order. No time of a trial includes them."""

    spans: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, workers: Sequence[WorkerMetrics], events: Iterable[LoggedEvent]) -> Self:
        """Return the outages of a trial, whose events tell after which iterations the training was resumed."""
        iterations = sorted({event.iteration for event in events if event.action == "resume"})
        return cls(tuple(span for iteration in iterations for span in _span(workers, iteration)))

    @property
    def total_s(self) -> float:
        return sum(end - begin for begin, end in self.spans)

    def cut(self, workers: Sequence[WorkerMetrics]) -> tuple[WorkerMetrics, ...]:
        """Return the workers' lines with times as if there had been no outage."""
        if not self.spans:
            return tuple(workers)
        return tuple(replace(worker, iterations=tuple(map(self._moved, worker.iterations))) for worker in workers)

    def cut_time(self, time: float) -> float:
        """Return this Unix time minus the duration of all outages before this time."""
        return time - sum(min(time, end) - begin for begin, end in self.spans if begin < time)

    def _moved(self, line: Iteration) -> Iteration:
        started = None if line.started is None else self.cut_time(line.started)
        return structs.replace(line, time=self.cut_time(line.time), started=started)


def _span(workers: Sequence[WorkerMetrics], iteration: int) -> Iterator[tuple[float, float]]:
    """Yield the outage after this iteration, if there are lines on both sides."""
    lines = [line for worker in workers for line in worker.iterations]
    before = [line.time for line in lines if line.iteration <= iteration]
    after = [line.started for line in lines if line.iteration > iteration and line.started is not None]
    if before and after and min(after) > max(before):
        yield max(before), min(after)
