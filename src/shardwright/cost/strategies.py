"""`Strategies`: many uniform parallel strategies as columns, one row each; rows of plans, and the plan of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from shardwright.arrays import Array, Bools, Columns, Floats, Ints
from shardwright.plans.plan import (
    OptimizerPlan,
    Overlap,
    Plan,
    RankOrder,
    Recompute,
    Replica,
    Schedule,
    Sharding,
    Stage,
)
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model

RECOMPUTE = ("none", "selective", "uniform", "block")
NONE, SELECTIVE, UNIFORM, BLOCK = range(4)
SHARDING: tuple[Sharding, ...] = get_args(Sharding)
UNSHARDED, ZERO1, ZERO2, ZERO3 = range(4)
RANK_ORDERS: tuple[RankOrder, ...] = get_args(RankOrder)
PIPELINE_OUTERMOST, DATA_OUTERMOST = range(2)


Row = dict[str, Any]  # one strategy by the names of its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Columns):
    """Columns [N] of parallel degrees, virtual stages per rank and micro-batch size."""

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    micro_batch: Ints

    @property
    def gpus(self) -> Ints:
        """GPUs that each layout uses, [N]."""
        return self.tp * self.cp * self.pp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies(Layouts):
    """Layouts with all else that decides their cost, [N].

    `recompute`, `sharding` and `rank_order` are codes into the tuples above. `first_layers` and `last_layers` are
    the layers of the first and the last virtual stage; those between share the rest as evenly as can be, larger ones
    last (`splits.boundaries`). `recompute_layers` is Megatron-LM's --recompute-num-layers.
    """

    rank_order: Ints
    sequence_parallel: Bools
    flash: Bools
    overlap_tp: Bools
    overlap_pp: Bools
    first_layers: Ints
    last_layers: Ints
    recompute: Ints
    recompute_layers: Ints
    sharding: Ints
    offload: Floats
    overlap_grad: Bools
    overlap_param: Bools
    zero_bubble: Bools


DEGREES: tuple[str, ...] = tuple(field.name for field in fields(Layouts))
COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Strategies))
DTYPES: dict[str, type] = {
    name: bool
    if name.startswith(("overlap", "sequence", "flash", "zero_bubble"))
    else float
    if name == "offload"
    else int
    for name in COLUMNS
}
PLAIN = {name: DTYPES[name](name in DEGREES) for name in COLUMNS}  # all degrees 1, all switches off


def columns(count: int, given: Mapping[str, Array]) -> Strategies:
    """Return `count` rows with the columns `given`; what is not given is plain: degrees are 1, switches off."""
    return Strategies(
        **{
            name: given[name].astype(DTYPES[name], copy=False)
            if name in given
            else np.full(count, PLAIN[name], dtype=DTYPES[name])
            for name in COLUMNS
        }
    )


def strategies(rows: Sequence[Mapping[str, Any]]) -> Strategies:
    """Return rows, given as dictionaries of what is not plain, as columns."""
    full = [{**PLAIN, **row} for row in rows]
    return columns(len(rows), {name: np.array([row[name] for row in full]) for name in COLUMNS})


def settled(given: Mapping[str, Any]) -> Row:
    """Return a whole row: what is not given is plain, and what the degrees leave nothing to do for is off. State is
    sharded by a single data-parallel rank only to keep a part of it in host memory."""
    row = {**PLAIN, **given}
    split, ranks = row["tp"] > 1, row["dp"] * row["cp"] > 1
    sharding = row["sharding"] if ranks or row["offload"] else UNSHARDED
    return {
        **row,
        "sequence_parallel": row["sequence_parallel"] and split,
        "overlap_tp": row["overlap_tp"] and split,
        "overlap_pp": row["overlap_pp"] and row["vpp"] > 1,
        "zero_bubble": row["zero_bubble"] and row["pp"] > 1 and row["recompute"] == NONE,
        "sharding": sharding,
        "overlap_grad": row["overlap_grad"] and ranks,
        "overlap_param": row["overlap_param"] and ranks and sharding != UNSHARDED,
    }


def values_of(row: Strategies) -> Row:
    """Return the values of a single row."""
    return {name: getattr(row, name)[0].item() for name in COLUMNS}


def stage_row(plan: Plan, replica: Replica, stage: Stage) -> Row:
    """Return the strategy of a pipeline of such stages. All data-parallel copies of the plan share the state of a
    layer, so the row has them all."""
    first, last = replica.stages[0].layers[0], replica.stages[-1].layers[-1]
    split = stage.tensor_parallel > 1
    return {
        "tp": stage.tensor_parallel,
        "cp": stage.context_parallel,
        "ep": stage.expert_parallel,
        "etp": stage.expert_tensor_parallel,
        "pp": len(replica.stages),
        "dp": plan.data_parallel,
        "vpp": plan.schedule.virtual_stages,
        "micro_batch": plan.micro_batch,
        "rank_order": RANK_ORDERS.index(plan.rank_order),
        "sequence_parallel": plan.sequence_parallel and split,
        "flash": plan.flash_attention,
        "overlap_tp": plan.overlap.tensor_parallel and split,
        "overlap_pp": plan.overlap.pipeline,
        "first_layers": first[1] - first[0],
        "last_layers": last[1] - last[0],
        "recompute": RECOMPUTE.index(stage.recompute.method or stage.recompute.granularity),
        "recompute_layers": stage.recompute.layers or 0,
        "sharding": SHARDING.index(plan.optimizer.sharding),
        "offload": plan.optimizer.offload,
        "overlap_grad": plan.overlap.grad_reduce,
        "overlap_param": plan.overlap.param_gather,
        "zero_bubble": plan.schedule.weights_apart,
    }


def stage_rows(plan: Plan, replica: Replica) -> Strategies:
    """Return every stage of a replica as the strategy of a pipeline of such stages, [P]."""
    return strategies([stage_row(plan, replica, stage) for stage in replica.stages])


def row_of(plan: Plan) -> Strategies:
    """Return the row of a uniform plan; of another that of its first stage."""
    return stage_rows(plan, plan.replicas[0]).take(slice(0, 1))


def stage_starts(replica: Replica, virtual_stages: int) -> list[int]:
    """Return the layer at which each virtual stage starts, and the last one ends."""
    ranges = [stage.layers[chunk] for chunk in range(virtual_stages) for stage in replica.stages]
    return [*(start for start, _ in ranges), ranges[-1][1]]


def schedule_of(row: Mapping[str, Any]) -> Literal["1f1b", "interleaved", "zero-bubble"]:
    """Return the kind of a row's schedule."""
    if row["zero_bubble"]:
        return "zero-bubble"
    return "interleaved" if row["vpp"] > 1 else "1f1b"


def plan_of_row(row: Strategies, model: Model, job: Job, cluster: Cluster, gpu: str, *, label: str = "") -> Plan:
    """Return the plan of a single row on GPUs of the type `gpu`."""
    value = values_of(row)
    pp, vpp = value["pp"], value["vpp"]
    starts = boundaries(len(model.layers), pp * vpp, row.first_layers, row.last_layers)[0].tolist()
    stages = tuple(
        Stage(
            gpu=gpu,
            tensor_parallel=value["tp"],
            context_parallel=value["cp"],
            expert_parallel=value["ep"],
            expert_tensor_parallel=value["etp"],
            layers=tuple((starts[chunk * pp + rank], starts[chunk * pp + rank + 1]) for chunk in range(vpp)),
            recompute=recompute_of(value["recompute"], value["recompute_layers"]),
        )
        for rank in range(pp)
    )
    count = job.global_batch // (value["dp"] * value["micro_batch"])
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=value["micro_batch"],
        schedule=Schedule(kind=schedule_of(value), virtual_stages=vpp),
        replicas=(Replica(count=value["dp"], micro_batches=count, stages=stages),),
        optimizer=OptimizerPlan(sharding=SHARDING[value["sharding"]], offload=value["offload"]),
        overlap=Overlap(
            grad_reduce=value["overlap_grad"],
            param_gather=value["overlap_param"],
            tensor_parallel=value["overlap_tp"],
            pipeline=value["overlap_pp"],
        ),
        sequence_parallel=value["sequence_parallel"],
        flash_attention=value["flash"],
        rank_order=RANK_ORDERS[value["rank_order"]],
        label=label,
    )


def recompute_of(code: int, layers: int) -> Recompute:
    """Return the recomputation of a row."""
    if code in (UNIFORM, BLOCK):
        return Recompute(granularity="full", method="uniform" if code == UNIFORM else "block", layers=layers)
    return Recompute(granularity="selective" if code == SELECTIVE else "none")


def boundaries(layers: int, stages: int, first: Ints, last: Ints) -> Ints:
    """Return the layer at which each virtual stage starts, [N, stages + 1], for stages that share `layers` layers.

    The first stage has `first` layers and the last `last`; those between have equal numbers, or one more, and the
    larger ones come last, where fewer micro-batches are in flight.
    """
    counts = np.zeros((len(first), stages), dtype=np.int64)
    counts[:, 0] = first
    if stages > 1:
        counts[:, -1] = last
    if stages > 2:
        middle = layers - first - last
        whole, extra = np.divmod(middle, stages - 2)
        larger = np.arange(stages - 2) >= (stages - 2 - extra)[:, None]
        counts[:, 1:-1] = whole[:, None] + larger
    starts = np.zeros((len(first), stages + 1), dtype=np.int64)
    np.cumsum(counts, axis=1, out=starts[:, 1:])
    return starts
