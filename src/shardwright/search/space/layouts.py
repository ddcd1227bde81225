"""Enumerates layouts: which GPU holds what. Every row is legal; none is costed here."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, distinct
from shardwright.cost.compute.flops import layer_flops_per_token
from shardwright.cost.context import Context
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM, ZERO3, Layouts
from shardwright.plans.cuts import Cut, cuts_fit, sequences_split
from shardwright.records import record
from shardwright.search.space.axes import (
    Space,
    Value,
    context_parallel_degrees,
    divisors,
    expert_degrees,
    offload_fractions,
    schedules,
    sharded_alone,
    split_choices,
    tensor_parallel_degrees,
    told_to_shard,
    virtual_stages,
)
from shardwright.spec.catalog.frameworks import MEGATRON


@record
class Splits:
    """Layer splits by the number of virtual stages V: rows `offset[V] : offset[V] + count[V]` of `first` and `last`;
    `longest` is the largest number of layers on a virtual stage."""

    first: Ints
    last: Ints
    longest: Ints
    offset: Ints
    count: Ints


def layouts(context: Context, space: Space) -> Layouts:
    """Return all layouts on up to all GPUs of the pool, in a fixed order."""
    batch, gpus, layers = context.job.global_batch, context.pool.gpus, context.layer_count

    def pinned(axis: str, values: list[int]) -> Ints:
        return np.array(space.allowed(axis, values), dtype=np.int64)

    table = {"tp": pinned("tp", tensor_parallel_degrees(context))}
    degrees = pinned("cp", context_parallel_degrees(context))
    tp = table["tp"][:, None]
    table = _crossed(table, {"cp": degrees}, (tp * degrees <= gpus) & sequences_split(context.model, tp, degrees))
    depths, used = pinned("pp", list(range(1, min(layers, gpus) + 1))), table["tp"] * table["cp"]
    table = _crossed(table, {"pp": depths}, used[:, None] * depths <= gpus)
    copies = pinned("dp", divisors(batch, gpus))
    used = (table["tp"] * table["cp"] * table["pp"])[:, None] * copies
    wanted = np.isin(used, space.pins["gpus"]) if "gpus" in space.pins else True
    table = _crossed(table, {"dp": copies}, (used <= gpus) & wanted)
    sizes = pinned("micro_batch", divisors(batch, batch))
    table = _crossed(table, {"micro_batch": sizes}, batch % (table["dp"][:, None] * sizes) == 0)
    table = _with_virtual_stages(table, context, space)
    rows = Layouts(**_with_experts(table, context, space))
    fit = cuts_fit(context.model, context.job, Cut(rows.tp, rows.cp, rows.etp, rows.micro_batch))
    return rows if np.all(fit) else rows.take(np.broadcast_to(fit, len(rows)))


def _crossed(table: dict[str, Ints], columns: dict[str, Ints], legal: Bools) -> dict[str, Ints]:
    """Return the rows of `table`, N, each with those of the M rows of new `columns` that are `legal` for it, [N, M]."""
    row, choice = np.nonzero(legal)
    known = {name: column[row] for name, column in table.items()}
    return {**known, **{name: column[choice] for name, column in columns.items()}}


def _with_virtual_stages(table: dict[str, Ints], context: Context, space: Space) -> dict[str, Ints]:
    """Add vpp. More than one needs a pipeline and micro-batches that are a multiple of its length."""
    count = context.job.global_batch // (table["dp"] * table["micro_batch"])
    able = (table["pp"] > 1) & (count % table["pp"] == 0)
    most = int(table["pp"].max(initial=1))
    choices = [
        np.array(space.allowed("vpp", virtual_stages(context, space, pp)), dtype=np.int64) for pp in range(most + 1)
    ]
    offset = np.cumsum([0, *(len(values) for values in choices)])
    values = np.concatenate(choices)
    pipeline = np.where(able, table["pp"], 1)
    number = offset[pipeline + 1] - offset[pipeline]
    repeated = {key: np.repeat(column, number) for key, column in table.items()}
    ends = np.cumsum(number)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - number, number)
    return {**repeated, "vpp": values[np.repeat(offset[pipeline], number) + within]}


def _with_experts(table: dict[str, Ints], context: Context, space: Space) -> dict[str, Ints]:
    """Add ep and etp. Experts spread over ranks of one pipeline stage; their matrices over the tensor-parallel ranks
    or not at all."""
    degrees = np.array(space.allowed("ep", expert_degrees(context)), dtype=np.int64)
    sparse = context.model.has_experts
    ep, split = (
        np.repeat(degrees, 2),
        np.tile([0, 1], len(degrees)),
    )  # of matrices: 0 or 1
    tp = table["tp"][:, None]
    etp, ranks = np.where(split, tp, 1), (table["tp"] * table["cp"] * table["dp"])[:, None]
    legal = np.where(split, sparse & (tp > 1), True)
    if sparse:
        legal &= ranks % (ep * etp) == 0
    for kind in context.model.kinds:
        legal &= kind.moe is None or kind.moe.expert_width % etp == 0
    if "etp" in space.pins:
        legal &= np.isin(etp, space.pins["etp"])
    table = _crossed(table, {"ep": ep, "split": split}, legal)
    split = table.pop("split")
    return {**table, "etp": np.where(split, table["tp"], 1)}


def even_split(context: Context, stages: int) -> tuple[int, int]:
    """Return layers of the first and the last of `stages` virtual stages that share the layers evenly; where they do
    not divide, those between have the larger parts."""
    share = context.layer_count // stages
    if stages == 1:
        return context.layer_count, context.layer_count
    return share, context.layer_count - share if stages == 2 else share


def head_layers(context: Context) -> float:
    """Return the work of the logits (and of multi-token prediction) in units of the mean layer."""
    model, attended = context.model, context.job.attended_tokens
    per_layer = [layer_flops_per_token(model, kind, attended) for kind in model.kinds]
    mean = sum(per_layer[kind] for kind in model.kind_of_layer) / len(model.layers)
    logits = 2.0 * model.hidden * model.head_outputs * (1 + model.mtp_layers)
    return (logits + model.mtp_layers * per_layer[model.kind_of_layer[-1]]) / mean


def splits(context: Context, space: Space, stages: Ints) -> Splits:
    """Return the layer splits for every number of virtual stages in `stages`."""
    weight = head_layers(context)
    size = int(stages.max(initial=0)) + 1
    offset, count = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    firsts: list[Ints] = []
    lasts: list[Ints] = []
    longest: list[Ints] = []
    total = 0
    for number in distinct(stages):
        first, last = split_choices(context, space, int(number), weight)
        middle = -(-(context.layer_count - first - last) // max(int(number) - 2, 1)) if number > 2 else 0
        firsts.append(first)
        lasts.append(last)
        longest.append(np.maximum(np.maximum(first, last), middle))
        offset[number], count[number] = total, len(first)
        total += len(first)
    empty = np.zeros(0, dtype=np.int64)
    return Splits(
        first=np.concatenate([empty, *firsts]),
        last=np.concatenate([empty, *lasts]),
        longest=np.concatenate([empty, *longest]),
        offset=offset,
        count=count,
    )


def rank_orders(
    context: Context, space: Space, rows: Layouts, *, apart: bool = False
) -> list[tuple[Bools, tuple[Value, ...]]]:
    """Return the rank orders that the pins leave, each with the layouts [N] that have them.

    Where either order places all ranks alike it counts as the first that is left, or as all of them if they are to be
    told `apart`, as rules do."""
    legal = runs_data_outermost(context, rows)
    differ = (rows.pp > 1) & (rows.dp > 1)
    every, usual = space.allowed("rank_order", (0, 1)), space.allowed("rank_order", (0,))
    return [(legal & differ, every), (legal & ~differ, every if apart else every[:1]), (~legal, usual)]


def runs_data_outermost(context: Context, rows: Layouts) -> Bools:
    """Return which layouts may have data parallelism outside the pipeline, [N]. Megatron-LM, unlike others, wants
    expert groups there (for dense models: tensor-parallel groups) that span tensor and context parallelism exactly (its
    parallel_state.py)."""
    if context.job.framework != MEGATRON:
        return np.ones(len(rows.cp), dtype=bool)
    dense = all(kind.moe is None for kind in context.model.kinds)
    return np.asarray(rows.cp == 1 if dense else rows.ep * rows.etp == rows.tp * rows.cp)


def candidate_counts(
    context: Context, space: Space, rows: Layouts, choices: Splits, *, orders_apart: bool = False
) -> Floats:
    """Return how many candidates each layout stands for, [N]: all legal settings of the switches. Megatron-LM trains
    experts with tensor parallelism only under sequence parallelism, and splits the context only with FlashAttention."""
    moe = context.model.has_experts

    def options(axis: str, *values: int) -> int:
        return len(space.allowed(axis, values))

    def when(mask: Bools, yes: int, no: int) -> Floats:
        return np.where(mask, float(yes), float(no))

    order = sum(mask * float(len(values)) for mask, values in rank_orders(context, space, rows, apart=orders_apart))
    can_sp = (rows.tp > 1) & (context.job.seq_len // rows.cp % rows.tp == 0)
    without = options("sequence_parallel", 0) * options("overlap_tp", 0)
    with_sp = options("sequence_parallel", 1) * options("overlap_tp", 0, 1)
    sequence = when(can_sp, with_sp + (0 if moe else without), without)
    sequence = np.where((rows.tp > 1) & ~can_sp & moe, 0.0, sequence)
    flash = when(rows.cp > 1, options("flash", 1), options("flash", 0, 1))
    p2p = np.where(
        rows.vpp > 1,
        when(rows.pp > 2, options("overlap_pp", 0, 1), options("overlap_pp", 1)),
        options("overlap_pp", 0),
    )
    plain = options("sharding", 0) * options("offload", 0)
    fractions = offload_fractions(space, sharded=True)
    no_gather, gather = options("overlap_param", 0), options("overlap_param", 1)
    grads = options("overlap_grad", 0, 1)
    overlapped = options("overlap_grad", 0) * no_gather + options("overlap_grad", 1) * (no_gather + gather)
    unsharded = plain * grads * no_gather
    shardings = options("sharding", 1) + options("sharding", 2, 3) * (rows.pp == 1)
    on_one = sum(part > 0 or told_to_shard(space) for part in fractions)
    lone = options("sharding", 1) + options("sharding", 2, 3) * (rows.pp == 1) * sharded_alone(context, ZERO3)
    alone = (plain + lone * on_one) * options("overlap_grad", 0) * no_gather
    state = np.where(rows.dp * rows.cp > 1, unsharded + shardings * len(fractions) * overlapped, alone)
    splits = _split_counts(context, space, rows, choices) * options("zero_bubble", 0)
    if 1 in schedules(context, space):
        splits = splits + options("recompute", NONE) * (rows.pp > 1) * choices.count[rows.pp * rows.vpp]
    return np.asarray(order * sequence * flash * p2p * state * splits)


def _split_counts(context: Context, space: Space, rows: Layouts, choices: Splits) -> Floats:
    """Return the settings of split and recomputation, [N]."""
    settings = np.concatenate([[0], np.cumsum(recompute_counts(context, space, choices.longest))])
    start = choices.offset[rows.pp * rows.vpp]
    return np.asarray(settings[start + choices.count[rows.pp * rows.vpp]] - settings[start], dtype=float)


def recompute_counts(context: Context, space: Space, longest: Ints) -> Ints:
    """Return the settings of recomputation for splits whose longest virtual stage has `longest` layers, [N]."""

    def options(*values: int) -> int:
        return len(space.allowed("recompute", values))

    pinned = space.pins.get("recompute_layers")
    count = np.full(len(longest), options(NONE, SELECTIVE), dtype=np.int64)
    for mode in (UNIFORM, BLOCK):
        most = most_recomputed_layers(context, mode, longest)
        count += options(mode) * (most if pinned is None else np.sum([(n >= 1) & (n <= most) for n in pinned], axis=0))
    return count


def most_recomputed_layers(context: Context, mode: int, longest: Ints) -> Ints:
    """Return the largest --recompute-num-layers, [N]: the layers of the longest virtual stage. Megatron-LM recomputes
    layers of multi-token prediction in groups of one only."""
    return np.minimum(longest, 1) if mode == UNIFORM and context.model.mtp_layers else longest
