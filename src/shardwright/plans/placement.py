"""Where each GPU of a plan stands. Cost, runtime and exporters all read it here.

The GPUs of a type are numbered machine by machine, machines in the order of the cluster's pools. Tensor-parallel groups
are given out in the plan's rank order, each to the first machine of its type that has room for it, or to the next free
GPUs where none has:

* `tp-cp-ep-dp-pp`: replica by replica, stage by stage, copy by copy. The copies of a stage are neighbours.
* `tp-cp-ep-pp-dp`: replica by replica, copy by copy, stage by stage. The stages of a copy are neighbours.

So each of unequal replicas has GPUs of its own, one after the other in the order of the plan, and the rank order says
how the copies and stages of one replica are laid out there. With one replica it is Megatron-LM's (parallel_state.py).
Ranks are numbered by where they stand: GPU types in the order of the cluster, within a type by GPU. Machines with GPUs
of several types come where the first of these comes, and the ranks of each machine follow one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Ints
from shardwright.plans.plan import Plan, RankOrder
from shardwright.records import record

COPIES_TOGETHER: RankOrder = "tp-cp-ep-dp-pp"
STAGES_TOGETHER: RankOrder = "tp-cp-ep-pp-dp"


@record
class Placement:
    """The GPUs of a plan, G in all: stage after stage over all replicas (S stages), in a stage copy after copy, in a
    copy by context-parallel rank, then by tensor-parallel rank.

    `types` are the GPU types of the plan. `type` [S] is that of each stage among them, `begin` [S] the place of a
    stage's first GPU in the columns, `size` [S] the GPUs of one copy and `count` [S] the copies. `gpu` [G] is the
    number of a GPU within its type.
    """

    types: tuple[str, ...]
    type: Ints
    begin: Ints
    size: Ints
    count: Ints
    gpu: Ints

    @property
    def stage(self) -> Ints:
        """The stage of each GPU, [G]."""
        return np.repeat(np.arange(len(self.size)), self.size * self.count)

    def first_of_groups(self, tp: Ints) -> tuple[Ints, Ints]:
        """Return the stage of every tensor-parallel group, of `tp` [S] GPUs, and the number of its first GPU within its
        type, [groups] each."""
        stage, number = _numbered(self.count * self.size // tp)
        return stage, self.gpu[self.begin[stage] + number * tp[stage]]


def placement_of(plan: Plan) -> Placement:
    """Return where the GPUs of a legal plan (`plan.check`) stand."""
    types = tuple(plan.gpus_by_type)
    tp, cp = np.array([(stage.tensor_parallel, stage.context_parallel) for stage in plan.stages], dtype=np.int64).T
    count = np.array([replica.count for replica in plan.replicas for _ in replica.stages], dtype=np.int64)
    kind = np.array([types.index(stage.gpu) for stage in plan.stages], dtype=np.int64)
    begin = np.cumsum(tp * cp * count) - tp * cp * count
    stage, start = _groups_in_rank_order(plan, tp, cp, count, begin)
    gpu = np.empty(int((tp * cp * count).sum()), dtype=np.int64)
    for number, name in enumerate(types):
        of_kind = kind[stage] == number
        sizes = tp[stage[of_kind]]
        gpu[_spans(start[of_kind], sizes)] = _given_out(sizes, _machines(plan, name))
    return Placement(types=types, type=kind, begin=begin, size=tp * cp, count=count, gpu=gpu)


def ranks(plan: Plan, placement: Placement) -> Ints:
    """Return the rank of each GPU of the plan, [G]."""
    numbers = np.empty(len(placement.gpu), dtype=np.int64)
    order = np.lexsort((placement.gpu, placement.type[placement.stage], machine_numbers(plan, placement)))
    numbers[order] = np.arange(len(numbers))
    return numbers


def machine_sizes(plan: Plan) -> tuple[int, ...]:
    """Return how many GPUs of each machine the plan uses, machines that it leaves out left out; their order is that of
    the ranks."""
    return tuple(np.unique(machine_numbers(plan, placement_of(plan)), return_counts=True)[1].tolist())


def machine_numbers(plan: Plan, placement: Placement) -> Ints:
    """Return the number of the machine of each GPU of the plan, [G], machines of all types counted through."""
    pools = {pool.gpu.name: pool.machines for pool in plan.cluster.pools}
    first, count = dict[str, int](), 0
    for name in placement.types:
        if pools[name] not in first:
            first[pools[name]] = count
            count += len(_machines(plan, name))
    before = np.array([first[pools[name]] for name in placement.types])
    return np.asarray(before[placement.type[placement.stage]] + slots(plan, placement)[0])


def numbers_by_type(plan: Plan, placement: Placement) -> Ints:
    """Return the same where the GPUs of each type in a machine count as a machine."""
    before = np.cumsum([0, *(len(_machines(plan, name)) for name in placement.types)])
    return np.asarray(before[placement.type[placement.stage]] + slots(plan, placement)[0])


def slots(plan: Plan, placement: Placement) -> tuple[Ints, Ints]:
    """Return for each GPU of the plan the number of its machine within its type, and its own number there, [G] each."""
    kind = placement.type[placement.stage]
    machine, slot = np.empty_like(kind), np.empty_like(kind)
    for number, name in enumerate(placement.types):
        sizes, of_kind = _machines(plan, name), kind == number
        ends = np.cumsum(sizes)
        machine[of_kind] = np.searchsorted(ends, placement.gpu[of_kind], side="right")
        slot[of_kind] = placement.gpu[of_kind] - (ends - sizes)[machine[of_kind]]
    return machine, slot


def _groups_in_rank_order(plan: Plan, tp: Ints, cp: Ints, count: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """Return the stage of every tensor-parallel group and the place of its first GPU in the columns, in the order in
    which groups are given GPUs."""
    stage, number = _numbered(cp * count)
    start = begin[stage] + number * tp[stage]
    if plan.rank_order == STAGES_TOGETHER:
        replica = np.repeat(np.arange(len(plan.replicas)), [len(entry.stages) for entry in plan.replicas])
        order = np.lexsort((number, stage, number // cp[stage], replica[stage]))
        stage, start = stage[order], start[order]
    return stage, start


def _numbered(groups: Ints) -> tuple[Ints, Ints]:
    """Return the stage of each of so many groups of every stage, and its number there."""
    stage = np.repeat(np.arange(len(groups)), groups)
    return stage, np.arange(len(stage)) - np.repeat(np.cumsum(groups) - groups, groups)


def _machines(plan: Plan, name: str) -> Ints:
    """Return the GPUs of each machine with GPUs of a type."""
    pools = [pool for pool in plan.cluster.pools if pool.gpu.name == name]
    return np.repeat([pool.gpus_per_node for pool in pools], [pool.nodes for pool in pools])


def _given_out(sizes: Ints, machines: Ints) -> Ints:
    """Return the GPUs of groups of `sizes`, one after the other, on machines with so many GPUs each."""
    ends = np.cumsum(machines)
    high = np.cumsum(sizes)
    first, last = np.searchsorted(ends, high - sizes, side="right"), np.searchsorted(ends, high - 1, side="right")
    whole = (high - sizes == ends[first] - machines[first]) & (high == ends[last])
    if ((first == last) | whole).all():
        return np.arange(int(sizes.sum()))
    return _first_fit(sizes.tolist(), machines.tolist())


def _first_fit(sizes: Sequence[int], machines: Sequence[int]) -> Ints:
    """Return the same where groups in a row would leave some on two machines."""
    free, base = list(machines), [0, *np.cumsum(machines).tolist()]
    roomy: dict[int, int] = {}  # by size, the first machine that may have room; free GPUs only become fewer
    given: list[int] = []
    for size in sizes:
        at = roomy.get(size, 0)
        while at < len(free) and free[at] < size:
            at += 1
        roomy[size] = at
        left, machine = size, at if at < len(free) else 0
        while left:
            taken = min(left, free[machine])
            start = base[machine + 1] - free[machine]
            given.extend(range(start, start + taken))
            free[machine] -= taken
            left -= taken
            machine += 1
    return np.array(given, dtype=np.int64)


def _spans(starts: Ints, sizes: Ints) -> Ints:
    """Return all numbers from each start on, `sizes` of them each."""
    ends = np.cumsum(sizes)
    return np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes) + np.repeat(starts, sizes)
