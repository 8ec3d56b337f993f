"""Which schedule is in force, found in the first iterations by all workers alike.

Each worker says three numbers beside its gradient (compression.side_values), and hears those of all members of the sum,
which all workers have alike.  A search is a function of these, in their order: all workers come to the same schedule
without a word more, and who comes back replays what the others have heard.

    said = search.said(measured)              # this worker's numbers of an iteration
    search.hear(Heard.of(notes.values()))     # what all members said: `search.schedule` is that of the next iteration
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Self

from kofn.host.compression.side_values import SideValues
from kofn.host.schedule.families import FAMILIES, PassSchedule
from kofn.host.schedule.layers import Layer, LayerTimes
from kofn.host.schedule.pipeline import LinkModel, iteration_s

MICRO = 1_000_000

MOST = 2**31 - 1
"""That a number can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One worker's iteration, in seconds: without the time that it was blocked, and by layer."""

    iteration_s: float
    times: LayerTimes


class Heard(NamedTuple):
    """What an iteration's members said: the largest first number, and the mean of each, rounded down; all 0 where one
    of them had measured nothing yet.
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


class Search(ABC):
    """`schedule`: of the iteration that comes; `done`: it is in force from now on; `tried`: what each took, in seconds.

    What is said in an iteration was measured in the one before it.
    """

    def __init__(self, schedule: PassSchedule) -> None:
        self.schedule = schedule
        self.done = False
        self.tried: dict[PassSchedule, list[float]] = {}
        self.heard = 0
        """Iterations."""
        self._before: PassSchedule | None = None  # in force in the iteration before

    def said(self, measured: Measured) -> SideValues:
        """The iteration's time and two more numbers, in microseconds, 1 or more."""
        return (_micro(measured.iteration_s), 1, 1)

    def hear(self, heard: Heard) -> None:
        """Of an iteration, before it is done."""
        self.heard += 1
        before, self._before = self._before, self.schedule
        if before is not None and heard.largest:
            self._hear(heard, before)

    def _hear(self, heard: Heard, before: PassSchedule) -> None:
        """The slowest worker's time counts, since the others wait for it."""
        self.tried.setdefault(before, []).append(heard.largest / MICRO)
        self._go_on()

    @abstractmethod
    def _go_on(self) -> None:
        """Choose another `schedule` to try, or be `done`."""

    def _next(self, field: Sequence[PassSchedule], times: int) -> bool:
        """Choose one that was begun less often than so; False where all were, and their times were heard."""
        least = min(field, key=lambda one: self._tries(one) + (one == self.schedule))
        if self._tries(least) + (least == self.schedule) < times:
            self.schedule = least
            return True
        return any(self._tries(one) < times for one in field)

    def _tries(self, schedule: PassSchedule) -> int:
        return len(self.tried.get(schedule, ()))

    def _best(self, among: Sequence[PassSchedule]) -> PassSchedule:
        """By the median of its times."""
        return min(among, key=lambda one: (median(self.tried[one]), one))


class GivenSchedule(Search):
    """The schedule that is configured."""

    def __init__(self, schedule: PassSchedule) -> None:
        super().__init__(schedule)
        self.done = True

    def _go_on(self) -> None:
        raise AssertionError("it is done")


GROWTH, THRESHOLDS = 1.1, 100
"""Source 001: each threshold is larger by a tenth than the one before, 100 times."""


class Enumeration(Search):
    """Source 001's: thresholds from the one given on, with the usual order, then every number of front layers."""

    def __init__(self, fronts: int, first: PassSchedule) -> None:
        thresholds = dict.fromkeys(int(first.threshold * GROWTH**number) for number in range(THRESHOLDS + 1))
        self._field = [PassSchedule(first.name, threshold, 0) for threshold in thresholds]
        super().__init__(self._field[0])
        self._fronts = fronts

    def _go_on(self) -> None:
        if self._next(self._field, 1):
            return
        best = self._best(self._field)
        more = [PassSchedule(best.name, best.threshold, front) for front in range(1, self._fronts + 1)]
        self._field, self._fronts = [best, *more], 0
        if not self._next(self._field, 1):
            self.schedule, self.done = self._best(self._field), True


PROPOSED = 6
"""Schedules that are tried."""

ROUNDS = 2
"""Times that each is tried before the slower half goes."""

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Thresholds of the model, as shares of the gradient."""


class Proposals(Search):
    """The model of the pipeline proposes, and a few measured iterations decide.

    First each layer's times are told, one layer an iteration, and the rate of the network; then the schedules that the
    model expects most of are tried in turn, and the slower half leaves, until one is left.
    """

    def __init__(self, layers: Sequence[Layer], first: PassSchedule, network: LinkModel) -> None:
        super().__init__(first)
        self._layers, self._network = layers, network
        self._told: list[tuple[float, ...]] = []
        self._field: list[PassSchedule] = []
        self._times = ROUNDS  # that each of these is tried

    def said(self, measured: Measured) -> SideValues:
        at = len(self._told)
        if at == len(self._layers):
            return super().said(measured)
        times = measured.times
        return tuple(_micro(kind[at]) for kind in (times.forward, times.error, times.weight))

    def _hear(self, heard: Heard, before: PassSchedule) -> None:
        if len(self._told) < len(self._layers):
            self._told.append(tuple(mean / MICRO for mean in (heard.first, heard.second, heard.third)))
            if len(self._told) == len(self._layers):
                self._field = self._proposed()
                self.schedule = self._field[0]
        else:
            super()._hear(heard, before)

    def _proposed(self) -> list[PassSchedule]:
        """The fastest by the model, best first."""
        forward, error, weight = zip(*self._told, strict=True)
        times = LayerTimes(forward, error, weight)
        expected = {one: iteration_s(self._layers, times, one, self._network) for one in self.candidates()}
        return sorted(expected, key=lambda one: (expected[one], one))[:PROPOSED]

    def candidates(self) -> list[PassSchedule]:
        """All that the model looks at."""
        elements, layers = self._layers[-1].end, len(self._layers)
        fronts = {name: range(layers + 1) if family.has_front else range(1) for name, family in FAMILIES.items()}
        return [
            PassSchedule(name, max(1, int(elements * step)), front)
            for name, range_ in fronts.items()
            for front in range_
            for step in STEPS
        ]

    def _go_on(self) -> None:
        if self._next(self._field, self._times):
            return
        ranked = sorted(self._field, key=lambda one: (median(self.tried[one]), one))
        self._field, self._times = ranked[: max(1, len(ranked) // 2)], self._times + ROUNDS
        self.done = len(self._field) == 1
        if self.done:
            self.schedule = self._field[0]
        else:
            self._next(self._field, self._times)


def _micro(seconds: float) -> int:
    return min(MOST, max(1, round(seconds * MICRO)))
