"""What a run does when machines come and go: local state first, and what that is compared with.

* `local first`: decides as a run of `shardwright train --elastic` does (`ways.choose`), and reads what survives from
  memory, its own and that of others.
* `reload from the cloud`: a new plan at every change, all of its state read from the object store, work since the last
  upload done anew, as Varuna (Athlur et al., EuroSys '22) does.
* `restart without a new plan`: waits until the first plan's machines are there again, and then reloads too.

What survives, and what moves, follows from what of the state each machine holds. The state is a rectangle: the layers
of the model, which weigh alike, by the share of a layer from 0 to 1. A GPU of a stage of s GPUs holds its s-th of the
stage's layers; where the optimizer is sharded, of the part of its copy of the model. `Grid` cuts the rectangle where
any of these ends, so that a machine has a cell whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.money import checkpoint_bytes
from shardwright.plans.placement import placement_of, ranks
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.outlook import Outlook, Rates, bandwidths_of
from shardwright.recovery.quorum import Machine, fits, partner_of, seated, seats, stand_ins
from shardwright.recovery.transfer import MEMORY, TIERS, Holdings, Needs, TransferPlan, plan_transfers
from shardwright.recovery.ways import REFORM_SECONDS, NextPlan, RunPlans, Templates, choose, template_of

NOW, SNAPSHOT, UPLOAD = "now", "the last snapshot", "the last upload"  # from which point of the work a recovery goes on
# torchrun's own restart with its defaults, as measured with torch 2.13 on CPUs; the start of CUDA is not counted.
RESTART_SECONDS = 33.0
Box = tuple[int, int, float, float]  # layers from and to, and the share of them from and to


@record
class Situation:
    """A run with its machines before, those that are there now, what is expected of them, and how fast bytes move."""

    run: RunPlans
    machines: tuple[Machine, ...]
    outlook: Outlook
    templates: Templates
    rates: Rates

    @property
    def used(self) -> tuple[Machine, ...]:
        """The machines that the plan before had ranks on."""
        return self.run.seated[: sum(pool.nodes for pool in self.run.now.cluster.pools)]


@record
class Recovered:
    """How a run goes on: the machines in the order of their seats, from which point, after how long, having moved which
    bytes."""

    seated: tuple[Machine, ...]
    since: str
    reform_seconds: float
    move_seconds: float
    moved_bytes: dict[str, float]


@record
class Strategy:
    """`decide` returns the plan to go on with, None to wait; `recover` how the run comes there."""

    name: str
    decide: Callable[[Situation], NextPlan]
    recover: Callable[[Situation, Plan], Recovered]


def cheapest(situation: Situation) -> NextPlan:
    """Return what a run decides."""
    s = situation
    return choose(s.run, s.machines, s.outlook, s.templates, s.rates)


def newest(situation: Situation) -> NextPlan:
    first, machines = situation.run.first, situation.machines
    plan = first if fits(first, machines) else template_of(first, machines, situation.templates)
    return NextPlan(plan=plan, reason="the best plan for these machines")


def first_or_none(situation: Situation) -> NextPlan:
    """Return the first plan, where it fits."""
    first = situation.run.first
    return NextPlan(plan=first if fits(first, situation.machines) else None, reason="the first plan")


def local_first(situation: Situation, plan: Plan) -> Recovered:
    """Return a recovery from what survives on the machines."""
    run, there = situation.run, situation.machines
    if not run.seated:  # nothing has been trained on machines that are left
        return reloaded(situation, plan, REFORM_SECONDS)
    left = survival(run.now, run.seated, there)
    since = NOW if left.now else SNAPSHOT if left.in_snapshots else UPLOAD
    chairs = seated(plan, there, kept_bytes(run.now, run.seated, plan, there))
    move = moved(run.now, run.seated, plan, chairs, situation.rates)
    return Recovered(
        seated=chairs,
        since=since,
        reform_seconds=REFORM_SECONDS,
        move_seconds=move.seconds,
        moved_bytes=move.bytes,
    )


def reloaded(situation: Situation, plan: Plan, restart_seconds: float = RESTART_SECONDS) -> Recovered:
    """Return a recovery from the object store. Where nothing was lost, the work so far was uploaded before."""
    move = from_cloud(plan, situation.machines, situation.rates)
    kept = bool(situation.used) and set(situation.used) <= set(situation.machines)
    return Recovered(
        seated=situation.machines,
        since=NOW if kept else UPLOAD,
        reform_seconds=restart_seconds,
        move_seconds=move.seconds,
        moved_bytes=move.bytes,
    )


LOCAL_FIRST = Strategy(name="local first", decide=cheapest, recover=local_first)
STRATEGIES: Sequence[Strategy] = (
    LOCAL_FIRST,
    Strategy(name="reload from the cloud", decide=newest, recover=reloaded),
    Strategy(name="restart without a new plan", decide=first_or_none, recover=reloaded),
)


def boxes(plan: Plan, machines: Sequence[Machine]) -> dict[str, list[Box]]:
    """Return what each machine of a plan holds, by the machine's name."""
    placement = placement_of(plan)
    before = np.cumsum([0, *(replica.count for replica in plan.replicas)])
    of_stage = [number for number, replica in enumerate(plan.replicas) for _ in replica.stages]
    where, rank_of = seats(plan, machines), ranks(plan, placement).tolist()
    parts = plan.data_parallel if plan.optimizer.distributed else 1
    by_machine: dict[str, list[Box]] = {}
    for number, stage in enumerate(plan.stages):
        begin, size = int(placement.begin[number]), int(placement.size[number])
        for copy in range(int(placement.count[number])):
            part = (int(before[of_stage[number]]) + copy) % parts
            columns = range(begin + copy * size, begin + (copy + 1) * size)
            names = [where[rank_of[column]].machine for column in columns]
            for name in dict.fromkeys(names):
                places = [place for place, other in enumerate(names) if other == name]
                low, high = (part + places[0] / size) / parts, (part + (places[-1] + 1) / size) / parts
                by_machine.setdefault(name, []).extend((*layers, low, high) for layers in stage.layers)
    return by_machine


@record
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
    every = [box for by_machine in held for boxes_of in by_machine.values() for box in boxes_of]
    layers = np.unique([edge for first, last, _, _ in every for edge in (first, last)])
    shares = np.unique(np.round([edge for _, _, low, high in every for edge in (low, high)], 9))
    whole = checkpoint_bytes(plan.model, plan.job)
    weights = np.diff(layers)[:, None] * np.diff(shares)[None, :] / len(plan.model.layers)
    return Grid(layers=layers, shares=shares, bytes=(whole * weights).ravel())


@record
class Survival:
    """The state of a plan after machines were lost: whether all of it is in the memory of the machines left as it is
    now, and if not, whether in their snapshots and copies."""

    now: bool
    in_snapshots: bool


@record
class Move:
    """What a recovery moves: seconds, and bytes by the kind of source."""

    seconds: float
    bytes: dict[str, float]


def survival(plan: Plan, seated: Sequence[Machine], there: Sequence[Machine]) -> Survival:
    """Return what survives of a state where only the machines `there` are left."""
    held = boxes(plan, seated)
    grid = grid_of(plan, held)
    masks = {name: grid.cells(boxes_of) for name, boxes_of in held.items()}
    left = {machine.name for machine in there}
    nothing = np.zeros(len(grid.bytes), dtype=bool)
    live = np.any([nothing, *(mask for name, mask in masks.items() if name in left)], axis=0)
    copied = np.any([live, *(mask for name, mask in _copies(masks, seated).items() if name in left)], axis=0)
    return Survival(now=bool(live.all()), in_snapshots=bool(copied.all()))


def moved(before: Plan, seated_before: Sequence[Machine], plan: Plan, seated: Sequence[Machine], rates: Rates) -> Move:
    """Return what the machines of a new plan read from those of the plan before that are still among them, and from
    the cloud what none of them has."""
    old, new = boxes(before, seated_before), boxes(plan, seated)
    grid = grid_of(plan, old, new)
    masks = {name: grid.cells(boxes_of) for name, boxes_of in old.items()}
    copies = _copies(masks, seated_before)
    held = {name: masks[name] | copies.get(name, False) for name in masks}
    return _plan(
        grid, {name: grid.cells(boxes_of) for name, boxes_of in new.items()}, held, [m.name for m in seated], rates
    )


def from_cloud(plan: Plan, seated: Sequence[Machine], rates: Rates) -> Move:
    """Return what the machines of a plan read where all of it comes from the cloud."""
    new = boxes(plan, seated)
    grid = grid_of(plan, new)
    return _plan(
        grid, {name: grid.cells(boxes_of) for name, boxes_of in new.items()}, {}, [m.name for m in seated], rates
    )


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
    planned = plan_transfers(
        sizes,
        Needs(shard=need_shard, machine=need_machine),
        Holdings(shard=shard, machine=machine, tier=np.full_like(shard, MEMORY)),
        np.ones(len(sizes), dtype=bool),
        bandwidths_of(len(names), rates),
    )
    return Move(seconds=planned.seconds, bytes=_by_source(planned))


def _by_source(plan: TransferPlan) -> dict[str, float]:
    t = plan.transfers
    in_memory = t.local & (t.tier == MEMORY)
    cloud = t.tier == len(TIERS) - 1
    kinds = {"own memory": in_memory, "peers' memory": ~in_memory & ~cloud, "cloud": cloud}
    return {name: float(t.size_bytes[chosen].sum()) for name, chosen in kinds.items()}


def _copies(masks: dict[str, Bools], seated: Sequence[Machine]) -> dict[str, Bools]:
    """Return the copies that machines have of what one other alone holds: the next one, of another zone if any."""
    order = [machine for machine in seated if machine.name in masks]
    holders = np.sum([masks[machine.name] for machine in order], axis=0)
    copied: dict[str, Bools] = {}
    for place, machine in enumerate(order):
        lonely = masks[machine.name] & (holders == 1)
        partner = partner_of(order, place)
        if partner is not None and lonely.any():
            copied[partner.name] = copied.get(partner.name, False) | lonely
    return copied
