"""Random models, jobs and strategies: all that the account of a stage depends on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from tests.cost.samples import gpt

from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    RECOMPUTE,
    SELECTIVE,
    UNIFORM,
    UNSHARDED,
    ZERO1,
    ZERO2,
    ZERO3,
    Strategies,
    strategies,
)
from shardwright.spec.adapter import ATTENTION, LINEAR, TARGETS, Adapter
from shardwright.spec.cluster import Cluster, Gpu
from shardwright.spec.job import Job, Optimizer, Part, Precision
from shardwright.spec.model import Model
from shardwright.spec.options import Module, Options
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.model import load_model

MODES = tuple(range(len(RECOMPUTE)))
PRESETS = ("llama-3.2-1b", "llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "gpt2-xl", "qwen3-30b-a3b")
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "fp32")
OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "adam8bit", "muon", "sgd")
EFFICIENCY = Analytic()


def some_model(pick: random.Random, *, least: int, most: int) -> Model:
    """Return `least` to `most` layers of a model, of the beginning, where some have other layers than further on."""
    model = gpt(most, 1024, 16) if pick.random() < 0.2 else load_model(pick.choice(PRESETS))
    return replace(model, layers=model.layers[: pick.randint(min(least, len(model.layers)), most)])


def some_job(pick: random.Random, model: Model, *, batch: int, gpus: Iterable[Gpu]) -> Job:
    """Return a job of `batch` samples that all of `gpus` can run, with options that its model may have."""
    precision = pick.choice([name for name in PRECISIONS if all(gpu.peak(name) for gpu in gpus)])
    optimizer = pick.choice(OPTIMIZERS)
    adapter = _adapter(pick) if pick.random() < 0.25 else None
    return Job(
        global_batch=batch,
        seq_len=min(pick.choice((512, 2048)), model.learned_positions or 2048),
        precision=precision,
        optimizer=optimizer,
        adapter=adapter,
        fp8_storage=precision == "fp8" and pick.random() < 0.3,
        fused_loss=pick.random() < 0.3,
        options=Options(
            recompute_modules=_modules(pick, model) if precision != "fp8" and pick.random() < 0.5 else None,
            grad_reduce=pick.choice((None, "bf16", "fp32")) if precision in ("bf16", "fp8") else None,
        ),
    )


def with_tower(model: Model, job: Job, seed: int) -> tuple[Model, Job]:
    """Return a model with a vision tower of few layers, every second with one of sound, too, and a job with images and
    sounds, parts of the towers frozen."""
    pick = random.Random(f"tower {seed}")
    name = pick.choice(("gemma-3-4b-vision", "qwen2.5-vl-3b", "qwen3-vl-4b"))
    tower = load_model(name).tower
    assert tower is not None
    tower = replace(tower, depth=pick.randint(1, 9))
    images, size = (1, None) if tower.image else (pick.randint(1, 2), (224, 112 * pick.randint(1, 4)))
    freeze: tuple[Part, ...] | None = pick.choice((None, ("vision",), ("projector",), ("vision", "projector")))
    job = replace(job, images_per_sequence=images, image_size=size, freeze=freeze)
    heard = pick.choice((None, None, "qwen2-audio-7b", "qwen2.5-omni-7b"))
    if heard is None:
        return replace(model, tower=tower), job
    audio = load_model(heard).audio
    assert audio is not None
    audio = replace(audio, depth=pick.randint(1, 9))
    freeze = pick.choice((freeze, ("audio", *(freeze or ()))))
    job = replace(job, sounds_per_sequence=pick.randint(1, 2), sound_seconds=pick.choice((1.0, 9.0)), freeze=freeze)
    return replace(model, tower=tower, audio=audio), job


def _adapter(pick: random.Random) -> Adapter:
    targets = pick.choice((LINEAR, ATTENTION, TARGETS))
    return Adapter(rank=pick.choice((8, 64)), dora=pick.random() < 0.3, targets=targets)


def _modules(pick: random.Random, model: Model) -> tuple[Module, ...]:
    kinds = model.kinds
    there: list[Module] = ["core_attn"]
    there += ["layernorm", "mla_up_proj"] if any(kind.self_attention.latent for kind in kinds) else []
    there += ["mlp"] if any(kind.mlp for kind in kinds) else []
    there += ["moe_act", "layernorm"] if any(kind.moe for kind in kinds) else []
    chosen = {*pick.sample(there, pick.randint(1, len(there)))}
    order: tuple[Module, ...] = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp")
    return tuple(module for module in order if module in chosen)


def some_problem(seed: int) -> tuple[Context, Cluster, Strategies]:
    """Return machines of one type with a model and a job, and a few strategies of one pipeline shape. Every third model
    has a vision tower."""
    pick = random.Random(seed)
    model = some_model(pick, least=4, most=12)
    gpu = pick.choice(("H100-SXM", "A100-SXM-80", "A100-SXM-40"))
    cluster = load_cluster(f"{pick.choice((1, 2))}x8x{gpu}")
    pool = cluster.pools[0]
    pp = pick.choice([depth for depth in (1, 2, 3, 4) if depth <= len(model.layers)])
    vpp = pick.choice([1, *(chunks for chunks in (2, 3, 4) if pp > 1 and pp * chunks <= len(model.layers))])
    count = pp * pick.choice((1, 2, 3)) if vpp > 1 else pick.choice((1, 2, 3, 4, 8))
    rest = pool.gpus // pp
    even = all(layer.self_attention.heads % 2 == 0 and layer.self_attention.kv_heads % 2 == 0 for layer in model.layers)
    tp = pick.choice([degree for degree in (1, 2) if degree <= rest and (even or degree == 1)])
    dp = pick.randint(1, rest // tp)
    micro_batch = pick.choice((1, 2))
    job = some_job(pick, model, batch=count * dp * micro_batch, gpus=(pool.gpu,))
    seen = with_tower(model, job, seed) if seed % 3 == 0 else (model, job)
    where = Context(model=seen[0], pool=pool, job=seen[1], efficiency=EFFICIENCY)
    rows = [
        {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "micro_batch": micro_batch, **_rest(pick, model, pp, vpp, tp, dp)}
        for _ in range(4)
    ]
    return where, cluster, strategies(rows)


def _rest(pick: random.Random, model: Model, pp: int, vpp: int, tp: int, dp: int) -> dict[str, object]:
    """Return what two strategies of the same shape may differ in."""
    stages, layers = pp * vpp, len(model.layers)
    first, last = layers, layers
    if stages > 1:
        first = pick.randint(1, layers - stages + 1)
        last = pick.randint(1, layers - first - (stages - 2)) if stages > 2 else layers - first
    experts = model.has_experts
    sharding = pick.choice((UNSHARDED, ZERO1, ZERO1, *((ZERO2, ZERO3) if pp == 1 else ()))) if dp > 1 else UNSHARDED
    mode = pick.choice(MODES)
    longest = max(first, last, -(-(layers - first - last) // max(stages - 2, 1)))
    again = 0 if mode in (NONE, SELECTIVE) else pick.randint(1, 1 if mode == UNIFORM and model.mtp_layers else longest)
    assert mode in (NONE, SELECTIVE, UNIFORM, BLOCK)
    return {
        "first_layers": first,
        "last_layers": last,
        "etp": tp if experts else 1,
        "sequence_parallel": tp > 1 and (experts or pick.random() < 0.7),
        "flash": pick.random() < 0.7,
        "overlap_pp": vpp > 1 and pick.random() < 0.5,
        "rank_order": pick.randint(0, 1),
        "recompute": mode,
        "recompute_layers": again,
        "sharding": sharding,
        "offload": pick.choice((0.0, 0.25, 1.0)) if sharding == ZERO1 else 0.0,
        "overlap_grad": dp > 1 and sharding != UNSHARDED and pick.random() < 0.6,
    }
