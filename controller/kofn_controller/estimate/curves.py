"""Distributions of blocking that assume no law: Kaplan and Meier's estimates, of many workers at once.

E. L. Kaplan, P. Meier, Nonparametric estimation from incomplete observations, JASA 53 (1958). Nothing is known beyond
the largest lower bound: the tail of the fitted Poisson distribution continues there. Pure functions of arrays in units
of tau.
"""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kofn_controller.estimate.grouped import CountGroups
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.poisson import TINY, farthest


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The distributions of m workers, in ascending order of rank; arrays of observations are (m, window), each row
    ascending.
    """

    rank: NDArray[np.int64]  # (m,) the workers
    counts: FloatArray  # the observed counts; 0 where there is no observation
    masses: FloatArray  # probabilities of the counts; 0 for lower bounds and where there is no observation
    left: FloatArray  # (m,) probability beyond `bound`
    bound: FloatArray  # (m,) largest observation; -1 without any
    rate: FloatArray  # (m,) Poisson rate of the tail

    @classmethod
    def of(cls, rank: NDArray[np.int64], counts: FloatArray, cut: BoolArray, rate: FloatArray) -> Self:
        """Estimate from counts (m, window), NaN where unknown; among equal counts, uncensored counts come first."""
        order = np.argsort(cut, axis=1, kind="stable")
        order = np.take_along_axis(order, np.argsort(np.take_along_axis(counts, order, axis=1), kind="stable"), axis=1)
        counts, cut = np.take_along_axis(counts, order, axis=1), np.take_along_axis(cut, order, axis=1)
        known = ~np.isnan(counts)
        at_risk = np.maximum(known.sum(axis=1, keepdims=True) - np.arange(counts.shape[1]), 1)
        survival = np.cumprod(1 - (known & ~cut) / at_risk, axis=1)
        counts = np.where(known, counts, 0.0)
        return cls(
            rank=rank,
            counts=counts,
            masses=-np.diff(survival, prepend=1.0, axis=1),
            left=survival[:, -1],
            bound=np.where(known.any(axis=1), counts.max(axis=1, initial=0.0), -1.0),
            rate=rate,
        )

    def __len__(self) -> int:
        return len(self.rank)

    def at(self, rows: NDArray[np.int64] | BoolArray) -> "Curves":
        """Return the distributions of some of the m workers."""
        return Curves(**{array.name: getattr(self, array.name)[rows] for array in fields(self)})

    @property
    def longest(self) -> FloatArray:
        """The largest count of each worker (m,): observed, or expected beyond the largest lower bound."""
        seen = np.max(self.counts, axis=1, where=self.masses > 0, initial=0.0)
        return np.asarray(np.maximum(seen, (self.bound + self.rate) * (self.left > 0)))

    def done(self, events: FloatArray, groups: CountGroups | None = None) -> FloatArray:
        """Return P(N <= m) (m, points) at ascending whole `events` m.

        The mass of a count between two points is divided between both points so that the mean count stays the same.
        With `groups` the result is the mean over each group's workers (groups, points).
        """
        first = np.searchsorted(events, self.counts - 1, side="right")
        share = np.clip(np.append(events, np.inf)[first] + 1 - self.counts, 0.0, 1.0) * self.masses
        return self._summed(events, groups, (first, share), (first + 1, self.masses - share))

    def reached(self, points: FloatArray, groups: CountGroups | None = None) -> FloatArray:
        """Return P(N <= x) (m, points) at ascending `points` x, whole or not; `groups` as in done()."""
        return self._summed(points, groups, (np.searchsorted(points, self.counts), self.masses))

    def _summed(
        self, points: FloatArray, groups: CountGroups | None, *parts: tuple[NDArray[np.int64], FloatArray]
    ) -> FloatArray:
        """Sum the masses by point, and add the tails beyond the bounds. Each part is a pair of arrays (m, window): the
        index of the first point that includes each mass, and the masses.

        A group has one tail, whose bound and rate are its members' means, weighted by their probabilities `left`.
        """
        group, sizes = (groups.group, groups.sizes) if groups else (np.arange(len(self)), np.ones(len(self), np.int64))
        bins = len(points) + 2
        at = np.zeros(len(sizes) * bins)
        for first, mass in parts:
            at += np.bincount((group[:, None] * bins + first).ravel(), mass.ravel(), minlength=len(at))
        seen = np.cumsum(at.reshape(len(sizes), bins), axis=1)[:, : len(points)]
        left = np.bincount(group, self.left, minlength=len(sizes))
        rows = np.flatnonzero(left > 0)
        weighed = (np.bincount(group, self.left * values, minlength=len(sizes)) for values in (self.bound, self.rate))
        bound, rate = (np.asarray(sums[rows] / left[rows], dtype=np.float64)[:, None] for sums in weighed)
        tail = np.minimum(_above(points, rate) / np.maximum(_above(bound, rate), TINY), 1.0)
        seen[rows] += left[rows, None] * np.where(points <= bound, 0.0, 1 - tail)
        return np.asarray(np.clip(seen / sizes[:, None], 0.0, 1.0))

    def quantiles(self, row: int, levels: FloatArray) -> FloatArray:
        """Return the quantiles of one distribution at these `levels` (any,), 0 to 1."""
        summed = np.cumsum(self.masses[row])
        last = int(np.flatnonzero(self.masses[row])[-1]) if self.masses[row].any() else 0
        seen = self.counts[row][np.minimum(np.searchsorted(summed, levels - 1e-12), last)]
        if self.left[row] <= 0:
            return np.asarray(seen)
        return np.where(levels <= 1 - self.left[row], seen, self._tail(row, (1 - levels) / self.left[row]))

    def _tail(self, row: int, above: FloatArray) -> FloatArray:
        """Return a count for each share in `above` (any,): the smallest whole count such that at most this share of all
        counts beyond the bound is larger."""
        bound, rate = self.bound[row], self.rate[row]
        events = np.floor(bound) + np.arange(1, 2 + farthest(rate))
        tail = _above(events, rate) / np.maximum(_above(bound, rate), TINY)
        return np.asarray(events[np.minimum(np.searchsorted(-tail, -above), len(events) - 1)])


def _above(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """Return P(N > count) of Poisson counts N."""
    return np.where(counts < 0, 1.0, special.pdtrc(np.maximum(counts, 0.0), rates))
