"""`LayerSource`: where the times of layers and links come from. Predicted and measured ones give the same table, spread
and evidence, so that nobody else needs to know which of them a search has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, singledispatch
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.cost.compute.efficiency import Efficiency, peak_flops
from shardwright.cost.compute.operators import Shard
from shardwright.cost.frameworks.overheads import Overheads
from shardwright.cost.layers.table import LayerTable, layer_table
from shardwright.cost.network.collectives import Fabric
from shardwright.cost.trust.evidence import Conditions, nearest, precedents
from shardwright.cost.trust.interval import interval_seconds
from shardwright.plans.plan import Evidence, Precedents
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model

if TYPE_CHECKING:
    from shardwright.cost.network.curves import LinkTimes

FEW_ROWS = 32  # numeric: of such layer tables hundreds are remembered, of larger ones the last few

Basis = tuple[tuple[float, float], tuple[Evidence, ...], Precedents | None]
NO_LIMITS: Mapping[str, tuple[int | float, ...]] = MappingProxyType({})


class LayerSource(Protocol):
    """Times of layers and links. Implementations are pure: equal input, equal output."""

    @property
    def only(self) -> Mapping[str, tuple[int | float, ...]]:
        """The values of axes of the search of which it knows the times, where it does not know those of all."""
        ...

    def knows(self, gpu: Gpu, tp: Ints, cp: Ints, ep: Ints, micro_batch: Ints) -> Bools:
        """Return for which ways to shard layers there are times, [N]."""
        ...

    def table(
        self, model: Model, gpu: Gpu, job: Job, shard: Shard, links: Fabric, software: Overheads, *, strain: float
    ) -> LayerTable:
        """Return the table for every row of `shard`. Predicted times are `strain` times those of an undisturbed GPU.
        Raises SpecError for a row without times."""
        ...

    def alike_after(self, gpu: Gpu, model: Model) -> int:
        """Return the number of layers at the beginning of the model after which all are alike."""
        ...

    def overheads(self, gpu: Gpu, job: Job, software: Overheads) -> Overheads:
        """Return what comes on top of the table, where `software` comes on top of predicted layers."""
        ...

    def between(self, start: NodePool, other: NodePool) -> LinkTimes | None:
        """Return the link between machines of two types as it was measured, None where it was not."""
        ...

    def attainable_flops(self, gpu: Gpu, model: Model, job: Job) -> float:
        """Return the peak that a utilisation is a part of. Raises SpecError where the GPU lacks the precision."""
        ...

    def basis(self, seconds: float, settings: Sequence[Conditions]) -> Basis:
        """Return the 80 % interval of a predicted time, the published runs that it rests on, and how far the like was
        measured (None where layers were)."""
        ...


@singledispatch
def layer_source(efficiency: Efficiency) -> LayerSource:
    """Return the source of layers that times operators and links by `efficiency`."""
    return PredictedLayers(efficiency=efficiency)


Column = tuple[str, str, bytes]  # name, type and content of an array, which has no hash itself


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _table(
    model: Model,
    gpu: Gpu,
    job: Job,
    ways: tuple[Column, ...],
    efficiency: Any,
    links: Fabric,
    software: Overheads,
    strain: float,
) -> LayerTable:
    """Return the table of a model, which nobody may write to: it is remembered."""
    shard = Shard(**{name: np.frombuffer(content, dtype=kind) for name, kind, content in ways})
    table = layer_table(model, gpu, job, shard, efficiency, links, software, strain=strain)
    for item in fields(table):
        getattr(table, item.name).flags.writeable = False
    return table


_small_table, _large_table = lru_cache(maxsize=256)(_table), lru_cache(maxsize=8)(_table)


@record
class PredictedLayers:
    """Layers summed from the operators that `efficiency` times."""

    efficiency: Efficiency

    @property
    def only(self) -> Mapping[str, tuple[int | float, ...]]:
        return NO_LIMITS

    def knows(self, gpu: Gpu, tp: Ints, cp: Ints, ep: Ints, micro_batch: Ints) -> Bools:
        return np.ones(len(tp), dtype=bool)

    def table(
        self, model: Model, gpu: Gpu, job: Job, shard: Shard, links: Fabric, software: Overheads, *, strain: float
    ) -> LayerTable:
        if not _has_hash((self.efficiency, links)):  # measured ones may have arrays
            return layer_table(model, gpu, job, shard, self.efficiency, links, software, strain=strain)
        columns = ((item.name, getattr(shard, item.name)) for item in fields(shard))
        ways = tuple((name, values.dtype.str, values.tobytes()) for name, values in columns)
        efficiency: Any = self.efficiency
        remembered = _small_table if len(shard.tp) <= FEW_ROWS else _large_table
        timeless = replace(job, tokens=None, objective="time", budget_dollars=None, deadline_hours=None)
        return remembered(model, gpu, timeless, ways, efficiency, links, software, strain)

    def alike_after(self, gpu: Gpu, model: Model) -> int:
        kinds = model.kind_of_layer
        odd = [index for index, kind in enumerate(kinds) if kind != kinds[-1]]
        return odd[-1] + 1 if odd else 0

    def overheads(self, gpu: Gpu, job: Job, software: Overheads) -> Overheads:
        return software

    def between(self, start: NodePool, other: NodePool) -> LinkTimes | None:
        return None

    def attainable_flops(self, gpu: Gpu, model: Model, job: Job) -> float:
        """Return the peak of the data sheet."""
        return peak_flops(gpu, job.precision)

    def basis(self, seconds: float, settings: Sequence[Conditions]) -> Basis:
        """Return the widest of the intervals of `settings`, the published runs nearest to any of them, and how far the
        like was measured."""
        known = [nearest(setting) for setting in settings]
        intervals = [interval_seconds(seconds, setting) for setting in settings]
        interval = min(low for low, _ in intervals), max(high for _, high in intervals)
        return interval, min(known, key=lambda runs: runs[0].distance), precedents(tuple(settings))
