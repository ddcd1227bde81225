"""Which buckets are cut over their holders beyond the optimizer: gradients under ZeRO-2, weights too under ZeRO-3.

Their parts are gathered and summed within passes, by all holders together. So these must run the same passes of the
same units in the same order, as the copies of equal replicas do. Buckets of other holders, and embeddings tied to the
head of another stage, are held whole, as under ZeRO-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.runtime.layout.groups import Layout
from shardwright.runtime.layout.places import Place
from shardwright.runtime.state.buckets import Bucket, buckets_of, frozen_buckets_of


def kept_apart(layout: Layout, bucket: Bucket) -> tuple[bool, bool]:
    """Return whether a holder of a bucket keeps its own part alone of the weights, and of the gradients."""
    sharding = layout.plan.optimizer.sharding
    cut = sharding in ("zero2", "zero3") and bucket.alone and len(bucket.ranks) > 1 and in_step(layout, bucket.ranks)
    return cut and sharding == "zero3", cut


def in_step(layout: Layout, ranks: Sequence[int]) -> bool:
    """Return whether ranks run the same passes of the same units in the same order. Layer by layer all do, whatever
    their micro-batches."""
    if layout.plan.layered:
        return True
    courses = set()
    for rank in ranks:
        place = layout.places[rank]
        stage = layout.plan.replicas[place.replica].stages[place.stage]
        courses.add((place.chunks, place.stage, place.depth, place.micro_batches, replace(stage, gpu="")))
    return len(courses) == 1


def held_whole(layout: Layout, place: Place) -> str:
    """Return what a rank holds whole though the plan shards it, in words; nothing where there is no such thing."""
    sharding = layout.plan.optimizer.sharding
    if sharding not in ("zero2", "zero3"):
        return ""
    buckets = (*buckets_of(layout, place), *frozen_buckets_of(layout, place))
    shared = [bucket for bucket in buckets if len(bucket.ranks) > 1]
    whole = sorted({unit for bucket in shared if not kept_apart(layout, bucket)[1] for unit in bucket.units})
    if not whole:
        return ""
    what = "gradients" if sharding == "zero2" else "weights and gradients"
    units = {unit for bucket in shared for unit in bucket.units}
    return what if len(whole) == len(units) else f"{what} of {len(whole)} of {len(units)} units"
