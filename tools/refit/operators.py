"""Fits a family of operators: boosted trees over shapes, and an offset for each GPU, source and arithmetic.

Trees and offsets are fitted in turns, since sources measured different shapes: offsets as medians of what the trees
leave, trees to what the offsets leave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
from tools.refit.effects import fit_offsets
from tools.refit.rows import SUSTAINED, OperatorRows
from tools.refit.sampling import cell_codes, weights

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.learned.features import COLUMNS
from shardwright.cost.learned.fitted import Fitted, Forest
from shardwright.cost.learned.machine import facts, sustained
from shardwright.cost.learned.offsets import Cells
from shardwright.spec.catalog.gpus import gpus

# Standard deviation of log(time) between the shapes of a GPU that was left out, around its own offset.
SHAPE_DEVIATION = {"gemm": 0.12, "attention": 0.10, "memory": 0.15}
TURNS, EARLY_ROUNDS = 3, 60
LIMIT_QUANTILES = (0.002, 0.998)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How trees are grown."""

    rounds: int
    depth: int
    rate: float = 0.1


GROWTH = {
    "gemm": Growth(rounds=300, depth=8, rate=0.15),
    "attention": Growth(rounds=250, depth=8, rate=0.15),
    "memory": Growth(rounds=60, depth=4),
}


@dataclass(frozen=True, slots=True)
class FitTable:
    """Rows ready to fit: columns [R, F], `target` log(physics / measured) [R], `weight` [R], the cell of each row, the
    description of the cells, and which rows have the sizes of training."""

    columns: Floats
    target: Floats
    weight: Floats
    cell: Ints
    cells: Cells
    training: Bools


def table(family: str, rows: OperatorRows) -> FitTable:
    """Return the table of a family's rows. GPUs that the catalogue lacks are an error of the caller."""
    names, codes = cell_codes(rows)
    columns: Floats | None = None
    seconds = np.empty(len(rows))
    described, watts = [], []
    for code in range(len(names)):
        of_cell = np.flatnonzero(codes == code)
        first = rows.take(of_cell[:1])
        method = str(first.method[0])
        machine = facts(gpus()[str(first.gpu[0])], _precision(first), block=bool(first.block[0]), method=method)
        if family == "gemm" and method in SUSTAINED:
            machine = sustained(machine)
        computed = COLUMNS[family](machine, rows.take(of_cell).shapes)
        columns = np.empty((len(rows), computed.values.shape[1])) if columns is None else columns
        columns[of_cell], seconds[of_cell] = computed.values, computed.seconds
        kind = str(first.kind[0]) or machine.arithmetic
        described.append((machine.gpu, machine.architecture, machine.vendor, kind, method))
        watts.append(np.log(machine.watts_per_teraflops))
    assert columns is not None
    return FitTable(
        columns=columns,
        target=np.log(seconds / rows.best_seconds),
        weight=weights(rows),
        cell=codes,
        cells=Cells(np.array(described), np.array(watts)),
        training=rows.training,
    )


def _precision(row: OperatorRows) -> str:
    """Return the precision of a cell; 16-bit formats that a GPU lacks stand for each other, and so do its peaks."""
    precision, able = str(row.precision[0]), dict(gpus()[str(row.gpu[0])].peak_flops)
    other = {"bf16": "fp16", "fp16": "bf16"}.get(precision, precision)
    return precision if precision in able else other


def cell_medians(values: Floats, rows: FitTable, cells: int) -> Floats:
    """Return the median of each cell's rows (those with sizes of training where it has ten), [C]."""
    medians = np.full(cells, np.nan)
    for cell in np.unique(rows.cell):
        mine = rows.cell == cell
        chosen = mine & rows.training if (mine & rows.training).sum() >= 10 else mine
        medians[cell] = np.median(values[chosen])
    return medians


def fit(family: str, rows: FitTable) -> Fitted:
    """Return the family fitted to the rows; cells without rows have no say."""
    growth, present = GROWTH[family], np.unique(rows.cell)
    total = len(rows.cells.log_watts)
    medians = cell_medians(rows.target, rows, total)
    for turn in range(TURNS):
        rounds = growth.rounds if turn == TURNS - 1 else min(EARLY_ROUNDS, growth.rounds)
        booster = grow(rows, rows.target - medians[rows.cell], replace(growth, rounds=rounds))
        rest = rows.target - predict(booster, rows.columns)
        medians = cell_medians(rest, rows, total)
    cells = Cells(rows.cells.names[present], rows.cells.log_watts[present])
    counts = np.bincount(rows.cell, minlength=total)[present].astype(float)
    low, high = np.quantile(rows.target, LIMIT_QUANTILES)
    offsets = fit_offsets(cells, medians[present], counts, SHAPE_DEVIATION[family])
    return Fitted(forest_of(booster, growth.depth), offsets, (float(low), float(high)))


def grow(rows: FitTable, target: Floats, growth: Growth):  # type: ignore[no-untyped-def]
    """Return a booster grown on the columns. One thread, so that equal rows give equal trees."""
    import xgboost

    settings = {
        "tree_method": "hist",
        "max_depth": growth.depth,
        "eta": growth.rate,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "min_child_weight": 1.0,
        "nthread": 1,
        "seed": 0,
        "base_score": 0.0,
    }
    data = xgboost.DMatrix(rows.columns.astype(np.float32), target, weight=rows.weight)
    return xgboost.train(settings, data, growth.rounds)


def predict(booster, columns: Floats) -> Floats:  # type: ignore[no-untyped-def]
    """Return the booster's own prediction, [R]."""
    import xgboost

    return np.asarray(booster.predict(xgboost.DMatrix(columns.astype(np.float32))), dtype=float)


def forest_of(booster, depth: int) -> Forest:  # type: ignore[no-untyped-def]
    """Return a booster's trees as a forest whose trees all have `depth`."""
    model = json.loads(bytes(booster.save_raw("json")))["learner"]
    trees = model["gradient_booster"]["model"]["trees"]
    inner = 2**depth - 1
    feature = np.zeros((len(trees), inner), dtype=np.int32)
    threshold = np.full((len(trees), inner), np.inf, dtype=np.float32)
    leaf = np.zeros((len(trees), inner + 1), dtype=np.float32)
    for at, tree in enumerate(trees):
        left, right = tree["left_children"], tree["right_children"]
        places = [(0, 0)]
        while places:
            node, place = places.pop()
            if place >= inner:
                leaf[at, place - inner] = tree["split_conditions"][node]
            elif left[node] < 0:
                places += [(node, 2 * place + 1), (node, 2 * place + 2)]
            else:
                feature[at, place] = tree["split_indices"][node]
                threshold[at, place] = tree["split_conditions"][node]
                places += [(left[node], 2 * place + 1), (right[node], 2 * place + 2)]
    bias = float(model["learner_model_param"]["base_score"].strip("[]"))
    return Forest(feature, threshold, leaf, bias)
