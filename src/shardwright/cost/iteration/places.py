"""Where the stages of a plan stand: GPUs of a type are given out in order, replica by replica, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardwright.cost.iteration.lanes import outermost
from shardwright.cost.strategies import Bools, Ints
from shardwright.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All stages of a plan, replica by replica, as columns [S]: `kind` is the place of its GPU type in `types`; `first`
    the first GPU of the first copy within its pool, and each copy stands `stride` GPUs after the one before; `size`
    GPUs are in a copy. `begin` and `end` [S, v] are the layers of its virtual stages, `shared` [S, S] says which stages
    have layers in common, `after` is the next stage of the replica (of the last: the first). Replica r has the stages
    from `bounds[r]` to `bounds[r + 1]`."""

    types: tuple[str, ...]
    kind: Ints
    count: Ints
    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    first: Ints
    stride: Ints
    size: Ints
    begin: Ints
    end: Ints
    shared: Bools
    after: Ints
    bounds: tuple[int, ...]


def places_of(plan: Plan) -> Places:
    """Return the places of all stages of a legal plan."""
    together, used = outermost(plan), {pool.gpu.name: 0 for pool in plan.cluster.pools}
    first, stride, bounds = [], [], [0]
    for replica in plan.replicas:
        own = {stage.gpu: 0 for stage in replica.stages}
        for stage in replica.stages:
            own[stage.gpu] += stage.gpus
        before = dict.fromkeys(own, 0)
        for stage in replica.stages:
            first.append(used[stage.gpu] + (1 if together else replica.count) * before[stage.gpu])
            stride.append(own[stage.gpu] if together else stage.gpus)
            before[stage.gpu] += stage.gpus
        for gpu, gpus in own.items():
            used[gpu] += replica.count * gpus
        bounds.append(len(first))
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    columns = [
        (s.tensor_parallel, s.context_parallel, s.expert_parallel, s.expert_tensor_parallel, s.gpus) for s in stages
    ]
    tp, cp, ep, etp, size = np.array(columns, dtype=np.int64).T
    types = tuple(plan.gpus_by_type)
    layers = np.array([stage.layers for stage in stages], dtype=np.int64)
    begin, end = layers[:, :, 0], layers[:, :, 1]
    return Places(
        types=types,
        kind=np.array([types.index(stage.gpu) for stage in stages], dtype=np.int64),
        count=np.array([replica.count for replica in plan.replicas for _ in replica.stages], dtype=np.int64),
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        first=np.array(first, dtype=np.int64),
        stride=np.array(stride, dtype=np.int64),
        size=size,
        begin=begin,
        end=end,
        shared=_shared(begin, end),
        after=np.concatenate([np.roll(np.arange(low, high), -1) for low, high in pairwise(bounds)]),
        bounds=tuple(bounds),
    )


def _shared(begin: Ints, end: Ints) -> Bools:
    """Return which stages have a layer in common, or the same ranges."""
    low, high = begin[:, None, :, None], end[:, None, :, None]
    common = (low < end[None, :, None, :]) & (begin[None, :, None, :] < high)
    same = (begin[:, None] == begin) & (end[:, None] == end)
    return np.asarray(common.any(axis=(2, 3)) | same.all(axis=2))
