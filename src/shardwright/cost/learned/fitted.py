"""The fitted models that ship with the package, each a forest and the offsets of the GPUs, read on first use."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.arrays import Floats
from shardwright.cost.learned.machine import Facts
from shardwright.cost.learned.offsets import Cells, Offsets, offset, offsets_arrays, offsets_from
from shardwright.cost.learned.trees import Forest, forest_arrays, forest_from, forest_sum
from shardwright.files import shipped_file

GEMM, ATTENTION, MEMORY = FAMILIES = ("gemm", "attention", "memory")


@dataclass(frozen=True, slots=True)
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
