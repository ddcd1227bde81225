"""What of the state each machine holds under a plan, and what a recovery moves.

The state is a rectangle: the layers of the model, which weigh alike, by the share of a layer from 0 to 1. A GPU of a
stage of s GPUs holds its s-th of the stage's layers; where the optimizer is sharded, of the part of its copy of the
model. `Grid` cuts the rectangle where any of these ends, so that a machine has a cell whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.money import checkpoint_bytes
from shardwright.plans.placement import placement_of
from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Machine
from shardwright.recovery.rates import Rates, bandwidths_of
from shardwright.recovery.seats import seats, stand_ins
from shardwright.recovery.transfer import MEMORY, TIERS, Holdings, Needs, TransferPlan, plan_transfers

Box = tuple[int, int, float, float]
"""Layers from and to, and the share of them from and to."""


def boxes(plan: Plan, machines: Sequence[Machine]) -> dict[str, list[Box]]:
    """Return what each machine of a plan holds, by the machine's name."""
    placement = placement_of(plan)
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    before = np.cumsum([0, *(replica.count for replica in plan.replicas)])
    of_stage = [number for number, replica in enumerate(plan.replicas) for _ in replica.stages]
    where, ranks = seats(plan, machines), placement.ranks().tolist()
    parts = plan.data_parallel if plan.optimizer.distributed else 1
    found: dict[str, list[Box]] = {}
    for number, stage in enumerate(stages):
        begin, size = int(placement.begin[number]), int(placement.size[number])
        for copy in range(int(placement.count[number])):
            part = (int(before[of_stage[number]]) + copy) % parts
            columns = range(begin + copy * size, begin + (copy + 1) * size)
            names = [where[ranks[column]].machine for column in columns]
            for name in dict.fromkeys(names):
                own = [place for place, other in enumerate(names) if other == name]
                low, high = (part + own[0] / size) / parts, (part + (own[-1] + 1) / size) / parts
                found.setdefault(name, []).extend((*layers, low, high) for layers in stage.layers)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Cuts of the layers and of the share, and the bytes of each cell between them, flat."""

    layers: Ints
    shares: Floats
    bytes: Floats

    def cells(self, held: Sequence[Box]) -> Bools:
        """Return which cells boxes cover, flat."""
        covered = np.zeros((len(self.layers) - 1, len(self.shares) - 1), dtype=bool)
        for first, last, low, high in held:
            rows = slice(*np.searchsorted(self.layers, (first, last)).tolist())
            columns = slice(*np.searchsorted(self.shares, (round(low, 9), round(high, 9))).tolist())
            covered[rows, columns] = True
        return covered.ravel()


def grid_of(plan: Plan, *held: dict[str, list[Box]]) -> Grid:
    """Return the grid in which all boxes are made of whole cells."""
    every = [box for by_machine in held for own in by_machine.values() for box in own]
    layers = np.unique([edge for first, last, _, _ in every for edge in (first, last)])
    shares = np.unique(np.round([edge for _, _, low, high in every for edge in (low, high)], 9))
    whole = checkpoint_bytes(plan.model, plan.job)
    weights = np.diff(layers)[:, None] * np.diff(shares)[None, :] / len(plan.model.layers)
    return Grid(layers=layers, shares=shares, bytes=(whole * weights).ravel())


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """The state of a plan after machines were lost: whether all of it is in the memory of the machines left as it is
    now, and if not, whether in their snapshots and copies."""

    now: bool
    in_snapshots: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What a recovery moves: seconds, and bytes by the kind of source."""

    seconds: float
    bytes: dict[str, float]


def survival(plan: Plan, seated: Sequence[Machine], there: Sequence[Machine]) -> Survival:
    """Return what survives of a state where only the machines `there` are left."""
    held = boxes(plan, seated)
    grid = grid_of(plan, held)
    masks = {name: grid.cells(own) for name, own in held.items()}
    left = {machine.name for machine in there}
    live = _any((mask for name, mask in masks.items() if name in left), len(grid.bytes))
    copies = _copies(masks, seated)
    copied = live | _any((mask for name, mask in copies.items() if name in left), len(grid.bytes))
    return Survival(now=bool(live.all()), in_snapshots=bool(copied.all()))


def moved(before: Plan, seated_before: Sequence[Machine], plan: Plan, seated: Sequence[Machine], rates: Rates) -> Move:
    """Return what the machines of a new plan read from those of the plan before that are still among them, and from
    the cloud what none of them has."""
    old, new = boxes(before, seated_before), boxes(plan, seated)
    grid = grid_of(plan, old, new)
    masks = {name: grid.cells(own) for name, own in old.items()}
    copies = _copies(masks, seated_before)
    held = {name: masks[name] | copies.get(name, False) for name in masks}
    return _plan(grid, {name: grid.cells(own) for name, own in new.items()}, held, [m.name for m in seated], rates)


def from_cloud(plan: Plan, seated: Sequence[Machine], rates: Rates) -> Move:
    """Return what the machines of a plan read where all of it comes from the cloud."""
    new = boxes(plan, seated)
    grid = grid_of(plan, new)
    return _plan(grid, {name: grid.cells(own) for name, own in new.items()}, {}, [m.name for m in seated], rates)


def kept_bytes(before: Plan, seated: Sequence[Machine], plan: Plan, machines: Sequence[Machine]) -> Floats:
    """Return what each machine holds of what each place of a plan's cluster needs, [machines, places]."""
    places = stand_ins(plan.cluster)
    old, new = boxes(before, seated), boxes(plan, places)
    grid = grid_of(plan, old, new)
    have = np.array([grid.cells(old.get(machine.name, ())) for machine in machines])
    need = np.array([grid.cells(new.get(place.name, ())) for place in places])
    return np.asarray((have * grid.bytes) @ need.T.astype(np.float64))


def _plan(grid: Grid, need: dict[str, Bools], held: dict[str, Bools], names: list[str], rates: Rates) -> Move:
    """Return the best plan of transfers, in which cells that the same machines need and hold are one shard."""
    empty = np.zeros(len(grid.bytes), dtype=bool)
    rows = [need.get(name, empty) for name in names] + [held.get(name, empty) for name in names]
    kinds, which = np.unique(np.array(rows), axis=1, return_inverse=True)
    sizes = np.bincount(which.ravel(), weights=grid.bytes, minlength=kinds.shape[1]).round().astype(np.int64)
    wanted, holding = kinds[: len(names)], kinds[len(names) :]
    need_machine, need_shard = np.nonzero(wanted)
    machine, shard = np.nonzero(holding & wanted.any(axis=0))
    found = plan_transfers(
        sizes,
        Needs(shard=need_shard, machine=need_machine),
        Holdings(shard=shard, machine=machine, tier=np.full_like(shard, MEMORY)),
        np.ones(len(sizes), dtype=bool),
        bandwidths_of(len(names), rates),
    )
    return Move(seconds=found.seconds, bytes=_by_source(found))


def _by_source(plan: TransferPlan) -> dict[str, float]:
    t = plan.transfers
    own = t.local & (t.tier == MEMORY)
    cloud = t.tier == len(TIERS) - 1
    kinds = {"own memory": own, "peers' memory": ~own & ~cloud, "cloud": cloud}
    return {name: float(t.size_bytes[chosen].sum()) for name, chosen in kinds.items()}


def _copies(masks: dict[str, Bools], seated: Sequence[Machine]) -> dict[str, Bools]:
    """Return the copies that machines have of what one other alone holds: the next one, of another zone if any."""
    order = [machine for machine in seated if machine.name in masks]
    holders = np.sum([masks[machine.name] for machine in order], axis=0)
    found: dict[str, Bools] = {}
    for place, machine in enumerate(order):
        lonely = masks[machine.name] & (holders == 1)
        others = [*order[place + 1 :], *order[:place]]
        partner = next(iter([other for other in others if other.zone != machine.zone] or others), None)
        if partner is not None and lonely.any():
            found[partner.name] = found.get(partner.name, False) | lonely
    return found


def _any(masks: object, cells: int) -> Bools:
    found = np.zeros(cells, dtype=bool)
    for mask in masks:  # type: ignore[attr-defined]
        found |= mask
    return found
