"""Iterations as they were measured: times aligned by iteration, with unknown ones filled in.

Pure functions of arrays; the draws are fixed.
"""

import numpy as np
from numpy.typing import NDArray

from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.estimate.poisson import TIE, drawn_beyond

SEED = 1

EQUAL = 1e-6
"""Random events that break ties between equal counts."""


def align(values: FloatArray, iterations: NDArray[np.int64]) -> FloatArray:
    """Return the latest iterations, oldest first, in as many columns as `values` (n, window) has; NaN where unknown.

    `iterations` (n, window): the iteration of each value, ascending, 0 for none. Older iterations are left out.
    """
    window = values.shape[1]
    place = iterations - int(iterations.max(initial=0)) + window - 1
    row, column = np.nonzero((place >= 0) & (iterations > 0))
    aligned = np.full(values.shape, np.nan)
    aligned[row, place[row, column]] = values[row, column]
    return aligned


def filled(rows: FloatArray, values: FloatArray, rates: FloatArray) -> FloatArray:
    """Rows (n, iterations) without gaps: each becomes any of its worker's `values` (n, window), which are `completed`.

    Where there is none, it becomes a Poisson count of the worker's of `rates` (n,).
    """
    random = np.random.default_rng(SEED)
    row, column = np.nonzero(np.isnan(rows))
    if not row.size:
        return rows
    ordered = np.sort(values[row], axis=1)  # unknown ones last
    known = np.sum(~np.isnan(ordered), axis=1)
    any_ = ordered[np.arange(len(row)), (random.random(len(row)) * known).astype(np.int64)]
    made = rows.copy()
    made[row, column] = np.where(known > 0, any_, random.poisson(rates[row]))
    return made


def completed(counts: FloatArray, cut: BoolArray, rates: FloatArray) -> FloatArray:
    """Counts (n, window) in units of tau in which each lower bound, marked by `cut`, is drawn; NaN stays.

    It becomes any count of its worker beyond it: Kaplan and Meier's distribution, which redistributes mass to the right
    (B. Efron, The two sample problem with censored data, 1967). Where there is none, it is drawn from the tail of the
    fitted Poisson distribution, `rates` (n,).
    """
    if not cut.any():
        return counts
    random = np.random.default_rng(SEED)
    ties = EQUAL * random.uniform(-1.0, 1.0, counts.shape)
    order = np.argsort(np.where(np.isnan(counts), -1.0, counts + ties), axis=1)[:, ::-1]  # the largest first
    values, bounds = np.take_along_axis(counts, order, axis=1), np.take_along_axis(cut, order, axis=1)
    last = np.flatnonzero(bounds[:, 0])
    beyond = drawn_beyond(values[last, 0] + TIE, np.maximum(rates[last], 1e-9), random.random(len(last)))
    values[last, 0] = np.maximum(beyond, values[last, 0])
    row, share = np.arange(len(counts)), random.random(counts.shape)
    for at in range(1, counts.shape[1]):
        larger = values[row, (share[:, at] * at).astype(np.int64)]
        values[:, at] = np.where(bounds[:, at], larger, values[:, at])
    made = np.empty(counts.shape)
    np.put_along_axis(made, order, values, axis=1)
    return made
