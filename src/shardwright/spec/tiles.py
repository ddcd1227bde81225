"""How images are cut into tiles of the side that an encoder takes.

The rules are those of Hugging Face transformers 5.24: `get_optimal_tiled_canvas` (models/got_ocr2, InternVL),
`select_best_resolution` with the unpadded features of models/llava_next and models/llava_onevision,
`get_number_of_image_patches` of models/idefics3, and `get_best_fit` of models/llama4. The tests compare with them.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from shardwright.records import record


@record
class Tiling:
    """An image becomes rows and columns of tiles, and where they are more than one, the whole image is a tile too.

    By its `ratio` of sides an image takes the nearest grid of `grids` (rows, columns); by its `area` the grid in which
    most of its pixels stay, where padding gives no tokens, each row of patches ends with a token more, and beyond
    `most` tiles' tokens (where set) they are averaged; by its `edge` it is scaled until its longer side is `longest`
    tiles; by its `scale` it takes the grid that it fits with the least enlargement, or if none is large enough with the
    least reduction, of several the smallest. Without `whole` no tile of the whole image is added to the grid (by its
    ratio alone).
    """

    by: Literal["ratio", "area", "edge", "scale"]
    grids: tuple[tuple[int, int], ...] = ()
    longest: int = 1
    most: int | None = None
    whole: bool = True


def grids_within(least: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return all grids (rows, columns) of `least` to `most` tiles: of fewer tiles first, then of fewer columns."""
    grids = [(rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return tuple(sorted((grid for grid in grids if math.prod(grid) >= least), key=math.prod))


def grid_of(tiling: Tiling, side: int, height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the tiles, of `side` pixels, of an image."""
    if tiling.by == "edge":
        longest = tiling.longest * side
        short = int(longest * min(height, width) / max(height, width))
        across = max(math.ceil((short + short % 2) / side), 1)
        return (across, tiling.longest) if width >= height else (tiling.longest, across)
    if tiling.by == "ratio":
        return _nearest(tiling.grids, side, height, width)
    if tiling.by == "scale":
        return min(tiling.grids, key=lambda grid: _fit(grid, side, height, width))
    return max(tiling.grids, key=lambda grid: _kept(grid, side, height, width))


def _fit(grid: tuple[int, int], side: int, height: int, width: int) -> tuple[bool, Fraction, int]:
    """Return whether an image is made smaller for a grid, then how far it is scaled from its size, and the tiles."""
    scale = min(Fraction(grid[1] * side, width), Fraction(grid[0] * side, height))
    return scale < 1, scale if scale >= 1 else -scale, math.prod(grid)


def _nearest(grids: tuple[tuple[int, int], ...], side: int, height: int, width: int) -> tuple[int, int]:
    """Return the grid whose ratio is nearest; of several the last that is at most twice as large as the image."""
    best, difference = (1, 1), math.inf
    for rows, columns in grids:
        away = abs(width / height - columns / rows)
        large_enough = height * width > 0.5 * side * side * rows * columns
        if away < difference or (away == difference and large_enough):
            best, difference = (rows, columns), away
    return best


def _kept(grid: tuple[int, int], side: int, height: int, width: int) -> tuple[int, int]:
    """Return how many pixels of an image stay in a grid, and how many of the grid stay empty, less than zero."""
    rows, columns = grid[0] * side, grid[1] * side
    scale = min(columns / width, rows / height)
    pixels = min(int(width * scale) * int(height * scale), width * height)
    return pixels, pixels - rows * columns


def tiles_in(tiling: Tiling, grid: tuple[int, int]) -> int:
    """Return the tiles that the encoder takes of an image."""
    tiles = math.prod(grid)
    return tiles + (tiling.by == "area" or (tiling.whole and tiles > 1))


def tokens_in(tiling: Tiling, grid: tuple[int, int], across: int, height: int, width: int) -> int:
    """Return the tokens of an image whose tiles give `across` × `across` each."""
    if tiling.by != "area":
        return tiles_in(tiling, grid) * across * across
    rows, columns = grid[0] * across, grid[1] * across
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    ratio = math.sqrt(rows * columns / (tiling.most * across * across)) if tiling.most else 1.0
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return across * across + rows * (columns + 1)
