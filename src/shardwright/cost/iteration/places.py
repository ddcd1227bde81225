"""The stages of a plan as columns, with where they stand, and what unequal degrees among the holders of a layer cost.

Holders of unequal degrees cut a layer into shards, as many as the least common multiple of their degrees, and each
shard has flat buffers of its own. A rank with several shards of a layer keeps its weights there, and beside them whole,
as its passes use them, with the gradients to which these add (`runtime.state.store`). Optimizer state is there once. A
stage that shares some of its layers so counts with all of them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.plans.placement import Placement, placement_of
from shardwright.plans.plan import Plan
from shardwright.records import record


@record
class Places:
    """All stages of a plan, replica by replica, as columns [S]: `kind` is the place of its GPU type in `types`, `count`
    the copies of the stage, `size` the GPUs of one. `begin` and `end` [S, v] are the layers of its virtual stages,
    `shared` [S, S] says which stages have layers in common, `after` is the next stage of the replica (of the last: the
    first). Replica r has the stages from `bounds[r]` to `bounds[r + 1]`."""

    placement: Placement
    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    begin: Ints
    end: Ints
    shared: Bools
    after: Ints
    bounds: tuple[int, ...]

    @property
    def types(self) -> tuple[str, ...]:
        return self.placement.types

    @property
    def kind(self) -> Ints:
        return self.placement.type

    @property
    def count(self) -> Ints:
        return self.placement.count

    @property
    def size(self) -> Ints:
        return self.placement.size

    @property
    def first(self) -> Ints:
        """The number of the first GPU of the first copy within its type, [S]."""
        return self.placement.gpu[self.placement.begin]

    @property
    def last(self) -> Ints:
        """The number of the first GPU of the last copy within its type, [S]."""
        return self.placement.gpu[self.placement.begin + self.size * (self.count - 1)]


def places_of(plan: Plan) -> Places:
    """Return the places of all stages of a legal plan."""
    bounds = (0, *np.cumsum([len(replica.stages) for replica in plan.replicas]).tolist())
    columns = [
        (s.tensor_parallel, s.context_parallel, s.expert_parallel, s.expert_tensor_parallel) for s in plan.stages
    ]
    tp, cp, ep, etp = np.array(columns, dtype=np.int64).T
    layers = np.array([stage.layers for stage in plan.stages], dtype=np.int64)
    begin, end = layers[:, :, 0], layers[:, :, 1]
    return Places(
        placement=placement_of(plan),
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        begin=begin,
        end=end,
        shared=_shared(begin, end),
        after=np.concatenate([np.roll(np.arange(low, high), -1) for low, high in pairwise(bounds)]),
        bounds=bounds,
    )


def _shared(begin: Ints, end: Ints) -> Bools:
    """Return which stages have a layer in common, or the same ranges."""
    low, high = begin[:, None, :, None], end[:, None, :, None]
    common = (low < end[None, :, None, :]) & (begin[None, :, None, :] < high)
    same = (begin[:, None] == begin) & (end[:, None] == end)
    return np.asarray(common.any(axis=(2, 3)) | same.all(axis=2))


def copied_parameters(places: Places, dense: Floats, expert: Floats) -> Floats:
    """Return the parameters that a GPU of each stage keeps twice, [S], of `dense` and `expert` ones [S]."""
    blocks = _several(places, places.etp) | _several(places, places.ep)
    return np.asarray(_several(places, places.tp) * dense + blocks * expert)


def _several(places: Places, degree: Ints) -> Bools:
    """Return whether a rank of each stage has more than one shard, [S], where stages are cut into `degree` parts."""
    return np.asarray(np.lcm.reduce(np.where(places.shared, degree, 1), axis=1) > degree)
