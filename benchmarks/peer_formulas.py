"""The iteration of a plan by the formulas of Sailor, Metis, AMP and FlashFlex; `peers.py` has their sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Floats


@dataclass(frozen=True, slots=True)
class Parts:
    """What a formula sees of a plan: t and h of each replica's stages, its micro-batches, and what comes after."""

    t: tuple[Floats, ...]
    h: tuple[Floats, ...]
    micro_batches: tuple[int, ...]
    sync: float
    update: float


Formula = Callable[[Parts], float]


def sailor(parts: Parts) -> float:
    """Return the iteration by Sailor's formula."""
    each = zip(parts.t, parts.h, parts.micro_batches, strict=True)
    pipeline = max(float((t + h).sum() + (count - 1) * (t + h).max()) for t, h, count in each)
    return pipeline + parts.sync + parts.update


def metis(parts: Parts) -> float:
    """Return the iteration by Metis's formula."""
    return amp(parts) + parts.update


def amp(parts: Parts) -> float:
    """Return the iteration by AMP's formula."""
    each = zip(parts.t, parts.h, parts.micro_batches, strict=True)
    return max(float(t.sum() + (count - 1) * t.max() + h.sum()) for t, h, count in each) + parts.sync


def flashflex(parts: Parts) -> float:
    """Return the iteration by FlashFlex's formula."""
    each = zip(parts.t, parts.h, parts.micro_batches, strict=True)
    return max(_steps(t + h, count) for t, h, count in each) + parts.sync


def _steps(stages: Floats, count: int) -> float:
    step, stage = np.arange(count + len(stages) - 1)[:, None], np.arange(len(stages))
    at_work = (stage <= step) & (step < stage + count)
    return float(np.where(at_work, stages, 0.0).max(axis=1).sum())


FORMULAS: dict[str, Formula] = {"Sailor": sailor, "Metis": metis, "AMP": amp, "FlashFlex": flashflex}
