"""The fitted models that ship with the package, each a forest and the offsets of the GPUs, read on first use."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.arrays import Floats
from shardwright.cost.learned.machine import Facts
from shardwright.cost.learned.offsets import Cells, Offsets, offset, offsets_arrays, offsets_from
from shardwright.files import shipped_file
from shardwright.records import record

GEMM, ATTENTION, MEMORY = FAMILIES = ("gemm", "attention", "memory")


@record(kw_only=False)
class Fitted:
    """One family: log(physics / time) = forest(columns) + offset(GPU), kept within `limits`."""

    forest: Forest
    offsets: Offsets
    limits: tuple[float, float]


def cell(machine: Facts, kind: str) -> Cells:
    """Return the description of one GPU's cell."""
    names = np.array([[machine.gpu, machine.architecture, machine.vendor, kind, machine.method]])
    return Cells(names, np.array([np.log(machine.watts_per_teraflops)]))


def expected_offset(fitted: Fitted, machine: Facts, kind: str) -> float:
    """Return the offset of one GPU, as its method measures."""
    (expected,), _ = offset(fitted.offsets, cell(machine, kind))
    return float(expected)


def log_efficiency(fitted: Fitted, expected: float, columns: Floats) -> Floats:
    """Return log(physics / time) of rows of columns on a GPU with the `expected` offset, [R]."""
    return np.clip(forest_sum(fitted.forest, columns) + expected, *fitted.limits)


def pack(fitted: Fitted) -> bytes:
    """Return the content of the .npz file of a family. Equal models give equal bytes."""
    arrays = {**forest_arrays(fitted.forest), **offsets_arrays(fitted.offsets), "limits": np.array(fitted.limits)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack(content: bytes) -> Fitted:
    """Return the family of an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays: dict[str, NDArray[Any]] = dict(archive)
    low, high = arrays["limits"]
    return Fitted(forest_from(arrays), offsets_from(arrays), (float(low), float(high)))


@cache
def shipped(family: str) -> Fitted:
    """Return a family as it ships."""
    return unpack(shipped_file("shardwright.cost.learned", f"{family}.npz"))


CHUNK = 1 << 14  # comparisons at a time: they and their indices stay in cache; numeric


@record(kw_only=False)
class Forest:
    """T trees of one depth D, each a full binary tree in level order: node i has the children 2i + 1 (the column is
    below the threshold) and 2i + 2. `feature` and `threshold` are [T, 2^D - 1], `leaf` is [T, 2^D]. Branches that end
    early are filled up with copies of their leaf. Single precision, as the trees were grown in it."""

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]
    bias: float

    @property
    def depth(self) -> int:
        return int(self.leaf.shape[1]).bit_length() - 1


def forest_sum(forest: Forest, columns: Floats) -> Floats:
    """Return the bias plus the sum over trees of the leaf that each row of `columns` [R, F] falls into, [R]."""
    trees, inner = forest.feature.shape
    values = columns.astype(np.float32)
    total = np.empty(len(values))
    feature, threshold, leaf = forest.feature.ravel(), forest.threshold.ravel(), forest.leaf.ravel()
    roots, first_leaves = np.arange(trees) * inner, np.arange(trees) - inner
    step = max(1, CHUNK // trees)
    for begin in range(0, len(values), step):
        rows = values[begin : begin + step]
        flat, start = rows.ravel(), (np.arange(len(rows)) * rows.shape[1])[:, None]
        node = np.broadcast_to(roots, (len(rows), trees))  # counted through all trees
        for _ in range(forest.depth):
            right = flat.take(start + feature.take(node)) >= threshold.take(node)
            node = 2 * node + (1 - roots) + right
        total[begin : begin + step] = leaf.take(node + first_leaves).sum(axis=1, dtype=np.float64)
    return np.asarray(total + forest.bias)


def forest_arrays(forest: Forest) -> dict[str, NDArray[Any]]:
    """Return the arrays that hold a forest in an .npz file."""
    return {
        "feature": forest.feature.astype(np.uint8),
        "threshold": forest.threshold,
        "leaf": forest.leaf,
        "bias": np.array(forest.bias),
    }


def forest_from(arrays: dict[str, NDArray[Any]]) -> Forest:
    """Return the forest of arrays that `forest_arrays` made."""
    return Forest(
        feature=arrays["feature"].astype(np.int32),
        threshold=arrays["threshold"].astype(np.float32),
        leaf=arrays["leaf"].astype(np.float32),
        bias=float(arrays["bias"]),
    )
