"""Searches for a schedule in the first iterations; all workers find the same schedule.

Each worker sends three side values with its gradient (compression.side_values), and gets the side values of all members
of the sum, which are the same for all workers.  A search is a function of the sequence of these values: all workers
reach the same schedule without further messages, and a rejoining worker replays the values.

    said = search.said(measured)              # this worker's values of an iteration
    search.hear(Heard.of(notes.values()))     # all members' values; `search.schedule` is then the next iteration's
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from kofn_host.compression.side_values import SideValues
from kofn_host.schedule.families import FAMILIES, PassSchedule
from kofn_host.schedule.layers import Layer, LayerTimes
from kofn_host.schedule.pieces import distinct
from kofn_host.schedule.pipeline import LinkModel, iteration_s
from kofn_host.schedule.race import Race, longest

MICRO = 1_000_000

MOST = 2**31 - 1
"""The largest side value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One worker's times in an iteration: `iteration_s` is the whole time without blocking, `times` are by layer."""

    iteration_s: float
    times: LayerTimes


class Heard(NamedTuple):
    """A summary of an iteration's side values.

    `largest`: the largest first value of a member; `first`, `second`, `third`: the means of the members' values,
    rounded down.  All are 0 if a member had no measurement yet.
    """

    largest: int
    first: int
    second: int
    third: int

    @classmethod
    def of(cls, said: Collection[SideValues]) -> Self:
        if not all(numbers[0] for numbers in said):
            return cls(0, 0, 0, 0)
        means = (sum(numbers) // len(said) for numbers in zip(*said, strict=True))
        return cls(max(numbers[0] for numbers in said), *means)


FOUND = 8
"""The least number of timings of the found schedule."""


class Search:
    """Finds the schedule of the next iteration from the workers' times.

    A worker measures a time in one iteration and reports it in the next.
    """

    def __init__(self, schedule: PassSchedule) -> None:
        self.schedule = schedule
        """The schedule of the next iteration."""
        self.done = False
        """Whether `schedule` stays."""
        self.found_s: float | None = None
        """Seconds of an iteration with the found schedule; None before the search has found it, or without a timing."""
        self.heard = 0
        """The number of iterations heard."""
        self.longest = 0
        """The most iterations that the search takes, if every worker reports a time in each iteration."""
        self._race: Race | None = None
        self._before: PassSchedule | None = None  # the previous iteration's schedule

    @property
    def most(self) -> int:
        """The number of iterations after which the search settles on the best schedule so far."""
        return self.longest + self.longest // 4

    def said(self, measured: Measured) -> SideValues:
        """Return this worker's side values: the iteration's time in microseconds, and two numbers; all at least 1."""
        return (_micro(measured.iteration_s), 1, 1)

    def hear(self, heard: Heard) -> None:
        """Take an iteration's side values, and choose the next iteration's schedule."""
        self.heard += 1
        before, self._before = self._before, self.schedule
        if before is not None and heard.largest:
            self._hear_times(heard, before)
        if self.heard == self.most and not self.done:
            self._settle()

    def _hear_times(self, heard: Heard, before: PassSchedule) -> None:
        """Hand the slowest worker's time to the race: the others wait for this worker."""
        assert self._race is not None
        self._race.hear(before, heard.largest / MICRO)
        if self._race.over:
            self._won(self._race.leader)
        else:
            self.schedule = self._race.following

    def _begin(self, race: Race) -> None:
        self._race, self.schedule = race, race.following

    def _won(self, best: PassSchedule) -> None:
        """Continue after a race."""
        self._settle()

    def _settle(self) -> None:
        self.done = True
        if self._race is not None:
            self.schedule, self.found_s = self._race.leader, self._race.leader_s


class GivenSchedule(Search):
    """A configured schedule, without a search."""

    def __init__(self, schedule: PassSchedule) -> None:
        super().__init__(schedule)
        self.done = True


GROWTH, THRESHOLDS = 1.1, 100
"""Source 001: each threshold is a tenth larger than the previous one, 100 times."""


class Enumeration(Search):
    """Source 001's search: thresholds from that of `first` on, without front layers; then every number of front layers.

    With `layers`, schedules with the same passes and pieces count as one candidate.
    """

    def __init__(self, fronts: int, first: PassSchedule, layers: Sequence[Layer] = ()) -> None:
        super().__init__(first)
        self._fronts, self._layers = fronts, layers
        thresholds = dict.fromkeys(int(first.threshold * GROWTH**number) for number in range(THRESHOLDS + 1))
        self._begin(self._race_of([PassSchedule(first.name, threshold, 0) for threshold in thresholds]))
        self.longest = longest(len(thresholds), FOUND) + (longest(fronts + 1, FOUND) if fronts else 0)

    def _race_of(self, field: Sequence[PassSchedule]) -> Race:
        return Race(distinct(self._layers, field), 1 if self._fronts else FOUND)

    def _won(self, best: PassSchedule) -> None:
        if not self._fronts:
            self._settle()
            return
        fronts, self._fronts = self._fronts, 0
        self._begin(self._race_of([PassSchedule(best.name, best.threshold, front) for front in range(fronts + 1)]))


PROPOSED = 6
"""The number of schedules that race."""

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Thresholds of the candidates, as shares of the gradient."""


class Proposals(Search):
    """Lets the pipeline's model propose schedules, and a few measured iterations decide.

    First the workers report each layer's times, one layer per iteration.  Then the schedules that are fastest by the
    model race.
    """

    def __init__(self, layers: Sequence[Layer], first: PassSchedule, network: LinkModel) -> None:
        super().__init__(first)
        self._layers, self._network = layers, network
        self._layer_times: list[tuple[float, ...]] = []  # forward, error and weight, of the layers reported so far
        self.longest = 1 + len(layers) + longest(PROPOSED, FOUND)

    def said(self, measured: Measured) -> SideValues:
        at = len(self._layer_times)
        if at == len(self._layers):
            return super().said(measured)
        times = measured.times
        return tuple(_micro(kind[at]) for kind in (times.forward, times.error, times.weight))

    def _hear_times(self, heard: Heard, before: PassSchedule) -> None:
        if len(self._layer_times) < len(self._layers):
            self._layer_times.append(tuple(mean / MICRO for mean in (heard.first, heard.second, heard.third)))
            if len(self._layer_times) == len(self._layers):
                self._begin(Race(self._proposed(), FOUND))
        else:
            super()._hear_times(heard, before)

    def _proposed(self) -> list[PassSchedule]:
        """Return the fastest schedules by the model, best first."""
        forward, error, weight = zip(*self._layer_times, strict=True)
        times = LayerTimes(forward, error, weight)
        expected = {
            candidate: iteration_s(self._layers, times, candidate, self._network) for candidate in self.candidates()
        }
        ranked = sorted(expected, key=lambda candidate: (expected[candidate], candidate))
        return distinct(self._layers, ranked)[:PROPOSED]

    def candidates(self) -> list[PassSchedule]:
        """Return all schedules that the model evaluates."""
        elements, layers = self._layers[-1].end, len(self._layers)
        fronts = {name: range(layers + 1) if family.has_front else range(1) for name, family in FAMILIES.items()}
        return [
            PassSchedule(name, max(1, int(elements * step)), front)
            for name, range_ in fronts.items()
            for front in range_
            for step in STEPS
        ]


def _micro(seconds: float) -> int:
    return min(MOST, max(1, round(seconds * MICRO)))
