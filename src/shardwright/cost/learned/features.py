"""Columns of each family of operators, and the time that physics alone gives: what the trees correct.

`shapes` are rows of operators on one GPU. The columns are ratios (waves, fill of tiles, intensity over ridge, bytes
over cache) and logarithms of sizes; the GPU enters through them alone, so that what is learned on one carries over to
another.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.compute.operator_table import BACKWARD
from shardwright.cost.learned.machine import FP8_BLOCK, VECTOR, Facts, generation, method_code, power_share
from shardwright.records import record

# The constants of this file shape the physics under the trees, which are fitted to what it leaves: another value means
# fitting anew (`python -m tools.refit operators`), and what it moves is the error of that fit.

# Output tiles (rows, columns) of thread blocks, those of cuBLAS (NVIDIA, Matrix Multiplication Background User's Guide)
# and smaller ones; small tiles reload operands more often, which costs speed.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64))  # documented
TILE_RELOAD = 12.0  # weight of reloading, which goes with 1 / rows + 1 / columns; chosen: see above
TILE_OVERHEAD = 64.0  # inner steps spent on prologue and epilogue of a tile; chosen: see above
SOFT_MAXIMUM = 4.0  # exponent by which arithmetic and traffic are joined; chosen: see above
KERNEL_SECONDS = 2e-6  # launch and tail in a full stream; chosen: see above
ATTENTION_TILE = 128.0  # documented: the larger block of FlashAttention-2 (arXiv 2307.08691 §3.3)
EXPONENTIAL_OVERLAP = 2.0  # exponent by which products and exponentials are joined; chosen: see above
MEMORY_KERNEL_SECONDS = 3e-6  # the same of what only moves memory; chosen: see above
ALIGNED = 256  # numeric


@record
class Shapes:
    """Operators of one family as columns [R], as in `cost.compute.operator_table.OperatorTable`."""

    m: Floats
    n: Floats
    k: Floats
    groups: Floats
    flops: Floats
    bytes: Floats
    form: Array
    direction: Array


@record(kw_only=False)
class FeatureColumns:
    """The `seconds` that physics gives, of which `compute` are bound by arithmetic [R], and the columns [R, F]."""

    seconds: Floats
    compute: Floats
    values: Floats


def gemm_columns(machine: Facts, shapes: Shapes) -> FeatureColumns:
    """Return the columns of matrix products.

    Compute time is that of the best tile shape: whole tiles, waves over the multiprocessors of which half a partial
    one's idle time is saved by splitting the inner dimension. It and the compulsory traffic are joined by a soft
    maximum, (a^4 + b^4)^(1/4). Quantising the operands of fp8 is not part of the product.
    """
    m, n, k = (np.ceil(np.maximum(size, 1.0)) for size in (shapes.m, shapes.n, shapes.k))
    groups = np.ceil(np.maximum(shapes.groups, 1.0))
    element, units = machine.element_bytes, float(machine.multiprocessors)
    rate = machine.flops_per_second * power_share(machine)
    plain = 2.0 * m * n * k * groups
    compute = np.min([_tiled_flops(tile, m, n, k, groups, units) for tile in TILES], axis=0) / rate
    size = groups * (element * (m * k + k * n) + max(element, 2.0) * m * n)
    traffic = size / machine.bytes_per_second
    joined = (compute**SOFT_MAXIMUM + traffic**SOFT_MAXIMUM) ** (1.0 / SOFT_MAXIMUM)
    seconds = joined + KERNEL_SECONDS
    tiles = np.ceil(m / 128) * np.ceil(n / 128) * groups / units
    values = (
        *(np.log(compute), np.log(traffic), np.log(plain / rate / traffic), np.log(compute * rate / plain)),
        *(_wave(256, 128, m, n, groups, units), tiles / np.ceil(tiles), _wave(64, 64, m, n, groups, units)),
        *(np.log(tiles), m / (np.ceil(m / 128) * 128), n / (np.ceil(n / 128) * 128)),
        *(np.log(k), np.log(m), np.log(n), np.log(groups), np.log(np.minimum(m, n))),
        *(_alignment(k), _alignment(n), _alignment(m)),
        *(np.log(size / machine.l2_bytes), np.log(element * n * k * groups / machine.l2_bytes)),
        np.full_like(m, element),
        *(np.full_like(m, machine.arithmetic == FP8_BLOCK), np.full_like(m, machine.arithmetic == VECTOR)),
        *(np.full_like(m, generation(machine)), np.full_like(m, method_code(machine))),
    )
    return FeatureColumns(seconds, compute, np.stack(values, axis=1))


def _tiled_flops(tile: tuple[int, int], m: Floats, n: Floats, k: Floats, groups: Floats, units: float) -> Floats:
    """Return the FLOPs for which the multiprocessors are busy with tiles of this shape, at the largest tile's rate."""
    rows, columns = tile
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * groups
    occupied = 0.5 * (np.ceil(tiles / units) * units + tiles)
    reload = (1.0 + TILE_RELOAD * (1.0 / rows + 1.0 / columns)) / (1.0 + TILE_RELOAD * (1.0 / 256 + 1.0 / 128))
    return np.asarray(occupied * 2.0 * rows * columns * (k + TILE_OVERHEAD) * reload)


def _wave(rows: int, columns: int, m: Floats, n: Floats, groups: Floats, units: float) -> Floats:
    """Return the fill of the waves that tiles of this shape make."""
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * groups / units
    return np.asarray(tiles / np.ceil(tiles))


def _alignment(size: Floats) -> Floats:
    """Return the binary logarithm of the largest power of two, up to 256, that divides a size."""
    whole = size.astype(np.int64) | ALIGNED
    _, exponent = np.frexp((whole & -whole).astype(float))
    return np.asarray(exponent - 1.0)


def attention_columns(machine: Facts, shapes: Shapes) -> FeatureColumns:
    """Return the columns of fused attention: m query tokens, spans of n keys, head dimension k, `groups` heads.

    Compute time joins that of the matrix products with that of one exponential for each of the scores, on units that
    have grown less than the tensor cores.
    """
    tokens, span, dim = np.maximum(shapes.m, 1.0), np.maximum(shapes.n, 1.0), np.maximum(shapes.k, 1.0)
    heads = np.maximum(shapes.groups, 1.0)
    products = np.maximum(shapes.flops, 1.0) / machine.flops_per_second
    per_score = np.where(shapes.direction == BACKWARD, 10.0, 4.0) * dim
    exponentials = np.maximum(shapes.flops, 1.0) / per_score / machine.exponentials_per_second
    compute = (products**EXPONENTIAL_OVERLAP + exponentials**EXPONENTIAL_OVERLAP) ** (1.0 / EXPONENTIAL_OVERLAP)
    traffic = np.maximum(shapes.bytes, 1.0) / machine.bytes_per_second
    joined = (compute**SOFT_MAXIMUM + traffic**SOFT_MAXIMUM) ** (1.0 / SOFT_MAXIMUM)
    tiles = tokens * heads / ATTENTION_TILE / machine.multiprocessors
    values = (
        *(np.log(compute), np.log(traffic), np.log(compute / traffic), dim, np.log(span), np.log(tokens / span)),
        *(np.log(heads), np.log(tiles), tiles / np.ceil(tiles)),
        *(np.log(np.maximum(shapes.bytes, 1.0) / machine.l2_bytes), np.log(tokens)),
        # The share of all pairs that is computed (causal: half), and keys and values against queries and outputs.
        *(shapes.flops / (tokens * span * dim * heads), shapes.bytes / (tokens * dim * heads), shapes.direction),
        *(np.log(exponentials / products), np.full_like(dim, generation(machine))),
        np.full_like(dim, method_code(machine)),
    )
    return FeatureColumns(joined + KERNEL_SECONDS, compute, np.stack(values, axis=1))


def memory_columns(machine: Facts, shapes: Shapes) -> FeatureColumns:
    """Return the columns of operators that memory traffic bounds. Caches are left out: benchmarks repeat an operator on
    the same data, training does not."""
    traffic = np.maximum(shapes.bytes, 1.0) / machine.bytes_per_second
    values = (np.log(traffic), shapes.form, shapes.direction)
    return FeatureColumns(
        traffic + MEMORY_KERNEL_SECONDS, np.zeros_like(traffic), np.stack(values, axis=1).astype(float)
    )


COLUMNS: dict[str, Callable[[Facts, Shapes], FeatureColumns]] = {
    "gemm": gemm_columns,
    "attention": attention_columns,
    "memory": memory_columns,
}
