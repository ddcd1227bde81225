"""Fits the offsets of cells: the variances of their effects, and the process given the measured offsets."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.learned.offsets import EFFECTS, Cells, Offsets, covariance

NOISE = 0.06  # of a cell's offset with many rows, as a standard deviation
FEW_ROWS = 20.0
PRIOR_LOG_VARIANCE, PRIOR_SPREAD = -5.0, 1.0  # weak belief that each effect is of some 8 %


def noise(counts: Floats) -> Floats:
    """Return the variance of the error of each cell's offset, [C]."""
    return NOISE**2 * (1.0 + FEW_ROWS / np.minimum(counts, 100.0))


def fit_variances(cells: Cells, medians: Floats, counts: Floats) -> Floats:
    """Return the variances of the effects at which the measured offsets `medians` [C] are likeliest."""
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    terms = np.stack([covariance(row, cells, cells) for row in np.eye(len(EFFECTS))])
    error, centred = np.diag(noise(counts)), medians - medians.mean()

    def loss(logs: Floats) -> tuple[float, Floats]:
        variances = np.exp(logs)
        inverse = np.linalg.inv(np.tensordot(variances, terms, 1) + error)
        weight = inverse @ centred
        _, logdet = np.linalg.slogdet(inverse)
        belief = (logs - PRIOR_LOG_VARIANCE) / PRIOR_SPREAD
        value = 0.5 * (centred @ weight - logdet + belief @ belief)
        slope = (
            0.5 * variances * (np.einsum("ij,eji->e", inverse, terms) - np.einsum("i,eij,j->e", weight, terms, weight))
        )
        return value, slope + belief / PRIOR_SPREAD

    start = np.full(len(EFFECTS), PRIOR_LOG_VARIANCE)
    return np.asarray(np.exp(minimize(loss, start, jac=True, method="L-BFGS-B").x))


def fit_offsets(cells: Cells, medians: Floats, counts: Floats, shape_deviation: float) -> Offsets:
    """Return the process given the offsets `medians` of cells with so many rows each."""
    variances = fit_variances(cells, medians, counts)
    inverse = np.asarray(np.linalg.inv(covariance(variances, cells, cells) + np.diag(noise(counts))), dtype=float)
    mean = float(medians.mean())
    return Offsets(
        cells=cells,
        variances=variances,
        mean=mean,
        weights=inverse @ (medians - mean),
        inverse=inverse,
        shape_deviation=shape_deviation,
    )
