"""Which rows a fit sees and how much each counts: no source and no GPU drowns the others."""

from __future__ import annotations

import numpy as np
from tools.refit.rows import OperatorRows

from shardwright.arrays import Array, Floats, Ints

TRAINING_SHARE = 0.75
SEED = 0


def cell_codes(rows: OperatorRows) -> tuple[Array, Ints]:
    """Return the distinct cells (GPU, method, precision, block, kind) as strings, and each row's place among them."""
    block = np.where(rows.block, "block", "")
    names = rows.gpu
    for part in (rows.method, rows.precision, block, rows.kind):
        names = np.char.add(np.char.add(names, "|"), part)
    cells, codes = np.unique(names, return_inverse=True)
    return cells, codes


def sample(rows: OperatorRows, limit: int) -> OperatorRows:
    """Return at most `limit` rows of each cell, of which three in four have the sizes of training where there are so
    many; the same rows each time."""
    _, codes = cell_codes(rows)
    draw = np.random.default_rng(SEED).random(len(rows))
    chosen = []
    for code in range(codes.max() + 1):
        of_cell = np.flatnonzero(codes == code)
        of_cell = of_cell[np.argsort(draw[of_cell], kind="stable")]
        training, other = of_cell[rows.training[of_cell]], of_cell[~rows.training[of_cell]]
        fewer = min(len(training), int(TRAINING_SHARE * limit))
        chosen += [training[:fewer], other[: min(limit - fewer, int((1.0 - TRAINING_SHARE) * limit))]]
    return rows.take(np.sort(np.concatenate(chosen)))


def weights(rows: OperatorRows) -> Floats:
    """Return the weight of each row: cells count by the root of their rows, sizes as in training more than others."""
    _, codes = cell_codes(rows)
    weight = np.where(rows.training, 1.0, 0.4) / np.sqrt(np.bincount(codes)[codes])
    return np.asarray(weight / weight.mean())
