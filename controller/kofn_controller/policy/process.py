"""Simulates the workers under each rule for late gradients, for many k at once: times, sums, ages, shares.

An iteration begins after the end of the previous one and an overhead for transfer, sum and step. It ends when k
gradients count for it. T_i is the first-block time of worker i's next gradient. R_i is the remaining time of worker i's
unfinished gradient when the iteration begins. L is the time from the beginning to the k-th gradient. The rules differ
in the use of a late gradient:

- stash, merge, drop: a late worker finishes its gradient, which counts in no iteration. The worker then begins a
  gradient of the open iteration. So worker i arrives at R_i + T_i, and L is the k-th smallest R_i + T_i: never less
  than the k-th smallest T. A late gradient is added to its worker's next gradient that is in time (stash), to the sum
  that is open when the late gradient is finished (merge), or to no sum (drop).
- async: a late gradient counts among the k of the iteration that is open when it is finished. Its worker then waits for
  the end of that iteration. L is the k-th smallest R_i, where R_i is a new T_i for a worker in the previous sum. So L
  is less than the k-th smallest T (K-async: S. Dutta et al., Slow and stale gradients can win the race, AISTATS 2018).
- abort: late workers give up and begin with the others. L is the k-th smallest T.
- batch-sync: a worker that has finished computes further gradients with the same parameters until there are k. The
  other workers give up (K-batch-sync, ibidem).

With k = n all rules but batch-sync are the same. Pure functions of drawn times (steps, chains, n) from any law; chains
are simulated side by side. `sizes` (n,): the number of workers that each of the n represents.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kofn_common.config.late_rules import RuleName
from kofn_common.wire.sizes import PARTS
from kofn_controller.estimate.measurements import BoolArray, FloatArray

CARRIED: tuple[RuleName, ...] = ("stash", "merge", "drop")
"""The rules with the same iteration times."""

AGES = 16
"""Maximum age of a gradient, in iterations; older gradients count as AGES old."""

BURN_IN = 16
"""Number of first steps that are not evaluated, because they depend on the start."""

IntArray = NDArray[np.int64]
Ages = NDArray[np.int16]


class Beyond(NamedTuple):
    """The times beyond gradients, in the unit of the gradients' times."""

    overhead: float = 0.0
    """The time between iterations: transfer, sum and step."""
    catch_up: float = 0.0
    """The time of a late worker for each missed iteration, before its gradient counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The result of a simulation for some ks."""

    length: FloatArray  # (ks, chains) mean of L in each chain
    counts: FloatArray  # (ks, n, AGES + 1) gradients in an iteration's sum, by worker and age


def simulate(
    rule: RuleName, times: FloatArray, ks: IntArray, beyond: Beyond, *, phase: FloatArray, sizes: FloatArray
) -> Process:
    """Simulate one rule. `phase` (chains, n), 0 to 1: the remaining shares of late workers' first gradients.

    `carried` gives the results of the three CARRIED rules at once.
    """
    match rule:
        case "abort":
            return _together(times[BURN_IN:, :, None], ks, sizes)
        case "batch-sync":
            return _together(_batches(times)[BURN_IN:], ks, sizes)
        case "async":
            return _asynchronous(times, ks, beyond, phase, sizes)
        case _:
            return carried(times, ks, beyond, phase=phase, sizes=sizes)[rule]


def carried(
    times: FloatArray, ks: IntArray, beyond: Beyond, *, phase: FloatArray, sizes: FloatArray
) -> dict[RuleName, Process]:
    """Simulate stash, merge and drop, which differ only in their sums."""
    steps, chains, n = times.shape
    rest = np.broadcast_to(phase * times[0], (len(ks), chains, n))
    length = np.zeros((len(ks), chains))
    begun = np.empty((steps, *rest.shape), np.bool_)  # whether a worker begins a gradient of this iteration
    included = np.empty_like(begun)
    for step, drawn in enumerate(times):
        arrival = rest + drawn
        end = _kth(arrival, ks, sizes)
        if step >= BURN_IN:
            length += end[:, :, 0]
        rest = finished(rest, arrival, end, beyond.overhead, begun[step], included[step])
    length /= steps - BURN_IN
    begun, included = begun[BURN_IN:], included[BURN_IN:]
    counts: dict[RuleName, FloatArray] = {
        "stash": _counts(begun, _until(included, included), sizes) * _ever(included),
        "merge": _counts(begun, _until(included, begun), sizes),
        "drop": _counts(included, np.zeros(included.shape, np.int16), sizes),
    }
    return {rule: Process(length=length, counts=found) for rule, found in counts.items()}


def finished(
    rest: FloatArray, arrival: FloatArray, end: FloatArray, overhead: float, begun: BoolArray, included: BoolArray
) -> FloatArray:
    """Return the remaining times when the next iteration begins, under stash, merge and drop. `rest` are the times
    at the beginning of this iteration (..., n), which lasts until `end` (..., 1).

    `arrival` is when each worker's next gradient is finished. Write into `begun` which workers begin that gradient
    before the end, and into `included` which finish it.
    """
    np.less_equal(rest, end, out=begun)
    np.less_equal(arrival, end, out=included)
    rest = np.where(begun, arrival, rest)
    rest -= end + overhead
    return np.maximum(rest, 0.0, out=rest)


def counted(rest: FloatArray, last: FloatArray, drawn: FloatArray, beyond: Beyond, included: BoolArray) -> FloatArray:
    """Return the remaining times when the next iteration begins, under async, where the k-th gradient is finished at
    `last` (..., 1). Write into `included` which workers are in the sum: these workers begin new gradients that take
    `drawn` (..., n).
    """
    np.less_equal(rest, last, out=included)
    later = rest - (np.maximum(last, 0.0) + beyond.overhead - beyond.catch_up)
    return np.where(included, drawn, later)


def _ever(included: BoolArray) -> BoolArray:
    """Return whether a worker is ever in a sum (ks, n, 1): otherwise its stashed gradients enter no sum."""
    return np.asarray(np.any(included, axis=(0, 2))[:, :, None])


def _asynchronous(times: FloatArray, ks: IntArray, beyond: Beyond, phase: FloatArray, sizes: FloatArray) -> Process:
    """Simulate async. A worker in the sum waits for the end of the iteration; a gradient that is finished during the
    overhead arrives when the iteration begins.
    """
    steps, chains, n = times.shape
    rest = np.broadcast_to(phase * times[0], (len(ks), chains, n))
    length = np.zeros((len(ks), chains))
    included = np.empty((steps, *rest.shape), np.bool_)
    for step in range(steps):
        last = _kth(rest, ks, sizes)
        end = np.maximum(last, 0.0)
        if step >= BURN_IN:
            length += end[:, :, 0]
        rest = counted(rest, last, times[(step + 1) % steps], beyond, included[step])
    return Process(
        length=length / (steps - BURN_IN), counts=_counts(included[BURN_IN:], _since(included)[BURN_IN:], sizes)
    )


def _together(points: FloatArray, ks: IntArray, sizes: FloatArray) -> Process:
    """Simulate iterations that all workers begin together; `points` (steps, chains, gradients, n) are the times since
    the beginning at which workers finish gradients.
    """
    steps, chains, _, n = points.shape
    points = points.reshape(steps * chains, -1)
    most = n if _each_is_one(sizes) else points.shape[1]  # enough gradients for any k
    order = np.argsort(points, axis=1)[:, :most]
    points, worker = np.take_along_axis(points, order, axis=1), order % n
    weights = sizes[worker]
    before = np.cumsum(weights, axis=1) - weights
    first = np.searchsorted(ks, np.arange(ks[-1] + 1), side="right")  # index of the first k above each count
    first = first[np.minimum(before, ks[-1]).astype(np.int64)]
    entered = np.bincount((first * n + worker).ravel(), minlength=(len(ks) + 1) * n).reshape(-1, n)[:-1]
    counts = np.zeros((len(ks), n, AGES + 1))
    counts[:, :, 0] = np.cumsum(entered, axis=0) * sizes / len(points)
    last = [ks - 1] if _each_is_one(sizes) else [np.sum(first <= j, axis=1) - 1 for j in range(len(ks))]
    length = np.take_along_axis(points, np.stack(last, axis=-1).reshape(-1, len(ks)), axis=1)
    return Process(length=length.reshape(steps, chains, -1).mean(axis=0).T, counts=counts)


def _batches(times: FloatArray) -> FloatArray:
    """Return when each worker would finish its 1st, 2nd, ... gradient (steps, chains, gradients, n). Later gradients
    take the times of other steps."""
    return np.cumsum(np.stack([np.roll(times, later, axis=0) for later in range(PARTS)], axis=2), axis=2)


def _each_is_one(sizes: FloatArray) -> bool:
    """Return whether each worker represents only itself."""
    return bool(sizes.max() == 1)


def _kth(times: FloatArray, ks: IntArray, sizes: FloatArray) -> FloatArray:
    """Return for each k the time by which k workers have arrived (ks, chains, 1), from their times (ks, chains, n)."""
    if _each_is_one(sizes):
        return np.sort(times, axis=2)[np.arange(len(ks)), :, ks - 1, None]
    order = np.argsort(times, axis=2)
    fewer = np.cumsum(sizes[order], axis=2) < ks[:, None, None] - 1e-6
    last = np.take_along_axis(order, fewer.sum(axis=2, keepdims=True), axis=2)
    return np.take_along_axis(times, last, axis=2)


def _until(now: BoolArray, later: BoolArray) -> Ages:
    """Return the number of steps until a gradient of each step is in a sum (steps, ...), at most AGES: 0 in the steps
    `now`, else until the next of the steps `later`."""
    ages: Ages = np.empty(now.shape, np.int16)
    wait = np.full(now.shape[1:], AGES, np.int16)
    for step in reversed(range(len(now))):
        ages[step] = np.where(now[step], 0, wait)
        wait = np.where(later[step], np.int16(1), np.minimum(wait + 1, AGES, dtype=np.int16))
    return ages


def _since(included: BoolArray) -> Ages:
    """Return the age of the gradient that a worker would add in each step (steps, ...), at most AGES: the number of
    steps since the worker was `included` before."""
    ages: Ages = np.empty(included.shape, np.int16)
    age = np.full(included.shape[1:], AGES, np.int16)
    for step, there in enumerate(included):
        ages[step] = age
        age = np.where(there, np.int16(0), np.minimum(age + 1, AGES, dtype=np.int16))
    return ages


def _counts(made: BoolArray, ages: Ages, sizes: FloatArray) -> FloatArray:
    """Return the mean number of gradients in a sum by worker and age (ks, n, AGES + 1), from the steps in which
    gradients are `made` (steps, ks, chains, n) and their ages.

    The last AGES steps are left out, because the final ages of their gradients are unknown.
    """
    made, ages = made[:-AGES], ages[:-AGES]
    steps, ks, chains, n = made.shape
    bins = AGES + 2  # the first: not made
    key = (ages + 1) * made + (np.arange(ks)[:, None, None] * n + np.arange(n)) * bins
    counts = np.bincount(key.ravel(), minlength=ks * n * bins).reshape(ks, n, bins)
    return np.asarray(counts[:, :, 1:] * sizes[:, None] / (steps * chains))
