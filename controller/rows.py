"""Whole iterations, to draw from: what is not known of one is filled in from each worker's own distribution.

Pure functions of arrays; the draws are fixed.
"""

import numpy as np

from controller.aligned import Aligned
from controller.measure import BoolArray, FloatArray
from controller.poisson import imputed

SEED = 1


def filled(rows: Aligned, counts: FloatArray, cut: BoolArray, rates: FloatArray) -> FloatArray:
    """Rows' counts (n, iterations) without gaps, all in units of tau; the draws are fixed.

    `counts` (n, window) are the workers' latest, aligned or not. A gap becomes any of its worker's, a lower bound any
    beyond it; where there is none it is drawn from the fitted Poisson distribution's tail, `rates` (n,).
    """
    random = np.random.default_rng(SEED)
    known = completed(counts, cut, rates, random)
    bounds = np.where(rows.cut, rows.values, -1.0)  # of a gap: none
    least = np.sum(known[:, None, :] <= bounds[:, :, None], axis=2)
    chosen = least + (random.random(bounds.shape) * (known.shape[1] - least)).astype(np.int64)
    inside = np.take_along_axis(known, np.minimum(chosen, known.shape[1] - 1), axis=1)
    beyond = _beyond(bounds, rows.cut, rates, random)
    drawn = np.where(least < known.shape[1], inside, beyond)
    return np.where(rows.cut | np.isnan(rows.values), drawn, rows.values)


def completed(counts: FloatArray, cut: BoolArray, rates: FloatArray, random: np.random.Generator) -> FloatArray:
    """Counts (n, window), each row ascending, of which lower bounds and gaps are drawn.

    A lower bound becomes any count of its worker beyond it: Kaplan and Meier's distribution, which redistributes mass
    to the right (B. Efron, The two sample problem with censored data, 1967).
    """
    order = np.argsort(np.where(np.isnan(counts), -1.0, counts), axis=1, kind="stable")[:, ::-1]  # gaps come last
    values, cut = np.take_along_axis(counts, order, axis=1), np.take_along_axis(cut, order, axis=1)
    values[:, 0] = np.where(cut[:, 0], _beyond(values[:, :1], cut[:, :1], rates, random)[:, 0], values[:, 0])
    row, share = np.arange(len(counts)), random.random(counts.shape)
    for at in range(1, counts.shape[1]):
        values[:, at] = np.where(cut[:, at], values[row, (share[:, at] * at).astype(np.int64)], values[:, at])
    known = np.sum(~np.isnan(values), axis=1, keepdims=True)
    any_ = np.take_along_axis(values, (share * known).astype(np.int64), axis=1)
    any_ = np.where(known > 0, any_, random.poisson(rates[:, None], counts.shape))
    return np.sort(np.where(np.isnan(values), any_, values), axis=1)


def _beyond(bounds: FloatArray, cut: BoolArray, rates: FloatArray, random: np.random.Generator) -> FloatArray:
    """A count for each lower bound of (n, any): normal, with the moments of the Poisson tail."""
    mean, variance = imputed(bounds, cut, rates)
    return np.maximum(mean + np.sqrt(variance) * random.standard_normal(bounds.shape), bounds)
