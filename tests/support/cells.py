"""Cells of presets × frameworks × clusters, drawn pairwise: what `plan` answers for each, and who takes its plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from shardwright.spec.read.presets import preset_names

SEED = 32
FRAMEWORKS = ("megatron", "torchtitan", "fsdp", "deepspeed", "train")
ASKED = (*FRAMEWORKS, "", "any")  # nobody named, and any
CLUSTERS = (
    "1x8xH100-SXM",
    "8x8xH100-SXM",
    "32x8xH100-SXM",
    "4x8xA100-SXM-80",
    "2x8xA100-SXM-40",
    "1x2xRTX4090",
    "4x8xL40S",
    "2x8xMI300X",
    "4x8xB200",
    "16x8xA800-SXM-80",
    "2x8xH100-SXM+2x8xA100-SXM-80",
    "1x4xRTX4090+1x4xRTX3090",
    "1x(2xRTX4090+1xRTX3090)",
    "2x(4xL4+4xA10G)",
    "1x2xA10G+1x1xRTX3090",
    "4x8xL40S+2x8xH100-SXM",
    "2x8xV100-SXM2",
)
BATCH, LONGEST, SHORTEST_WITH_IMAGES = 64, 2048, 4096


@dataclass(frozen=True, slots=True)
class Cell:
    """A question: a preset on a cluster, for a framework, "" where none is named."""

    model: str
    framework: str
    cluster: str

    @property
    def name(self) -> str:
        return " ".join((self.model, self.framework or "-", self.cluster))


def drawn(count: int, seed: int = SEED) -> tuple[Cell, ...]:
    """Return `count` cells, each the one of ten random ones that has most pairs of values that none before it has."""
    chance, covered = random.Random(seed), set[tuple[str, str]]()
    cells: dict[Cell, None] = {}
    while len(cells) < count:
        offered = [Cell(*map(chance.choice, _axes())) for _ in range(10)]
        best = max(offered, key=lambda cell: len(_pairs(cell) - covered))
        covered |= _pairs(best)
        cells[best] = None
    return tuple(cells)


def _axes() -> Iterator[Sequence[str]]:
    yield from (preset_names(), ASKED, CLUSTERS)


def _pairs(cell: Cell) -> set[tuple[str, str]]:
    return set(combinations((cell.model, cell.framework, cell.cluster), 2))
