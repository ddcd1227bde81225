"""One instance of the mixed search: a setting on so many units of each type, and what bounds it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.stage.terms import AGAIN, STATES
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM
from shardwright.rounding import coarse
from shardwright.search.mixed.bounds.capacity import Capacity, capacity
from shardwright.search.mixed.tables.columns import Layers, Table, layers_of, with_experts
from shardwright.search.mixed.tables.compositions import Ends, compositions, deepest
from shardwright.search.mixed.tables.region import Region
from shardwright.search.mixed.tables.settings import Setting
from shardwright.search.space.axes import Space

HOPELESS = 1e4  # times what all GPUs need at full speed, beyond which no plan is looked for
MOST_KNOWN = 16
SHORT = 4  # stages of a pipeline of which all compositions are looked at first


@dataclass(slots=True)
class Instance:
    """One setting: its table, the micro-batches of an iteration, `total`, and the deepest pipelines whose compositions
    are listed; `modes` are the recomputations and `ends` the layers of the first and the last stage that are allowed.
    `speeds` are layers per second of all units of each type, [G]. Where some layers have no experts, `alone` are those
    that do, as if they were all. Capacities are made once (`known`), and so is what
    compositions have splits that fit (`fitting`: by units, most replicas and micro-batches)."""

    setting: Setting
    table: Table
    layers: Layers
    total: int
    depth: int
    modes: tuple[int, ...]
    ends: Ends
    speeds: Floats
    alone: tuple[Table, Layers] | None = None
    known: dict[tuple[int, bool], Capacity] = field(default_factory=dict)
    fitting: dict[tuple[tuple[int, ...], int, int], bool] = field(default_factory=dict)

    @property
    def quick(self) -> float:
        """Seconds that no plan beats."""
        return coarse(self.total * self.layers.total / float(self.speeds.sum()))

    def on_units(self, units: Ints) -> Instance:
        """Return the setting on so many units of each type [G]."""
        speeds = self.speeds / np.maximum(self.table.units, 1) * units
        return replace(self, table=replace(self.table, units=units), speeds=speeds, known={})

    def quickest(self, region: Region) -> float:
        """Return seconds that no plan of a region beats."""
        speed = float(self.speeds[list(region.used)].sum() if region.used else self.speeds.sum())
        return coarse(self.total * self.layers.total / speed)

    def capacity(self, region: Region, longest: float, *, few: bool) -> Capacity:
        """Return the capacity of a region, which is remembered."""
        key = (region.most, few)
        if key not in self.known:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            self.known[key] = capacity(
                self.table,
                self.layers,
                copies=region.most,
                depth=self.depth,
                longest=longest,
                few=few,
                modes=self.modes,
                alone=self.alone,
            )
        return self.known[key]

    def compositions(self, space: Space) -> Ints:
        """Return the compositions of two stages or more, [N, G], with the numbers of stages that are allowed."""
        counts = compositions(self.table.units, self.depth)
        pinned = space.pins.get("pp")
        return counts if pinned is None else counts[np.isin(counts.sum(axis=1), pinned)]

    def samples(self, counts: Ints) -> Bools:
        """Return which of `counts` are compositions that good plans often have: short ones, and those of one type or of
        all in proportion."""
        depths, units = counts.sum(axis=1), self.table.units
        pure = (counts > 0).sum(axis=1) == 1
        level = (np.abs(counts - depths[:, None] * units / units.sum()) <= 0.5).all(axis=1)
        return np.asarray((depths <= SHORT) | pure | level)

    def roots(self, space: Space) -> list[Region]:
        """Return the regions to start from: all numbers of replicas, or those pinned."""
        fewest, most = 1, int(min(self.table.units.sum(), self.total))
        if not self.setting.sharing.within(space, self.setting.cp):
            fewest = 2
        allowed = np.array(space.allowed("dp", range(fewest, most + 1)), dtype=np.int64)
        ranges = np.split(allowed, np.flatnonzero(np.diff(allowed) > 1) + 1) if len(allowed) else []
        gpus = [int(number) for number in space.pins.get("gpus", ())]
        whole = Region(
            fewest=1, most=1, modes=self.modes, link=np.inf, used=(),
            gpus=min(gpus, default=1), most_gpus=max(gpus, default=None),
        )  # fmt: skip
        return [replace(whole, fewest=int(run[0]), most=int(run[-1])) for run in ranges]


def _recomputing(layers: Layers, modes: tuple[int, ...]) -> Layers:
    """Return layers with what `uniform` recomputation is at least: large groups of them keep hardly any inputs, and
    where nothing else is allowed all take its seconds."""
    if UNIFORM not in modes:
        return layers
    more = layers.recompute if len(modes) == 1 else 0.0 * layers.recompute
    return replace(
        layers,
        kept=layers.kept * (np.arange(STATES) != AGAIN),
        seconds=layers.seconds + more,
        alone_seconds=layers.alone_seconds + more,
        recompute=layers.recompute - more,
    )


def _layer_counts(space: Space, axis: str) -> tuple[int, ...]:
    return tuple(int(value) for value in space.pins.get(axis, ()))


def instances(settings: Sequence[Setting], tables: Sequence[Table], global_batch: int, space: Space) -> list[Instance]:
    """Return an instance for each setting that some GPUs can run, those that are faster at best first."""
    usual = (NONE, SELECTIVE, BLOCK)  # groups of layers, `uniform`, save memory that is seldom short: if asked for
    modes = tuple(int(code) for code in space.pins.get("recompute", usual))
    ends = Ends(first=_layer_counts(space, "first_layers"), last=_layer_counts(space, "last_layers"))
    instances = []
    for setting, table in zip(settings, tables, strict=True):
        if not table.units.any():
            continue
        layers = _recomputing(layers_of(table), modes)
        total, sparse = global_batch // setting.micro_batch, with_experts(table)
        instances.append(
            Instance(
                setting=setting,
                table=table,
                layers=layers,
                total=total,
                depth=deepest(table.units, table.layers),
                modes=modes,
                ends=ends,
                alone=None if sparse is None else (sparse, _recomputing(layers_of(sparse), modes)),
                speeds=table.units / np.minimum(layers.alone_seconds, layers.seconds),
            )
        )
    return sorted(instances, key=lambda instance: instance.quick)
