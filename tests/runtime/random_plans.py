"""Random plans: replicas of any depth, split, degree, recomputation and number of micro-batches.

`drawn` gives any plan that a file can say, legal or not, for a seed; `plans` are legal ones for hypothesis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st
from tests.golden.plans import cluster_of
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.forward_pass import ForwardPass
from shardwright.spec.layer import Attention, Layer, Mlp, Moe, SharedBlock, interned
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, Mixer, ShortConvolution
from shardwright.spec.model import Model

KINDS = (
    Recompute(),
    Recompute(granularity="selective"),
    Recompute(granularity="full", method="uniform", layers=2),
    Recompute(granularity="full", method="block", layers=1),
)
MOST_GPUS = 8
SHARDINGS = ("none", "zero1", "zero2", "zero3")
# What is side by side alone: `mixer_scales` are as many as one mixer has projections.
SCALED = ForwardPass(branch_scales=((1.3, 0.8), (1.2, 0.5)), key_scale=0.3, gate_scale=0.7, logit_scale=0.6)

Drawn = Callable[[Random], Model]


def drawn(seed: int, model_of: Drawn | None = None) -> Plan:
    """Return any plan for `shardwright train` on up to eight GPUs, two thirds of them legal: every degree of every
    stage, and every switch, is drawn for itself, and so is the model, unless `model_of` draws another."""
    random = Random(seed)
    plan_of = _layered if random.random() < 0.1 else _pipelines
    return plan_of(random, random.choice((1, 1, 2, 2, 2, 3)), model_of or _model)


def hybrid(random: Random) -> Model:
    """A model of which every block has another mixer, attention, both side by side or none, and a feed-forward, experts
    or none; half of them are scaled everywhere."""
    plain = tiny_model(1, experts=0, vocab=random.choice((61, 64)), hidden=32).layers[0]
    mixers: tuple[Mixer, ...] = (
        Mamba(inner=24, state=5, rank=3, width=4, normed=random.random() < 0.5),
        Mamba2(heads=8, head_dim=4, groups=4, state=6, width=4, chunk=5),
        GatedDelta(key_heads=4, key_dim=4, value_heads=8, value_dim=6, width=4),
        GatedDelta(
            key_heads=4,
            key_dim=6,
            value_heads=4,
            value_dim=6,
            width=4,
            decay="channel",
            gate_rank=random.choice((None, 5)),
            most_decay=random.choice((None, 2.0)),
        ),
        Lightning(heads=4, head_dim=6, chunk=5),
        ShortConvolution(channels=24, width=3),
    )
    moe = Moe(experts=4, top_k=2, expert_width=24, gated=True, shared_width=16, latent=random.choice((None, 16)))
    feeds: tuple[dict[str, Any], ...] = ({"mlp": plain.mlp}, {"mlp": plain.mlp}, {"moe": moe}, {})
    blocks = []
    both = {"attention": plain.attention, "mixer": mixers[1]}
    for mixer in random.sample((*mixers, plain.attention, both, None), random.randint(2, 5)):
        mixed = mixer if isinstance(mixer, dict) else {"attention" if isinstance(mixer, Attention) else "mixer": mixer}
        parts = {"attention": None, "mlp": None, "moe": None, **mixed, **random.choice(feeds if mixer else feeds[:3])}
        layer = replace(plain, **parts)
        blocks.append(replace(layer, norms=layer.sublayers))
    if not any(layer.attention for layer in blocks):
        blocks[0] = plain
    model = replace(tiny_model(1, tied=random.random() < 0.4), layers=tuple(blocks))
    return replace(model, forward_pass=SCALED) if random.random() < 0.5 else model


def sharing(random: Random) -> Model:
    """A model whose layers have mixers alone, of one kind, or share one block or two before these; some add what is of
    low rank, and some blocks rotate."""
    heads = random.choice((None, 2, 4))
    mixer = random.choice(
        (
            Mamba(inner=24, state=5, rank=3, width=4, heads=heads),
            Mamba2(heads=8, head_dim=4, groups=4, state=6, width=4, chunk=5, norm_epsilon=1e-3),
        )
    )
    plain = tiny_model(1, hidden=32, vocab=random.choice((61, 64))).layers[0]
    kv_heads = random.choice((2, 4))
    attention = Attention(heads=4, kv_heads=kv_heads, head_dim=16, value_head_dim=16, doubled=True)
    block = SharedBlock(feed_rank=random.choice((None, 6)), attention_rank=random.choice((None, 5)))
    alone = Layer(attention=None, mlp=None, moe=None, norms=1, mixer=mixer)
    both = Layer(attention=attention, mlp=plain.mlp, moe=None, norms=4, mixer=mixer, shared=block)
    layers = [both, *random.choices((alone, both), k=random.randint(1, 4))]
    random.shuffle(layers)
    blocks = random.randint(1, sum(layer.shared is not None for layer in layers))
    model = replace(tiny_model(1, tied=random.random() < 0.5), layers=interned(layers), shared_blocks=blocks)
    return replace(model, position=random.choice(("rope", "none")), forward_pass=ForwardPass(score_scale=0.3))


def odd(random: Random) -> Model:
    """A model whose heads, widths and experts three divides, with heads of a width of their own: degrees of three, and of
    two beside three, are legal."""
    heads, kv_heads = random.choice(((6, 6), (6, 3), (6, 1), (12, 3), (3, 1)))
    model = tiny_model(
        random.randint(1, 4),
        family=random.choice(("llama", "qwen2", "qwen3")),
        tied=random.random() < 0.4,
        experts=random.choice((0, 0, 3, 6, 9)),
        shared=random.random() < 0.4,
        vocab=random.choice((59, 61, 67)),
        heads=heads,
        kv_heads=kv_heads,
    )
    attention = replace(
        model.layers[0].self_attention, head_dim=(width := random.choice((2, 4, 6))), value_head_dim=width
    )
    layers = [replace(kind, attention=attention) for kind in model.layers]
    shared = [kind.moe and replace(kind.moe, shared_width=kind.moe.shared_width * 3) for kind in layers]
    layers = [replace(kind, moe=moe) for kind, moe in zip(layers, shared, strict=True)]
    return replace(model, layers=tuple(layers))


def _pipelines(random: Random, count: int, model_of: Drawn) -> Plan:
    model, virtual = model_of(random), random.choice((1, 1, 1, 2, 2, 3))
    virtual = 1 if model.shared_blocks else virtual
    replicas = [_replica(random, model, virtual, MOST_GPUS // count) for _ in range(count)]
    split = any(stage.tensor_parallel > 1 for item in replicas for stage in item.stages)
    sharding = random.choice(SHARDINGS)
    plan = plan_of(
        model,
        *replicas,
        micro_batch=random.choice((1, 1, 2, 3)),
        sequence_parallel=split and random.random() < 0.5,
        sharding=sharding,
        offload=random.choice((0.0, 0.0, 0.3, 1.0)) if sharding != "none" or random.random() < 0.1 else 0.0,
        virtual_stages=virtual,
    )
    grad_reduce = random.random() < 0.7
    gathers = (plan.optimizer.distributed and grad_reduce) or random.random() < 0.1
    overlap = Overlap(grad_reduce=grad_reduce, param_gather=gathers and random.random() < 0.5)
    plan = _with_job(random, replace(plan, overlap=overlap))
    staged = any(len(item.stages) > 1 for item in plan.replicas)
    return _with_zero_bubble(plan) if staged and random.random() < 0.25 else plan


def _with_zero_bubble(plan: Plan) -> Plan:
    """The plan with gradients of weights apart, without what rules that out."""
    plan = replace(plan, schedule=replace(plan.schedule, kind="zero-bubble"))
    replicas = [
        replace(item, stages=tuple(replace(stage, recompute=Recompute()) for stage in item.stages))
        for item in plan.replicas
    ]
    sharding = "zero1" if plan.optimizer.sharding in ("zero2", "zero3") else plan.optimizer.sharding
    return replace(plan, replicas=tuple(replicas), optimizer=replace(plan.optimizer, sharding=sharding))


def _layered(random: Random, count: int, model_of: Drawn) -> Plan:
    """A plan of uneven FSDP."""
    model, waves = model_of(random), random.choice((1, 1, 2))
    replicas = []
    for _ in range(count):
        micro_batches = waves * random.randint(1, 2)
        again = random.choice((*KINDS[:2], KINDS[3], Recompute(granularity="full", method="uniform", layers=1)))
        single = replica(stage((0, len(model.layers)), gpu=_gpu(random), recompute=again), micro_batches=micro_batches)
        rows, state = micro_batches + random.randint(0, 4), random.choice((0, 1, 2, 5, 9))
        replicas.append(replace(single, count=random.choice((1, 1, 2)), rows=rows, state=state))
    plan = plan_of(model, *replicas, sharding="zero3")
    parts = sum(item.count * (item.state or 0) for item in replicas)
    plan = replace(
        plan,
        job=replace(plan.job, global_batch=sum(item.count * item.samples(1) for item in replicas)),
        micro_batch=max(item.sizes(1)[0] for item in replicas),
        schedule=Schedule(kind="layered", waves=waves),
        optimizer=OptimizerPlan(sharding="zero3", parts=parts),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )
    return _with_job(random, plan)


def _with_job(random: Random, plan: Plan) -> Plan:
    optimizer = random.choice(("sgd", "sgd", "sgd", "adam", "muon", "adam8bit"))
    job = replace(plan.job, framework="train", optimizer=optimizer, seq_len=random.choice((16, 16, 24)))
    order = random.choice(("tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"))
    overlap = replace(plan.overlap, pipeline=plan.schedule.virtual_stages > 1 and random.random() < 0.5)
    return replace(plan, job=job, rank_order=order, overlap=overlap)


def _model(random: Random) -> Model:
    family = random.choice(("llama", "llama", "gpt2", "qwen2", "qwen3"))
    heads, kv_heads = random.choice(((4, 4), (4, 2), (4, 1), (6, 2)))
    model = tiny_model(
        random.randint(1, 5),
        family=family,
        tied=random.random() < 0.4,
        experts=random.choice((0, 4, 4, 6)) * (family != "gpt2"),
        shared=random.random() < 0.4,
        vocab=random.choice((61, 64)),
        hidden=8 * heads,
        heads=heads,
        kv_heads=kv_heads,
    )
    layers = [_layer(random, kind) for kind in model.layers]
    return replace(model, layers=tuple(layers), final_norm=random.random() < 0.9)


def _layer(random: Random, kind: Layer) -> Layer:
    """A layer of a kind, of which some have a window, and some a dense block in place of experts."""
    if random.random() < 0.2:
        kind = replace(kind, attention=replace(kind.self_attention, window=random.choice((3, 5))))
    if kind.moe and random.random() < 0.2:
        kind = replace(kind, moe=None, mlp=Mlp(width=48, gated=True))
    return kind


def _replica(random: Random, model: Model, virtual: int, most_gpus: int) -> Replica:
    depth, layers = random.choice((1, 1, 2, 2, 3) if virtual == 1 else (2, 2, 2, 3)), len(model.layers)
    depth = 1 if model.shared_blocks else min(depth, most_gpus)
    cuts = sorted(random.choices(range(layers + 1), k=depth * virtual - 1))
    ranges = list(itertools.pairwise([0, *cuts, layers]))
    groups = random.randint(1, 4 if virtual == 1 else 2)
    whole = virtual > 1 and random.random() < 0.9
    while True:
        count, cp = random.choice((1, 1, 1, 2, 2, 4)), random.choice((1, 1, 1, 2, 2, 4))
        degrees = [random.choice((1, 1, 1, 2, 2, 2, 3, 4)) for _ in range(depth)]
        if count * cp * sum(degrees) <= most_gpus:
            break
    stages = [_stage(random, ranges[number::depth], count, cp, tp, model) for number, tp in enumerate(degrees)]
    return replica(*stages, count=count, micro_batches=groups * (depth if whole else 1))


def _stage(random: Random, ranges: list[tuple[int, int]], count: int, cp: int, tp: int, model: Model) -> Stage:
    experts = {layer.moe.experts for layer in model.layers if layer.moe}
    cp = cp if random.random() < 0.97 else 1
    ep, etp = 1, tp
    if experts:
        etp = random.choice((1, tp, tp))
        fitting = [ep for ep in (1, 2, 3, 4) if not count * cp * tp % (ep * etp) and not min(experts) % ep]
        ep = random.choice(fitting if fitting and random.random() < 0.9 else (1, 2, 3, 4))
    recompute = random.choice((*KINDS, replace(KINDS[2], layers=random.randint(1, 3))))
    if not 1 <= (recompute.layers or 1) <= len(model.layers) and random.random() < 0.8:
        recompute = replace(recompute, layers=1)
    return stage(*ranges, tp=tp, cp=cp, ep=ep, etp=etp, gpu=_gpu(random), recompute=recompute)


def _gpu(random: Random) -> str:
    return random.choice(("H100-SXM", "H100-SXM", "other"))


@st.composite
def plans(draw: st.DrawFn, *, largest_tp: int = 4, largest_count: int = 2) -> Plan:
    """A legal plan, on as many GPUs as it takes."""
    family = draw(st.sampled_from(["llama", "gpt2", "qwen3"]))
    experts = draw(st.sampled_from([0, 4])) * (family != "gpt2")
    model = tiny_model(draw(st.integers(2, 7)), family=family, tied=draw(st.booleans()), experts=experts)
    virtual = draw(st.sampled_from([1, 1, 2]))
    degrees = [tp for tp in (1, 2, 4) if tp <= largest_tp]
    replicas = [draw(_replicas(model, virtual, degrees, largest_count)) for _ in range(draw(st.integers(1, 3)))]
    split = any(stage.tensor_parallel > 1 for item in replicas for stage in item.stages)
    plan = plan_of(
        model,
        *replicas,
        micro_batch=draw(st.integers(1, 2)),
        virtual_stages=virtual,
        sequence_parallel=split and draw(st.booleans()),
        sharding=draw(st.sampled_from(["none", "zero1"])),
    )
    return replace(plan, cluster=cluster_of(16))


@st.composite
def _replicas(draw: st.DrawFn, model: Model, virtual: int, degrees: list[int], largest_count: int) -> Replica:
    depth, count = draw(st.integers(1 if virtual == 1 else 2, 3)), draw(st.integers(1, largest_count))
    layers, chunks = len(model.layers), depth * virtual
    cuts = sorted(draw(st.lists(st.integers(0, layers), min_size=chunks - 1, max_size=chunks - 1)))
    ranges = list(itertools.pairwise([0, *cuts, layers]))
    cp = draw(st.sampled_from([1, 1, 2]))
    stages = [draw(_stages(ranges[number::depth], count, cp, degrees, model)) for number in range(depth)]
    groups = draw(st.integers(1, 4 if virtual == 1 else 2))
    return replica(*stages, count=count, micro_batches=groups * (depth if virtual > 1 else 1))


@st.composite
def _stages(
    draw: st.DrawFn, ranges: list[tuple[int, int]], count: int, cp: int, degrees: list[int], model: Model
) -> Stage:
    tp = draw(st.sampled_from(degrees))
    etp = draw(st.sampled_from([1, tp]))
    shares = [n for n in (1, 2, 4) if count * cp * tp // etp % n == 0] if model.layers[0].moe else [1]
    recompute, ep = draw(st.sampled_from(KINDS)), draw(st.sampled_from(shares))
    return stage(*ranges, tp=tp, cp=cp, etp=etp, ep=ep, recompute=recompute)
