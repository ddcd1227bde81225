"""The declared space of uniform strategies, listed candidate by candidate: slow, obvious, and written from
Megatron-LM's demands and the meaning of the axes, not from the search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from shardwright.cost.compute.flops import layer_flops_per_token
from shardwright.cost.context import Context
from shardwright.cost.strategies import (
    BLOCK,
    COLUMNS,
    DTYPES,
    NONE,
    SELECTIVE,
    UNIFORM,
    ZERO1,
    ZERO2,
    ZERO3,
    Strategies,
)
from shardwright.files import shipped_table
from shardwright.plans.cuts import Cut, cuts_fit
from shardwright.spec.model import training_kind

Pins = Mapping[str, tuple[float, ...]]
Layout = tuple[int, ...]
LAYOUT = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch")
assert COLUMNS[:8] == LAYOUT


def left(pins: Pins, axis: str, values: Sequence[float]) -> list:
    return [value for value in values if axis not in pins or value in pins[axis]]


def layouts(context: Context, pins: Pins) -> Iterator[Layout]:
    """Yield every layout, by trying every number."""
    gpus, batch = context.pool.gpus, context.job.global_batch
    for tp in left(pins, "tp", [t for t in range(1, gpus + 1) if tensor_parallel_works(context, t)]):
        for cp in left(pins, "cp", [c for c in range(1, gpus // tp + 1) if context_parallel_works(context, c)]):
            if any_experts(context) and tp > 1 and context.job.seq_len // cp % tp:
                continue  # experts with tensor parallelism need sequence parallelism, which cannot split this
            for pp in left(pins, "pp", range(1, min(gpus // tp // cp, context.layer_count) + 1)):
                for dp in left(pins, "dp", range(1, gpus // tp // cp // pp + 1)):
                    if "gpus" in pins and tp * cp * pp * dp not in pins["gpus"]:
                        continue
                    for micro_batch in left(pins, "micro_batch", range(1, batch + 1)):
                        if batch % (dp * micro_batch):
                            continue
                        count = batch // (dp * micro_batch)
                        for vpp in left(pins, "vpp", virtual(context, pins, pp, count)):
                            for ep, etp in experts(context, pins, tp, tp * cp * dp):
                                if not cuts_fit(context.model, context.job, Cut(tp, cp, etp, micro_batch)):
                                    continue  # tests.support holds what trainers take
                                yield tp, cp, pp, dp, ep, etp, vpp, micro_batch


def any_experts(context: Context) -> bool:
    return context.model.has_experts


def tensor_parallel_works(context: Context, tp: int) -> bool:
    pool, model = context.pool, context.model
    if pool.domain_gpus % tp or (pool.gpus_per_node % tp and tp % pool.gpus_per_node) or model.hidden % tp:
        return False
    for layer in model.layers:
        heads, kv_heads = layer.self_attention.heads, layer.self_attention.kv_heads
        if heads % tp or (kv_heads % tp and tp % kv_heads):
            return False
        if (layer.mlp and layer.mlp.width % tp) or (layer.moe and layer.moe.shared_width % tp):
            return False
    return True


def context_parallel_works(context: Context, cp: int) -> bool:
    if cp == 1:
        return True
    causal = all(layer.self_attention.causal for layer in context.model.layers)
    return causal and cp <= 64 and context.job.seq_len % (2 * cp) == 0


def virtual(context: Context, pins: Pins, pp: int, count: int) -> list[int]:
    """Interleaving shares the layers evenly, where embedding or logits or both may count as a layer."""
    if pp == 1 or count % pp:
        return [1]
    layers = context.layer_count
    able = range(2, (layers + 2) // pp + 1)
    return [1] + [
        v for v in able if v in pins.get("vpp", ()) or any((layers + more) % (v * pp) == 0 for more in (0, 1, 2))
    ]


def experts(context: Context, pins: Pins, tp: int, ranks: int) -> list[tuple[int, int]]:
    if not any_experts(context):
        return [(ep, 1) for ep in left(pins, "ep", [1]) for _ in left(pins, "etp", [1])]
    found = []
    for ep in left(pins, "ep", range(1, context.pool.gpus + 1)):
        for etp in left(pins, "etp", sorted({1, tp})):
            moes = [layer.moe for layer in context.model.layers if layer.moe]
            if ranks % (ep * etp) == 0 and all(m.experts % ep == 0 and m.expert_width % etp == 0 for m in moes):
                found.append((ep, etp))
    return found


def switches(context: Context, pins: Pins, layout: Layout) -> list[list[tuple]]:
    """Return the independent choices of a layout, each a list of values for some of the columns, in their order."""
    return [
        [(code,) for code in rank_orders(context, pins, layout)],
        layer_switches(context, pins, layout),
        [(on,) for on in left(pins, "overlap_pp", transfer_overlaps(layout))],
        [
            (*split, *recompute)
            for split in splits(context, pins, layout)
            for recompute in recomputations(context, pins, layout, split)
        ],
        states(context, pins, layout),
    ]


def rank_orders(context: Context, pins: Pins, layout: Layout) -> list[int]:
    """Where both orders place all ranks alike, they are one candidate, under whatever name the pins leave."""
    tp, cp, pp, dp, ep, etp, _, _ = layout
    megatron = context.job.framework == "megatron"
    if megatron and ((ep * etp != tp * cp) if any_experts(context) else cp > 1):
        return left(pins, "rank_order", [0])
    either = left(pins, "rank_order", [0, 1])
    return either[:1] if pp == 1 or dp == 1 else either


def layer_switches(context: Context, pins: Pins, layout: Layout) -> list[tuple]:
    """(sequence parallel, FlashAttention, overlap of tensor-parallel communication)"""
    tp, cp = layout[:2]
    found = []
    for sequence, flash, overlap in product((0, 1), (0, 1), (0, 1)):
        possible = tp > 1 and context.job.seq_len // cp % tp == 0
        if (sequence and not possible) or (overlap and not sequence):
            continue
        if (any_experts(context) and tp > 1 and not sequence) or (cp > 1 and not flash):
            continue
        if left(pins, "sequence_parallel", [sequence]) and left(pins, "flash", [flash]):
            found += [(sequence, flash, overlap)] * len(left(pins, "overlap_tp", [overlap]))
    return found


def transfer_overlaps(layout: Layout) -> list[int]:
    pp, vpp = layout[2], layout[6]
    if vpp == 1:
        return [0]
    return [1] if pp == 2 else [0, 1]


def splits(context: Context, pins: Pins, layout: Layout) -> list[tuple[int, int]]:
    """Layers of the first and the last virtual stage, around the even share."""
    layers, stages = context.layer_count, layout[2] * layout[6]
    if stages == 1:
        kept = left(pins, "first_layers", [layers]) and left(pins, "last_layers", [layers])
        return [(layers, layers)] if kept else []
    share = layers // stages
    firsts = pins.get("first_layers", range(share - 2, share + 2))
    lasts = pins.get("last_layers", range(share - math.ceil(logit_layers(context)) - 1, share + 2))
    if stages == 2:
        both = {(f, layers - f) for f in firsts} | {(layers - k, k) for k in lasts}
        both = {(f, k) for f, k in both if left(pins, "first_layers", [f]) and left(pins, "last_layers", [k])}
        return sorted((f, k) for f, k in both if f >= 0 and k >= 0)
    return [(f, k) for f in firsts for k in lasts if f >= 0 and k >= 0 and f + k <= layers]


def logit_layers(context: Context) -> float:
    """The work of the logits and of multi-token prediction, in mean layers."""
    model, seq_len = context.model, context.job.seq_len
    work = [layer_flops_per_token(model, layer, seq_len) for layer in model.layers]
    head = 2 * model.hidden * model.vocab * (1 + model.mtp_layers) + model.mtp_layers * work[-1]
    return head * len(work) / sum(work)


def recomputations(context: Context, pins: Pins, layout: Layout, split: tuple[int, int]) -> list[tuple[int, int]]:
    """(recompute, recompute_layers), the latter up to the layers of the longest virtual stage"""
    first, last = split
    stages = layout[2] * layout[6]
    between = math.ceil((context.layer_count - first - last) / (stages - 2)) if stages > 2 else 0
    found = [(mode, 0) for mode in left(pins, "recompute", [NONE, SELECTIVE])]
    for mode in left(pins, "recompute", [UNIFORM, BLOCK]):
        most = 1 if mode == UNIFORM and context.model.mtp_layers else max(first, last, between)
        found += [(mode, number) for number in left(pins, "recompute_layers", range(1, most + 1))]
    return found


def schedules(context: Context, pins: Pins, layout: Layout, recompute: int) -> list[int]:
    """Whether gradients of weights are apart, where they are asked for: `train` does it for plain products of pipelines
    that recompute nothing."""
    job, asked = context.job, "zero_bubble" in pins
    able = job.framework == "train" and job.precision != "fp8" and layout[2] > 1 and recompute == NONE
    return left(pins, "zero_bubble", [0, 1] if able and asked else [0])


def states(context: Context, pins: Pins, layout: Layout) -> list[tuple]:
    """(sharding, offload, overlap of gradient reduction, overlap of weight gathering)"""
    _, cp, pp, dp = layout[:4]
    found = []
    offloads = pins.get("offload", (0.0, 0.25, 0.5, 0.75, 1.0))
    for sharding, grad, param in product((0, ZERO1, ZERO2, ZERO3), (0, 1), (0, 1)):
        if dp * cp == 1 and (grad or param):
            continue
        if dp * cp == 1 and sharding > ZERO1 and context.job.framework not in ("deepspeed", "fsdp"):
            continue  # ZeRO-1 by another name
        if (param and not (grad and sharding)) or (sharding > ZERO1 and pp > 1):
            continue
        pinned = {"sharding": sharding, "overlap_grad": grad, "overlap_param": param}
        if all(left(pins, axis, [value]) for axis, value in pinned.items()):
            amounts = offloads if sharding else left(pins, "offload", [0.0])
            # Nothing to shard on one rank, but the state may lie in host memory, or pins want it so.
            alone = sharding > 0 and dp * cp == 1 and bool(left(pins, "sharding", [0]))
            found += [(sharding, amount, grad, param) for amount in amounts if amount > 0 or not alone]
    return found


def size(context: Context, pins: Pins, limit: int) -> int:
    """Return the number of candidates, or some number above `limit`."""
    total = 0
    for layout in layouts(context, pins):
        total += candidates_of(context, pins, layout)
        if total > limit:
            break
    return total


def candidates_of(context: Context, pins: Pins, layout: Layout) -> int:
    """Return the number of candidates of a layout."""
    order, layer, move, split, state = switches(context, pins, layout)
    splits_and_schedules = sum(len(schedules(context, pins, layout, recompute)) for *_, recompute, _ in split)
    return math.prod(len(choice) for choice in (order, layer, move, state)) * splits_and_schedules


def candidates(context: Context, pins: Pins) -> Strategies:
    """Return every candidate of the space."""
    rows = [
        (*layout, *order, *layer, *move, *split, *state, apart)
        for layout in layouts(context, pins)
        for order, layer, move, split, state in product(*switches(context, pins, layout))
        for apart in schedules(context, pins, layout, split[2])
    ]
    table = np.array(rows, dtype=float).reshape(len(rows), len(COLUMNS))
    return Strategies(**{name: table[:, place].astype(DTYPES[name]) for place, name in enumerate(COLUMNS)})


def layout_numbers(rows: Strategies) -> np.ndarray:
    """Return a number for each row [N] that is equal for rows of one layout."""
    if not len(rows):
        return np.zeros(0, dtype=int)
    return np.unique(np.stack([getattr(rows, name) for name in LAYOUT], axis=1), axis=0, return_inverse=True)[1]


def rare_switches(context: Context, rows: Strategies) -> np.ndarray:
    """Return how much a row has of what hardly any published run has, or none of such a model on such a GPU, [N]."""
    architecture, kind = context.pool.gpu.architecture, training_kind(context.model, adapters=False)
    rare = (rows.offload > 0) * 1 + (rows.sharding == ZERO2) + (rows.vpp > 12) + rows.zero_bubble
    for row in shipped_table("shardwright.cost.trust", "rare_switches.csv"):
        if (row["architecture"], row["model_kind"]) == (architecture, kind):
            values = getattr(rows, row["axis"])
            rare = rare + ((values >= float(row["least"])) & (values <= float(row["most"])))
    return rare


def preferred(
    context: Context, cost: np.ndarray, rows: Strategies, layout: np.ndarray, indifference: float
) -> list[tuple]:
    """Return (beyond, rare switches, cost) of the best row of each layout, best first: of those that cost at most
    `indifference` more than the least, the ones with the fewest rare switches."""
    within = cost.min(initial=np.inf) * (1.0 + indifference)
    best: dict[int, tuple] = {}
    for value, rare, place in zip(cost, rare_switches(context, rows), layout, strict=True):
        key = (True, 0, value) if value > within else (False, int(rare), value)
        best[place] = min(key, best.get(place, key))
    return sorted(best.values())
