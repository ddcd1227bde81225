"""The strategy of a plan in words: setting by setting, and in a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from shardwright.cost.memory.facts import memory_facts
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.rows import holding
from shardwright.spec.catalog.frameworks import framework_options
from shardwright.spec.options import VALUES, said
from shardwright.units import counted

SHARDING = {
    "none": "not sharded",
    "zero1": "state sharded over data-parallel ranks (ZeRO-1, Megatron's distributed optimizer)",
    "zero2": "state and gradients sharded over data-parallel ranks (ZeRO-2)",
    "zero3": "state, gradients and weights sharded over data-parallel ranks (ZeRO-3, FSDP)",
}


SETTINGS = {
    "gpu_types": "GPU type",
    "gpus": "GPUs",
    "tensor_parallel": "tensor parallel",
    "context_parallel": "context parallel",
    "pipeline_parallel": "pipeline parallel",
    "data_parallel": "data parallel",
    "expert_parallel": "expert parallel",
    "expert_tensor_parallel": "expert tensor parallel",
    "virtual_stages": "virtual stages",
    "micro_batch": "micro-batch",
    "schedule": "schedule",
    "rows": "rows of a copy",
    "state": "state of a GPU",
    "micro_batches": "micro-batches a step",
    "layers": "layers per pipeline rank",
    "recompute": "recomputation",
    "sharding": "sharding",
    "offload": "optimizer offload",
    "sequence_parallel": "sequence parallel",
    "flash_attention": "FlashAttention",
    "overlap_grad_reduce": "overlap of gradient reduction",
    "overlap_param_gather": "overlap of weight gathering",
    "overlap_tensor_parallel": "overlap of tensor-parallel communication",
    "overlap_pipeline": "overlap of pipeline transfers",
    "rank_order": "rank order",
    **{name: name.replace("_", " ") for name in VALUES},
}


def switches(plan: Plan) -> dict[str, str]:
    """Return the settings of a plan by their names in `SETTINGS`."""
    stage, replicas, overlap, given = plan.stages[0], plan.replicas, plan.overlap, said(plan.job.options)
    return {
        "gpu_types": " + ".join(dict.fromkeys(s.gpu for s in plan.stages)),
        "gpus": str(plan.gpus),
        "tensor_parallel": tensor_parallel_words(plan),
        "context_parallel": str(stage.context_parallel),
        "pipeline_parallel": several(str(len(replica.stages)) for replica in replicas),
        "data_parallel": str(plan.data_parallel),
        "expert_parallel": str(stage.expert_parallel),
        "expert_tensor_parallel": str(stage.expert_tensor_parallel),
        "virtual_stages": str(plan.schedule.virtual_stages),
        "micro_batch": str(plan.micro_batch),
        "schedule": plan.schedule.kind if plan.schedule.waves is None else waves_words(plan),
        "rows": rows_words(plan),
        "state": state_words(plan),
        "micro_batches": several(str(replica.micro_batches) for replica in replicas),
        "layers": several(replica_split_words(replica) for replica in replicas),
        "recompute": recompute_words(plan),
        "sharding": plan.optimizer.sharding,
        "offload": f"{plan.optimizer.offload:.0%}",
        "sequence_parallel": _on(plan.sequence_parallel),
        "flash_attention": _on(plan.flash_attention),
        "overlap_grad_reduce": _on(overlap.grad_reduce),
        "overlap_param_gather": _on(overlap.param_gather),
        "overlap_tensor_parallel": _on(overlap.tensor_parallel),
        "overlap_pipeline": _on(overlap.pipeline),
        "rank_order": plan.rank_order,
        **{name: given.get(name, "default") for name in VALUES},
    }


def _on(value: bool) -> str:
    return "on" if value else "off"


def settings(plan: Plan) -> list[tuple[str, str]]:
    """Return the strategy of a plan in labelled lines, as one would tell a colleague."""
    replica, stage = plan.replicas[0], plan.stages[0]
    degrees = {
        "tensor": stage.tensor_parallel,
        "context": stage.context_parallel,
        "pipeline": len(replica.stages),
        "data": plan.data_parallel,
    }
    product = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one alone"
    samples = f"{counted(replica.micro_batches, 'micro-batch')} of {plan.micro_batch}"
    return [
        ("GPUs", f"{plan.gpus} {stage.gpu} = {product}; rank order {plan.rank_order}"),
        *experts_setting(plan),
        ("batch", f"{plan.job.global_batch} = {samples} × {counted(plan.data_parallel, 'replica')}"),
        ("pipeline", _pipeline_words(plan)),
        ("recompute", _recompute_sentence(plan)),
        *shared_settings(plan),
    ]


OPTION_NAMES = {
    "grad_reduce": "gradients reduced in",
    "main_grads": "main gradients",
    "main_params": "main weights",
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "loss": "loss",
    "dispatcher": "tokens sent by",
    "expert_capacity": "capacity of experts",
    "expert_padding": "experts padded to",
    "expert_imbalance": "rows of the fullest rank of experts over the mean",
    "expert_products": "products of experts",
    "master_weights": "master weights",
    "activation_offload": "offloaded to the host:",
    "weight_offload": "sharded weights offloaded to:",
    "gradient_sync": "sharded gradients summed in micro-batches:",
    "param_gather": "weights kept and gathered in",
    "cuda_graph": "CUDA graphs of:",
    "exchange_overlap": "exchange with experts hidden beside other:",
}


def options_words(plan: Plan) -> str:
    """Return the options of the trainer that are not its framework's own, "" where there are none."""
    given = said(plan.job.options)
    return ", ".join(f"{words} {given[name]}" for name, words in OPTION_NAMES.items() if name in given)


def shared_settings(plan: Plan) -> list[tuple[str, str]]:
    """Return what holds for all stages of a plan: optimizer, overlap and switches."""
    offload = f"; {plan.optimizer.offload:.0%} of it in host memory" if plan.optimizer.offload else ""
    overlaps = {
        "gradient reduction": plan.overlap.grad_reduce,
        "weight gathering": plan.overlap.param_gather,
        "tensor-parallel": plan.overlap.tensor_parallel,
        "pipeline transfers": plan.overlap.pipeline,
    }
    switches = f"sequence parallel {_on(plan.sequence_parallel)}, FlashAttention {_on(plan.flash_attention)}"
    lines = {
        "optimizer": SHARDING[plan.optimizer.sharding] + offload,
        "overlap": ", ".join(name for name, on in overlaps.items() if on) or "none",
        "switches": switches,
        "trainer": options_words(plan),
    }
    return [(name, words) for name, words in lines.items() if words]


def _pipeline_words(plan: Plan) -> str:
    ranks, virtual = len(plan.replicas[0].stages), plan.schedule.virtual_stages
    if ranks == 1:
        return f"one stage of {plan.stages[0].layer_count} layers"
    kind = "zero bubble" if plan.schedule.weights_apart else "interleaved 1F1B" if virtual > 1 else "1F1B"
    chunks = f", {virtual} virtual stages a rank" if virtual > 1 else ""
    return f"{kind}{chunks}; layers per rank {replica_split_words(plan.replicas[0])}"


def _recompute_sentence(plan: Plan) -> str:
    mode = plan.stages[0].recompute
    words = recompute_words(plan)
    if "/" in words or mode.granularity == "none":
        return words
    if mode.granularity == "selective":
        modules = plan.job.options.recompute_modules
        return "selective: " + ("core attention" if modules is None else ", ".join(modules))
    if mode.method == "block":
        return f"full, method block: the first {counted(mode.layers or 0, 'layer')} of each virtual stage"
    return f"full, method uniform: all layers, in groups of {mode.layers}"


def recompute_words(plan: Plan) -> str:
    """Return the recomputation of a plan: none, selective, block 3; several where stages differ."""
    modes = (stage.recompute for stage in plan.stages)
    words = (mode.granularity if mode.method is None else f"{mode.method} {mode.layers}" for mode in modes)
    return " / ".join(dict.fromkeys(words))


def sharding_words(plan: Plan) -> str:
    """Return sharding and offload of the optimizer."""
    return plan.optimizer.sharding + (f" +{plan.optimizer.offload:.0%} host" if plan.optimizer.offload else "")


def waves_words(plan: Plan) -> str:
    """Return the schedule of uneven FSDP and its waves."""
    return f"{plan.schedule.kind}, {counted(plan.schedule.waves or 1, 'wave')}"


def rows_words(plan: Plan) -> str:
    """Return the samples that each copy of the model takes a step: 11 / 5."""
    return several(str(replica.samples(plan.micro_batch)) for replica in plan.replicas)


def state_words(plan: Plan) -> str:
    """Return the share of the state on each GPU."""
    parts = plan.optimizer.parts
    return "equal" if parts is None else several(f"{(replica.state or 0) / parts:.1%}" for replica in plan.replicas)


def several(words: Iterable[str]) -> str:
    """Return words once each, joined."""
    return " / ".join(dict.fromkeys(words))


def replica_split_words(replica: Replica) -> str:
    """Return layers per pipeline rank of a replica: 4 × 20, or 19, 2 × 21, 19."""
    counts = [stage.layer_count for stage in replica.stages]
    return f"{len(counts)} × {counts[0]}" if len(set(counts)) == 1 else _runs(counts)


def _runs(counts: list[int]) -> str:
    runs = [(len(list(group)), count) for count, group in groupby(counts)]
    return ", ".join(f"{number} × {count}" if number > 1 else str(count) for number, count in runs)


def layers_words(stage: Stage) -> str:
    """Return the layers of a stage: 20 layers: 0–9, 40–49."""
    ranges = [(start, end) for start, end in stage.layers if end > start]
    if not ranges:
        return "no layers"
    shown = ", ".join(str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in ranges[:3])
    return f"{counted(stage.layer_count, 'layer')}: {shown}" + (", …" if len(ranges) > 3 else "")


def tensor_parallel_words(plan: Plan) -> str:
    """Return the tensor-parallel degrees of a plan: 4, or 1–4."""
    return _range_words([stage.tensor_parallel for stage in plan.stages])


def depth_words(plan: Plan) -> str:
    """Return the pipeline lengths of a plan: 4, or 1–4."""
    return _range_words([len(replica.stages) for replica in plan.replicas])


def experts_setting(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield how the experts of a model that has some are spread, as the first stage has them, and multiplied."""
    stage = plan.stages[0]
    if plan.model.has_experts:
        words = f"expert parallel {stage.expert_parallel}, tensor {stage.expert_tensor_parallel} in an expert"
        yield "experts", "; ".join(part for part in (words, products_words(plan)) if part)


def products_words(plan: Plan) -> str:
    """Return how experts are multiplied where the release of transformers decides it, and what the other does; "" where
    it does not."""
    if not plan.model.has_experts or "expert_products" not in framework_options(plan.job.framework):
        return ""
    if plan.job.options.expert_products == "loop":
        return (
            "one after another, each in small kernels, as transformers before 5 has it; release 5 multiplies by all at "
            "once, several times faster (--set expert_products=grouped)"
        )
    return (
        "multiplied together, as transformers 5 has it; before, one runs after another, several times slower (--set "
        "expert_products=loop)"
    )


def _range_words(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def degrees_words(plan: Plan) -> str:
    """Return the degrees of a plan that are not 1, its micro-batch, and what is sharded beyond the optimizer's state or
    in host memory: tp 4, pp 8, dp 8, micro-batch 1, ZeRO-3."""
    if plan.layered:
        return f"uneven FSDP over {plan.gpus} GPUs, rows {rows_words(plan)}, micro-batch up to {plan.micro_batch}"
    stage = plan.stages[0]
    degrees = {
        "tp": tensor_parallel_words(plan),
        "cp": str(stage.context_parallel),
        "pp": depth_words(plan),
        "dp": str(plan.data_parallel),
        "ep": str(stage.expert_parallel),
        "vpp": str(plan.schedule.virtual_stages),
    }
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree != "1"]
    apart = ["zero bubble"] if plan.schedule.weights_apart else []
    return ", ".join([*words, *apart, f"micro-batch {plan.micro_batch}", *_state_words(plan)])


def _state_words(plan: Plan) -> tuple[str, ...]:
    optimizer, follow = plan.optimizer, memory_facts(plan.job.framework).weights_follow
    both = optimizer.offload and optimizer.sharding == "zero3" and follow
    return holding(
        (optimizer.sharding in ("zero2", "zero3"), optimizer.sharding.replace("zero", "ZeRO-")),
        (plan.job.options.weights_in_host, "weights in host memory"),
        (both, "weights and optimizer in host memory"),
        (optimizer.offload and not both, f"{optimizer.offload:.0%} of the optimizer in host memory"),
    )
