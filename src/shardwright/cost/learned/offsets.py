"""How far a whole GPU lies from what shapes alone predict: a Gaussian process over GPUs, methods and arithmetics.

A cell is what one source measured on one GPU in one arithmetic (or of one kind of operator). Its offset, the median of
log(physics / measured) minus the trees' prediction, is taken as a sum of independent effects of architecture, vendor,
method, power, the GPU itself and so on. For a GPU that was measured the offset is nearly its own; for others it is
borrowed from those that resemble it, and the variance says how far that may be off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.arrays import Floats
from shardwright.records import record
from shardwright.rounding import weighed

FIELDS = ("gpu", "architecture", "vendor", "kind", "method")
# Effects that cells share which agree in these fields; the last is smooth in the logarithm of watts per TFLOP/s.
EFFECTS = (
    (),
    ("kind",),
    ("architecture",),
    ("architecture", "kind"),
    ("vendor", "kind"),
    ("method",),
    ("method", "kind"),
    ("method", "architecture"),
    ("gpu",),
    ("gpu", "kind"),
    ("kind", "power"),
)
# Of log watts in the covariance of cells. Offsets are fitted with it: another value means fitting anew.
POWER_LENGTH = 2.0  # chosen: see above


@record(kw_only=False)
class Cells:
    """Descriptions of cells: `names` [C, 5] in the order of `FIELDS`, `log_watts` [C]."""

    names: NDArray[np.str_]
    log_watts: Floats


@record(kw_only=False)
class Offsets:
    """The process given the measured cells: `variances` of the effects [E], `weights` [C] and `inverse` [C, C] of the
    cells' covariance; `mean` is that of all offsets, `shape_deviation` what remains between shapes of a GPU that the
    trees never saw, as a standard deviation of log(time)."""

    cells: Cells
    variances: Floats
    mean: float
    weights: Floats
    inverse: Floats
    shape_deviation: float


def covariance(variances: Floats, cells: Cells, other: Cells) -> Floats:
    """Return the covariance of the offsets of two lists of cells, [C1, C2]."""
    same = cells.names[:, None, :] == other.names[None, :, :]
    near = np.exp(-0.5 * ((cells.log_watts[:, None] - other.log_watts[None, :]) / POWER_LENGTH) ** 2)
    total = np.zeros(near.shape)
    for variance, fields in zip(variances, EFFECTS, strict=True):
        effect = near if "power" in fields else np.ones_like(near)
        for field in fields:
            if field != "power":
                effect = effect * same[:, :, FIELDS.index(field)]
        total += variance * effect
    return total


def offset(offsets: Offsets, cells: Cells) -> tuple[Floats, Floats]:
    """Return the expected offset of cells and its variance, both [C]."""
    across = covariance(offsets.variances, cells, offsets.cells)
    expected = offsets.mean + weighed(across, offsets.weights)
    prior = np.diag(covariance(offsets.variances, cells, cells))
    variance = prior - np.einsum("ij,jk,ik->i", across, offsets.inverse, across)
    return expected, np.maximum(variance, 0.0)


def offsets_arrays(offsets: Offsets) -> dict[str, NDArray[Any]]:
    """Return the arrays that hold offsets in an .npz file."""
    return {
        "names": offsets.cells.names,
        "log_watts": offsets.cells.log_watts,
        "variances": offsets.variances,
        "mean": np.array(offsets.mean),
        "weights": offsets.weights,
        "inverse": offsets.inverse.astype(np.float32),
        "shape_deviation": np.array(offsets.shape_deviation),
    }


def offsets_from(arrays: dict[str, NDArray[Any]]) -> Offsets:
    """Return the offsets of arrays that `offsets_arrays` made."""
    return Offsets(
        cells=Cells(arrays["names"], arrays["log_watts"]),
        variances=arrays["variances"],
        mean=float(arrays["mean"]),
        weights=arrays["weights"],
        inverse=arrays["inverse"].astype(float),
        shape_deviation=float(arrays["shape_deviation"]),
    )
