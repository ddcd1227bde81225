"""The published runs that a prediction rests on: how near the nearest are, and which they are.

`data/evidence.npz` has one row for each published run that the cost model predicts, made by
`python -m tools.refit overheads`. Two settings are near if software, GPU and arithmetic are the same and the
sizes alike; the distance is 1 for a run with four times the GPUs, or twice the hidden size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.files import shipped_file
from shardwright.plans.plan import Evidence
from shardwright.rounding import coarse
from shardwright.spec.cluster import Gpu, kind_of
from shardwright.spec.job import Job
from shardwright.spec.model import Model

NAMES = ("framework", "gpu", "architecture", "precision")
# Distance for another name, and how many doublings of a size are a distance of 1. `tools.refit overheads` finds how
# intervals grow with distance, so a factor on all of them moves none; chosen, 0.5 to 2 times.
MISMATCH = {"framework": 1.5, "gpu": 0.5, "architecture": 1.5, "precision": 1.0}
FLAGS = {"adapters": 1.0, "experts": 1.5}  # chosen, 0.5 to 2 times
SEVERAL_SITES = 1.5  # distance of machines at several sites, where no published run was; chosen, 0.75 to 3
DOUBLINGS = {"gpus": 2.0, "hidden": 1.0, "layers": 1.5, "seq_len": 2.0, "tokens_per_gpu": 2.5}  # chosen, 0.5 to 2 times


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What of a training run decides how well its time is known: no strategy, only the task and the machines."""

    framework: str
    gpu: str
    architecture: str
    precision: str
    adapters: bool
    experts: bool
    gpus: float
    hidden: float
    layers: float
    seq_len: float
    tokens_per_gpu: float
    sites: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published runs as columns [N]. `sizes` are logarithms to base 2, [N, 5]; `seconds` measured, `log_error` is
    log(measured / predicted) of a prediction that had not seen the run."""

    names: Array
    flags: Array
    sizes: Floats
    model: Array
    source: Array
    strategy: Array
    seconds: Floats
    tokens_per_second: Floats
    log_error: Floats


def conditions_of(model: Model, gpu: Gpu, gpus: int, job: Job, sites: int = 1) -> Conditions:
    """Return the setting of a job on `gpus` GPUs of one type, at so many sites."""
    return Conditions(
        framework=job.framework,
        gpu=gpu.kind,
        architecture=gpu.architecture,
        precision=job.precision,
        adapters=job.adapters,
        experts=any(kind.moe for kind in model.kinds),
        gpus=gpus,
        hidden=model.hidden,
        layers=len(model.layers),
        seq_len=job.seq_len,
        tokens_per_gpu=job.tokens_per_iteration / gpus,
        sites=sites,
    )


@lru_cache
def published() -> Published:
    """Return the runs that ship with the package."""
    content = shipped_file("shardwright.cost.trust", "evidence.npz")
    with np.load(io.BytesIO(content)) as arrays:
        return Published(**{name: arrays[name] for name in Published.__slots__})


def unpublished(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of those GPU types of which no published run is known."""
    return tuple(kind for kind in dict.fromkeys(map(kind_of, gpus)) if kind not in _published_gpus())


@lru_cache
def _published_gpus() -> frozenset[str]:
    return frozenset(map(str, published().names[:, NAMES.index("gpu")]))


def distances(setting: Conditions, runs: Published) -> Floats:
    """Return the distance of every run from `setting`, [N]."""
    square = np.zeros(len(runs.seconds))
    square += (setting.sites > 1) * SEVERAL_SITES**2
    for column, name in enumerate(NAMES):
        square += (runs.names[:, column] != getattr(setting, name)) * MISMATCH[name] ** 2
    for column, (name, weight) in enumerate(FLAGS.items()):
        square += (runs.flags[:, column] != getattr(setting, name)) * weight**2
    for column, (name, doublings) in enumerate(DOUBLINGS.items()):
        square += ((runs.sizes[:, column] - np.log2(getattr(setting, name))) / doublings) ** 2
    return coarse(np.sqrt(square))


@lru_cache(maxsize=256)
def nearest(setting: Conditions, count: int = 3) -> tuple[Evidence, ...]:
    """Return the `count` nearest published runs, one of each source and setting, nearest first."""
    runs = published()
    far = distances(setting, runs)
    chosen: list[Evidence] = []
    seen: set[tuple[str, float]] = set()
    for index in np.argsort(far, kind="stable"):
        key = str(runs.source[index]), round(float(far[index]), 6)
        if key in seen:
            continue
        seen.add(key)
        chosen.append(
            Evidence(
                model=str(runs.model[index]),
                gpus=round(2.0 ** float(runs.sizes[index, 0])),
                gpu=str(runs.names[index, 1]),
                framework=str(runs.names[index, 0]),
                strategy=str(runs.strategy[index]),
                tokens_per_second=float(runs.tokens_per_second[index]),
                predicted_tokens_per_second=float(runs.tokens_per_second[index]) * math.exp(runs.log_error[index]),
                distance=float(far[index]),
                source=str(runs.source[index]),
            )
        )
        if len(chosen) == count:
            break
    return tuple(chosen)
