"""How good the fits are on what they have not seen: rows left out at random, and whole GPUs left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from tools.refit.operators import FitTable, fit

from shardwright.arrays import Bools, Floats
from shardwright.cost.learned.fitted import Fitted, forest_sum
from shardwright.cost.learned.offsets import offset

TEST_SHARE = 0.2
SEED = 1
CALIBRATION_SHAPES = 30
FEWEST_ROWS = 20
CURVE_GPUS, CURVE_DRAWS = (4, 8, 16, 24), 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Median absolute error of time, as a share, over rows with sizes of training: of one GPU that was left out, of
    the same after one factor from 30 measured shapes, and the part of the error that is one factor (log)."""

    gpu: str
    rows: int
    error: float
    calibrated_error: float
    bias: float


def some(rows: FitTable, chosen: Bools) -> FitTable:
    """Return the chosen rows; the list of cells stays whole."""
    parts = {name: getattr(rows, name)[chosen] for name in ("columns", "target", "weight", "cell", "training")}
    return replace(rows, **parts)


def predicted(model: Fitted, rows: FitTable) -> Floats:
    """Return log(physics / time) as the model has it for each row, by the method of its source, [R]."""
    of_cell, _ = offset(model.offsets, rows.cells)
    return np.clip(forest_sum(model.forest, rows.columns) + of_cell[rows.cell], *model.limits)


def median_error(log_ratio: Floats) -> float:
    """Return the median of |predicted time / measured time - 1| given the logarithm of the ratio."""
    return float(np.median(np.abs(np.expm1(log_ratio)))) if len(log_ratio) else float("nan")


def random_error(family: str, rows: FitTable) -> tuple[float, float]:
    """Return the median error on a fifth of the rows, left out at random: of all sizes, and of those of training."""
    test = np.random.default_rng(SEED).random(len(rows.target)) < TEST_SHARE
    model = fit(family, some(rows, ~test))
    held = some(rows, test)
    ratio = held.target - predicted(model, held)
    return median_error(ratio), median_error(ratio[held.training])


def gpu_of_rows(rows: FitTable) -> Floats:
    """Return the name of the GPU of each row, [R]."""
    return np.asarray(rows.cells.names[:, 0][rows.cell])


def left_out(family: str, rows: FitTable) -> list[LeftOut]:
    """Return the errors on each GPU when the model is fitted to the other GPUs alone."""
    names = gpu_of_rows(rows)
    scores = []
    for gpu in np.unique(names):
        test = names == gpu
        if (test & rows.training).sum() < FEWEST_ROWS:
            continue
        model = fit(family, some(rows, ~test))
        held = some(rows, test & rows.training)
        ratio = held.target - predicted(model, held)
        draw = np.random.default_rng(SEED).permutation(len(ratio))[:CALIBRATION_SHAPES]
        factor = float(np.median(ratio[draw]))
        rest = np.delete(ratio, draw) if len(ratio) > 2 * CALIBRATION_SHAPES else ratio
        scores.append(
            LeftOut(
                gpu=str(gpu),
                rows=len(ratio),
                error=median_error(ratio),
                calibrated_error=median_error(rest - factor),
                bias=float(np.median(ratio)),
            )
        )
    return scores


def learning_curve(family: str, rows: FitTable) -> list[tuple[int, float]]:
    """Return numbers of GPUs to fit to, and the median error on a GPU that was not among them: averaged over GPUs and
    over three draws."""
    names = gpu_of_rows(rows)
    random = np.random.default_rng(SEED)
    every = [gpu for gpu in np.unique(names) if (rows.training & (names == gpu)).sum() >= FEWEST_ROWS]
    curve = []
    for count in CURVE_GPUS:
        if count >= len(every):
            break
        errors = []
        for _ in range(CURVE_DRAWS):
            seen = random.permutation(every)[:count]
            model = fit(family, some(rows, np.isin(names, seen)))
            for gpu in every:
                if gpu not in seen:
                    held = some(rows, (names == gpu) & rows.training)
                    errors.append(median_error(held.target - predicted(model, held)))
        curve.append((count, float(np.mean(errors))))
    return curve
