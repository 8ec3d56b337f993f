"""Aligns the workers' times by iteration, and fills in unknown times.

Pure functions of arrays; the draws are fixed.
"""

import numpy as np
from numpy.typing import NDArray

from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.poisson import TIE, drawn_beyond

SEED = 1

EQUAL = 1e-6
"""Largest random change of a count, in events, that breaks ties between equal counts."""


def align(values: FloatArray, iterations: NDArray[np.int64]) -> FloatArray:
    """Return the values of the latest iterations, one iteration a column, oldest first; NaN where unknown.

    `iterations` (n, window): the iteration of each of the `values` (n, window), ascending, 0 for none. The result has
    the shape of `values`; it leaves out older iterations.
    """
    window = values.shape[1]
    place = iterations - int(iterations.max(initial=0)) + window - 1
    row, column = np.nonzero((place >= 0) & (iterations > 0))
    aligned = np.full(values.shape, np.nan)
    aligned[row, place[row, column]] = values[row, column]
    return aligned


def filled(rows: FloatArray, values: FloatArray, rates: FloatArray) -> FloatArray:
    """Return the rows (n, iterations) without gaps: each gap becomes a random value of its worker in `values` (n,
    window), in which no lower bounds are left (`completed`).

    If the worker has no value, the gap becomes a Poisson count of the worker's rate in `rates` (n,).
    """
    random = np.random.default_rng(SEED)
    row, column = np.nonzero(np.isnan(rows))
    if not row.size:
        return rows
    ordered = np.sort(values[row], axis=1)  # unknown values last
    known = np.sum(~np.isnan(ordered), axis=1)
    any_ = ordered[np.arange(len(row)), (random.random(len(row)) * known).astype(np.int64)]
    made = rows.copy()
    made[row, column] = np.where(known > 0, any_, random.poisson(rates[row]))
    return made


def completed(counts: FloatArray, cut: BoolArray, rates: FloatArray) -> FloatArray:
    """Return the counts (n, window), in units of tau, with a drawn count in place of each lower bound; NaN stays.

    `cut` marks the lower bounds. Each bound becomes a random larger count of its worker: Kaplan and Meier's
    distribution, which redistributes mass to the right (B. Efron, The two sample problem with censored data, 1967). If
    no count is larger, the count is drawn from the tail of the fitted Poisson distribution, `rates` (n,).
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
