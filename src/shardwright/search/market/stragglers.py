"""Layer times on other numbers of machines: more of them wait longer for the slowest."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.cost.context import LayerRows
from shardwright.cost.layers.table import LayerTable


def strained(shards: LayerRows, strain: Floats) -> LayerRows:
    """Return the rows of a layer table with times lengthened by `strain` [N], each distinct pair once."""
    levels, level = np.unique(strain, return_inverse=True)
    pairs, row = np.unique(shards.row * len(levels) + level, return_inverse=True)
    return LayerRows(table=lengthened(shards.table, pairs // len(levels), levels[pairs % len(levels)]), row=row)


def lengthened(table: LayerTable, rows: Ints, factor: Floats) -> LayerTable:
    """Return rows of a layer table with their times multiplied by `factor`, one for each row."""
    return table.take(rows).scaled(factor)
