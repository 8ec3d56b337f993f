"""Finds the fastest of some schedules by timing them in turn.

A round doubles the number of timings of every candidate; the candidates' medians are compared.  After a round,
candidates that are significantly slower than the leader leave, and if the next round would be too long, the slower half
leaves.

    race = Race(candidates, least=8)
    race.hear(running, took_s)      # an iteration has ended
    race.following                  # the candidate of the next iteration
    race.over, race.leader          # whether the leader has won
"""

from collections.abc import Sequence
from math import sqrt
from statistics import median

from kofn_host.schedule.families import PassSchedule

ROUND = 64
"""The most timings in a round, a power of two; the first round has one timing per candidate."""

JUDGED = 4
"""The number of timings per candidate from which on the spread of timings is considered."""

DOUBT = 2.0
"""The number of standard errors by which a candidate that stays may be slower than the leader."""

RESOLVED = 0.015
"""The standard error of a difference, as a share of the times, at which the leader wins."""


def longest(candidates: int, least: int) -> int:
    """Return the most iterations that a race takes.

    A round takes one iteration more than it has timings, because a time is reported one iteration later.
    """
    rounds = (min(candidates << doubled, ROUND) + 1 for doubled in range(ROUND.bit_length() - 1))
    return candidates + 1 + sum(rounds) + least


class Race:
    """Candidates that are timed in turn until one candidate is left, with at least `least` timings."""

    def __init__(self, field: Sequence[PassSchedule], least: int = 1) -> None:
        self._field, self._least = list(field), least
        self._wanted = 1  # timings of each candidate at the end of the round
        self._timings: dict[PassSchedule, list[float]] = {candidate: [] for candidate in field}
        self.following = self._field[0]
        self.over = False

    @property
    def leader(self) -> PassSchedule:
        """The candidate with the least median time so far."""
        timed = [candidate for candidate in self._field if self._timings[candidate]]
        return min(timed or self._field[:1], key=self._rank)

    @property
    def leader_s(self) -> float | None:
        """The leader's median time; None before its first timing."""
        times = self._timings[self.leader]
        return median(times) if times else None

    def hear(self, running: PassSchedule, took_s: float) -> None:
        """Take the time of an iteration with `running`; the next iteration has used `following`."""
        if running in self._timings:
            self._timings[running].append(took_s)
        while not self.over and self._tries() >= self._wanted:
            self._end_round()
        begun = {candidate: len(self._timings[candidate]) + (candidate == self.following) for candidate in self._field}
        self.following = min(self._field, key=begun.__getitem__)

    def _tries(self) -> int:
        """Return the least number of timings of a candidate."""
        return min(len(self._timings[candidate]) for candidate in self._field)

    def _rank(self, candidate: PassSchedule) -> tuple[float, PassSchedule]:
        return median(self._timings[candidate]), candidate

    def _end_round(self) -> None:
        if len(self._field) > 1:
            self._field = self._survivors(sorted(self._field, key=self._rank))
        if len(self._field) > 1:
            self._wanted *= 2
        else:
            self._wanted = self._least
            self.over = self._tries() >= self._least

    def _survivors(self, ranked: list[PassSchedule]) -> list[PassSchedule]:
        """Return the candidates of the next round; only the leader if the others differ too little."""
        if self._wanted >= JUDGED:
            error = self._error()
            if error <= RESOLVED:
                return ranked[:1]
            most_s = self._rank(ranked[0])[0] * (1 + DOUBT * error)
            ranked = [candidate for candidate in ranked if self._rank(candidate)[0] <= most_s]
        while len(ranked) > 1 and len(ranked) * self._wanted > ROUND:
            ranked = ranked[: (len(ranked) + 1) // 2]
        return ranked

    def _error(self) -> float:
        """Return the standard error of the difference of two medians, as a share of the medians.

        The noise of all candidates is pooled and estimated by the median absolute deviation.  For normal noise the
        standard deviation is the median absolute deviation divided by 0.6745, and a median's standard error is 1.2533
        times a mean's standard error.
        """
        deviations = []
        for candidate in self._field:
            centre = median(self._timings[candidate])
            deviations += [abs(time_s / centre - 1) for time_s in self._timings[candidate]]
        tries = self._tries()
        deviation = median(deviations) / 0.6745 * sqrt(tries / (tries - 1))
        return 1.2533 * deviation * sqrt(2 / tries)
