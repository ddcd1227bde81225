"""Plans drawn at random for rehearsals, and how far the account is from what they took:

    python -m tests.rehearsal.draws [--trainer fsdp|"few bits"|train|megatron] [--seeds 0 40] [--python …]

prints each distance, and for each trainer the median, the 90th percentile, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

import shardwright
from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.rehearsal.document import RankRehearsal
from shardwright.rehearsal.rehearse import rehearse
from shardwright.search.space.axes import parse_pins
from shardwright.spec.adapter import Adapter, parse_adapter
from shardwright.spec.job import Optimizer
from shardwright.spec.model import Model
from shardwright.spec.preference import Preference, parse_preference

MODELS = ("llama-3-8b", "llama-2-7b", "qwen3-8b", "qwen2.5-7b", "mistral-7b-v0.3", "llama-3.2-1b", "qwen3-0.6b")
RECOMPUTE = ("none", "uniform recompute_layers=1")
DENSE = ("llama-3-8b", "llama-2-7b", "qwen3-8b", "qwen2.5-7b", "llama-3.2-1b", "qwen3-0.6b", "llama-3-70b")
WITH_EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "deepseek-v3")
MIXTURES = ("mixtral-8x7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b")
MOST_EXPERTS = 32
TARGETS = ("linear", "attention", "q_proj+v_proj")
LATER_TARGETS = ("gate_proj+down_proj", "o_proj", "up_proj", "down_proj", "v_proj")


def of_fsdp(seed: int) -> Plan:
    """Return a plan of a few layers of a model on 2 to 16 GPUs, with adapters in every third, and with a quarter of
    those whose weights are sharded in host memory."""
    draw = random.Random(seed)
    *drawn, pins = _of_fsdp(draw)
    adapter = None
    if draw.random() < 1 / 3:
        form = draw.choice(("lora", "lora", "dora"))
        adapter = parse_adapter(f"{form}:{draw.choice((8, 16, 64))}", _targets(draw, seed))
    if pins["sharding"] == "zero3" and draw.random() < 1 / 4:
        pins = {**pins, "offload": 1}
    return best_plan(*drawn, pins, adapter)


def of_few_bits(seed: int) -> Plan:
    """Return such a plan with frozen weights in four bits or Adam's state in eight."""
    draw = random.Random(seed)
    drawn = _of_fsdp(draw)
    if draw.random() < 1 / 3:
        return best_plan(*drawn, optimizer="adam8bit")
    return best_plan(*drawn, parse_adapter(f"qlora:{draw.choice((8, 16, 64))}", _targets(draw, seed)))


def of_preferences(seed: int) -> Plan:
    """Return one of a loss over preferences, or of the next token by TRL; every third has adapters, and every second
    of those frozen weights in four bits. Every fifth has whole logits."""
    draw = random.Random(seed)
    *drawn, batch, pins = _of_fsdp(draw)
    loss = draw.choice(("dpo", "dpo", "kto", "dpo:precomputed", "kto:precomputed", None))
    loss = ("orpo", "cpo")[seed // 5 % 2] if seed % 5 == 4 else loss
    pins = pins if loss else {**pins, "loss": "tiled"}
    form = draw.choice(("lora", "qlora"))
    adapter = parse_adapter(f"{form}:{draw.choice((8, 64))}") if draw.random() < 1 / 3 else None
    preference = None if loss is None else parse_preference(loss)
    if preference is not None and pins["micro_batch"] == 1:  # fewer than KTO takes
        batch, pins = batch * preference.least_samples, {**pins, "micro_batch": preference.least_samples}
    return best_plan(*drawn, batch, pins, adapter, preference=preference)


def of_rewards(seed: int) -> Plan:
    """Return one of a model of rewards; every third has adapters, and every second of those frozen weights in four
    bits, and a quarter is not sharded."""
    draw = random.Random(seed)
    *drawn, batch, pins = _of_fsdp(draw)
    adapter = parse_adapter(f"{draw.choice(('lora', 'qlora'))}:{draw.choice((8, 64))}") if seed % 3 == 2 else None
    if seed % 4 == 1:
        pins = {name: value for name, value in pins.items() if name != "gradient_sync"} | {"sharding": "none"}
    return best_plan(*drawn, batch, pins, adapter, preference=parse_preference("reward"))


def of_whole(seed: int) -> Plan:
    """Return one whose weights every rank has whole, alone or in copies: with adapters in every third, beside weights
    in four bits in every second of those, and half of the others without fp32 masters."""
    draw = random.Random(seed)
    model, framework, _, length, _, pins = _of_fsdp(draw)
    gpus, micro_batch, times = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 4)), draw.choice((1, 1, 2))
    pins = {name: value for name, value in pins.items() if name != "gradient_sync"}
    pins |= {"sharding": "none", "dp": gpus, "micro_batch": micro_batch}
    form = draw.choice(("lora", "qlora"))
    adapter = parse_adapter(f"{form}:{draw.choice((8, 64))}", _targets(draw, seed)) if draw.random() < 1 / 3 else None
    if adapter is None and draw.random() < 0.5:
        pins["master_weights"] = "none"
    return best_plan(model, framework, gpus, length, gpus * micro_batch * times, pins, adapter)


def of_several_kernels(seed: int) -> Plan:
    """Return one of few tokens whose Adam is not fused, with weights whole or sharded, and every second without fp32
    masters."""
    draw = random.Random(seed)
    model, framework, gpus, _, batch, pins = _of_fsdp(draw)
    if draw.random() < 0.5:
        gpus, batch = 1, batch // gpus
        pins = {name: value for name, value in pins.items() if name != "gradient_sync"} | {"sharding": "none", "dp": 1}
    pins = {**pins, "master_weights": draw.choice(("fp32", "none"))}
    return best_plan(model, framework, gpus, draw.choice((128, 256, 1024)), batch, pins, optimizer="foreach_adam")


def _targets(draw: random.Random, seed: int) -> str:
    """Return beside what adapters stand: every fourth time not beside what a layer begins with."""
    drawn, apart = draw.choice(TARGETS), LATER_TARGETS[seed // 4 % len(LATER_TARGETS)]
    return apart if seed % 4 == 3 else drawn


def _of_fsdp(draw: random.Random) -> tuple[Model, str, int, int, int, Mapping[str, object]]:
    model, gpus = _model(draw, 4, 8), draw.choice((2, 4, 8, 16))
    micro_batch, length = draw.choice((1, 1, 2)), draw.choice((1024, 2048, 4096, 8192))
    times = draw.choice((1, 2, 3))
    pins = {
        "sharding": draw.choice(("zero2", "zero3")), "recompute": draw.choice(RECOMPUTE), "micro_batch": micro_batch,
        "gradient_sync": draw.choice(("every", "last")), "dp": gpus, "offload": 0,
    }  # fmt: skip
    return model, "fsdp", gpus, length, gpus * micro_batch * times, pins | {"tp": 1, "pp": 1, "cp": 1}


def of_train(seed: int) -> Plan:
    """Return a plan of `train` of any degrees on eight GPUs."""
    return _of_train(random.Random(seed))


def of_adapters(seed: int) -> Plan:
    """Return one of adapters beside frozen weights, in 16 bits or four; every fifth is of a mixture of experts, with
    adapters beside attention."""
    draw = random.Random(seed)
    form, rank = draw.choice(("lora", "dora", "qlora", "qdora")), draw.choice((8, 16, 64))
    if seed % 5 == 4:
        model = of_layers(shardwright.load_model(draw.choice(MIXTURES)), draw.randint(3, 5))
        return _of_train(draw, parse_adapter(f"{form}:{rank}", "attention"), model, ep=draw.choice((1, 2)))
    targets = draw.choice((None, None, "attention", "q_proj+v_proj", "gate_proj+down_proj"))
    return _of_train(draw, parse_adapter(f"{form}:{rank}", targets))


def _of_train(draw: random.Random, adapter: Adapter | None = None, mixture: Model | None = None, ep: int = 1) -> Plan:
    degrees = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4), (2, 4))
    tp, pp = draw.choice(degrees if mixture is None else ((1, 1), (2, 1), (1, 2), (2, 2)))
    micro_batch, length = draw.choice((1, 1, 2)), draw.choice((1024, 2048, 4096))
    model = mixture or (_model(draw, 4, 8) if pp == 1 else _model(draw, 8, 8))
    dp = 8 // (tp * pp)
    sharding = draw.choice(("none", "zero1", "zero2", "zero3") if pp == 1 else ("none", "zero1"))
    pins = {
        "tp": tp, "cp": 1, "pp": pp, "dp": dp, "micro_batch": micro_batch, "offload": 0,
        "sharding": sharding if dp > 1 else "none", "recompute": draw.choice((*RECOMPUTE, "selective")), "ep": ep,
    }  # fmt: skip
    batch = dp * micro_batch * pp * draw.choice((1, 2))
    return best_plan(model, "train", 8, length, batch, pins, adapter=adapter)


def of_megatron(seed: int) -> Plan:
    """Return a plan of Megatron-Core of any degrees on 8 to 32 GPUs: dense layers, latent attention, mixtures with or
    without shared experts, or layers of more than one kind."""
    draw = random.Random(seed)
    while True:
        try:
            return _of_megatron(draw)
        except (LookupError, SpecError):  # does not fit, or has degrees that do not go together
            continue


def _of_megatron(draw: random.Random) -> Plan:
    model = shardwright.load_model(draw.choice(WITH_EXPERTS if draw.random() < 0.5 else DENSE))
    moe = any(kind.moe for kind in model.kinds)
    tp, cp, pp, vpp = draw.choice((1, 1, 2, 4)), draw.choice((1, 1, 1, 2)), draw.choice((1, 1, 2, 4)), 1
    dp = draw.choice((2, 4))
    ep, etp = (draw.choice((1, 2, 4, 8)), draw.choice((1, 1, tp))) if moe else (1, 1)
    layers = pp * draw.choice((1, 2, 3)) + (draw.choice((0, 0, 1)) if pp > 1 else 1)
    if pp > 1 and layers >= 2 * pp and draw.random() < 0.5:
        layers, vpp = layers // (2 * pp) * 2 * pp, 2
    model = of_layers(model, layers)
    micro_batch, length = draw.choice((1, 1, 2)), draw.choice((1024, 2048, 4096, 8192))
    recompute = draw.choice(("none", "none", "selective", "uniform", "block"))
    options: dict[str, object] = {"recompute": recompute}
    if recompute in ("uniform", "block"):
        options["recompute_layers"] = draw.choice((1, 1, 2)) if layers >= 2 * pp * vpp else 1
    if recompute == "selective":
        options["recompute_modules"] = draw.choice(modules_of(model))
    if draw.random() < 0.2:
        options["grad_reduce"] = "bf16"
    if moe and draw.random() < 0.3:
        options["dispatcher"] = "allgather"
    pins: dict[str, object] = {
        "tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "micro_batch": micro_batch, "offload": 0,
        "sharding": draw.choice(("none", "zero1", "zero1")), "ep": ep, "etp": etp,
        "sequence_parallel": "on" if tp > 1 and (moe or draw.random() < 0.8) else "off", "overlap_tp": "off",
    }  # fmt: skip
    times = draw.choice((1, 2, 3)) * (pp if vpp > 1 else 1)
    if moe and draw.random() < 0.3:
        options["expert_capacity"] = draw.choice((0.5, 1, 1.25, 2))
        options["expert_padding"] = draw.choice(("none", "capacity"))
    return best_plan(model, "megatron", tp * cp * pp * dp, length, dp * micro_batch * times, pins | options)


def of_layers(model: Model, layers: int) -> Model:
    """Return a model of the first layers of another and its last, repeated where all are alike, with few experts."""
    last = model.layers[-1]
    if last.moe is not None:
        last = replace(last, moe=replace(last.moe, experts=min(last.moe.experts, MOST_EXPERTS)))
    kept = model.layers[: layers - 1] if len(model.kinds) > 1 else ()
    kept = tuple(replace(layer, moe=last.moe) if layer.moe else layer for layer in kept)
    return replace(model, layers=(*kept, *(last,) * (layers - len(kept))))


def modules_of(model: Model) -> list[str]:
    """Return the modules that selective recomputation can name for a model."""
    kinds = model.kinds
    there = {
        "core_attn": True, "mlp": any(kind.mlp for kind in kinds), "moe": any(kind.moe for kind in kinds),
        "shared_experts": any(kind.moe and kind.moe.shared_width for kind in kinds),
        "mla_up_proj": any(kind.latent for kind in kinds), "moe_act": any(kind.moe for kind in kinds),
        "layernorm": any(kind.latent or kind.moe for kind in kinds),
    }  # fmt: skip
    return [name for name, able in there.items() if able]


DRAWS: Mapping[str, Callable[[int], Plan]] = {
    "fsdp": of_fsdp, "few bits": of_few_bits, "train": of_train, "adapters": of_adapters, "megatron": of_megatron,
    "preferences": of_preferences, "rewards": of_rewards, "whole": of_whole, "several kernels": of_several_kernels,
}  # fmt: skip
NEEDS = {
    "fsdp": ("transformers", "peft"), "few bits": ("transformers", "peft", "bitsandbytes", "torchao"),
    "preferences": ("transformers", "peft", "bitsandbytes", "trl"), "several kernels": ("transformers",),
    "rewards": ("transformers", "peft", "bitsandbytes", "trl"), "whole": ("transformers", "peft", "bitsandbytes"),
}  # fmt: skip
PYTHONS = {"megatron": os.environ.get("SHARDWRIGHT_MEGATRON_PYTHON") or None}  # environments of their own
SKIPPED = {"torchtitan": "has plans of its own (test_torchtitan)"}


def _model(draw: random.Random, fewest: int, most: int) -> Model:
    model = shardwright.load_model(draw.choice(MODELS))
    return replace(model, layers=model.layers[: draw.randint(fewest, most)])


def best_plan(
    model: Model,
    framework: str,
    gpus: int,
    length: int,
    batch: int,
    pins: Mapping[str, object],
    adapter: Adapter | None = None,
    optimizer: Optimizer = "adam",
    preference: Preference | None = None,
) -> Plan:
    """Return the best plan on so many H200s under some pins."""
    job = shardwright.make_job(global_batch=batch, seq_len=length, framework=framework)
    job = replace(job, adapter=adapter, optimizer=optimizer, preference=preference)
    cluster = shardwright.load_cluster(f"{-(-gpus // 8)}x{min(gpus, 8)}xH200-SXM")
    words = " ".join(f"{name}={value}" for name, value in pins.items())
    return shardwright.plan(model, cluster, job, space=parse_pins(words.split()), top=1).best


def setting(plan: Plan) -> str:
    """Return in a few words what of a plan was drawn."""
    stage, replica = plan.replicas[0].stages[0], plan.replicas[0]
    adapter = f", {plan.job.adapter.name} beside {'+'.join(plan.job.adapter.targets)}" if plan.job.adapter else ""
    adapter += ", all on the host" if plan.optimizer.offload else ""
    adapter += f", {plan.job.preference.name if plan.job.preference else plan.job.loss or ''}".rstrip(" ,")
    adapter += f", {plan.job.optimizer}" if plan.job.optimizer != "adam" else ""
    gathered = f", gradients summed in {plan.job.options.gradient_sync}" if plan.job.options.gradient_sync else ""
    degrees = {
        "tp": stage.tensor_parallel, "cp": stage.context_parallel, "ep": stage.expert_parallel,
        "etp": stage.expert_tensor_parallel, "pp": len(replica.stages), "vpp": plan.schedule.virtual_stages,
        "dp": plan.data_parallel,
    }  # fmt: skip
    words = " ".join(f"{name} {ways}" for name, ways in degrees.items() if ways > 1) or "one GPU"
    recompute = " ".join(
        map(str, (stage.recompute.method or stage.recompute.granularity, stage.recompute.layers or ""))
    )
    modules = " of " + "+".join(plan.job.options.recompute_modules) if plan.job.options.recompute_modules else ""
    return (
        f"{plan.model.name}, {len(plan.model.layers)} layers, {words}, {plan.optimizer.sharding},"
        f" {recompute.strip()}{modules}, {plan.job.seq_len} tokens,"
        f" {replica.micro_batches} x {plan.micro_batch}{adapter}{gathered}"
    )


def one_rank(plan: Plan, seed: int, python: str | None = None) -> RankRehearsal:
    """Return the rehearsal of the first or the last rank, whichever the seed draws, by the interpreter `python`."""
    return rehearse(plan, rank=[random.Random(seed).choice((0, plan.gpus - 1))], python=python).ranks[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", choices=[*DRAWS], action="append")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 40), metavar=("FIRST", "END"))
    parser.add_argument("--python", help="an interpreter that has the trainer")
    arguments = parser.parse_args()
    for trainer in arguments.trainer or DRAWS:
        distances = []
        for seed in range(*arguments.seeds):
            plan = DRAWS[trainer](seed)
            rank = one_rank(plan, seed, arguments.python or PYTHONS.get(trainer))
            distances.append(rank.difference)
            computed = rank.figures["flops"]  # none where a rank has the embedding alone
            flops = rank.expected.flops / computed - 1.0 if computed else 0.0
            print(
                f"{trainer} {seed}: {rank.difference:+.2%}, FLOPs {flops:+.2%}; {rank.place.name}, {setting(plan)}",
                flush=True,
            )
        sizes = np.abs(distances)
        middle, high = np.quantile(sizes, (0.5, 0.9))
        lowest, highest = min(distances), max(distances)
        print(f"| {trainer} | {len(sizes)} | {middle:.2%} | {high:.2%} | {lowest:+.2%} | {highest:+.2%} |", flush=True)


if __name__ == "__main__":
    main()
