"""A plan as a recipe of Megatron-Bridge 0.6: a Python function that returns a `ConfigContainer`.

The pipeline is always given as a layout string, together with the number of virtual stages: counts of layers at the
edges, which exclude it, are left empty. The model is the fields of a GPTModelProvider, or of an MLAModelProvider for
latent attention (0.6.2). They are those of megatron-core's configuration: what Megatron-LM has no argument for has no
field here either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any

from shardwright.errors import Problem, reject
from shardwright.exporters.exported import Exported, call_text, plan_words, run_script, torchrun
from shardwright.exporters.megatron.export import dispatcher_of_plan, environment, flex_backend, graph_modules
from shardwright.exporters.megatron.layout import layer_counts_of_ranges, layout_text
from shardwright.exporters.megatron.limits import beyond_the_matrix, mesh_problems
from shardwright.exporters.megatron.model import position_fields, window_of
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.support.refusals import refusals, several_types
from shardwright.exporters.support.traits import SILU, SQUARED_RELU, gated, options_of
from shardwright.files import shipped_file
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Recompute
from shardwright.rows import holding, stated
from shardwright.spec.adapter import ATTENTION, Adapter
from shardwright.spec.layer import Attention
from shardwright.spec.model import Model
from shardwright.spec.options import STATE

TARGET = "bridge"
VERSION = trainers()[TARGET].version
FILE = "shardwright_recipe"
PRECISION = {"bf16": "bf16_mixed", "fp16": "fp16_mixed"}
FP8 = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
TORCH = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
LEARNING = {"lr": 'float(os.environ["LEARNING_RATE"])'}
ADAPTERS = {"lora": "LoRA", "dora": "DoRA"}
SQUARED = "from megatron.core.activations import squared_relu\n"
STRATEGY = {"none": "no_shard", "zero1": "no_shard", "zero2": "optim_grads", "zero3": "optim_grads_params"}

Fields = dict[str, Any]
FUNCTIONS = {"silu": "torch.nn.functional.silu", "gelu": "torch.nn.functional.gelu", "relu2": "squared_relu"}


class Torch(str):
    """A type by its name in a plan, which a recipe writes as PyTorch's; fp8 is kept in bytes (arguments.py 1046)."""

    def __repr__(self) -> str:
        return f"torch.{TORCH[self]}"


def export_recipe(plan: Plan) -> Exported:
    """Return the recipe and the script that starts it. Raises SpecError with every reason where the plan is illegal or
    Megatron-Bridge cannot run it."""
    reject(check(plan) or unsupported(plan))
    values = settings(plan)
    return Exported(
        target=TARGET,
        version=VERSION,
        files={f"{FILE}.py": _file(plan, values), "run.sh": _script(plan)},
        document={"settings": values, "script": _script(plan)},
    )


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why Megatron-Bridge cannot run a legal plan; nothing if it can."""
    if not plan.uniform:
        return (*mesh_problems(plan), *several_types(TARGET))
    return (*refusals(plan, TARGET), *beyond_the_matrix(plan), *_fused_targets(plan.job.adapter))


def _fused_targets(adapter: Adapter | None) -> Iterator[Problem]:
    """Yield which targets are parts of matrices that Megatron-Core fuses."""
    targets = () if adapter is None else adapter.targets
    for fused in (ATTENTION[:3], ("gate_proj", "up_proj")):
        there = [name for name in fused if name in targets]
        if there and len(there) < len(fused):
            message = f"has {there[0]} without the others of {', '.join(fused)}, which are one matrix"
            yield Problem("job.adapter.targets", message, "target all or none of these")


def adapter_call(adapter: Adapter) -> str:
    """Return the expression of the adapter (megatron/bridge/peft/lora.py and dora.py). Patterns tell experts from other
    feed-forward blocks; queries, keys and values are one matrix there with one adapter, gate and up too."""
    patterns = {
        "q_proj": ["*.linear_qkv", "*.linear_q*_proj"], "k_proj": ["*.linear_kv*_proj"], "o_proj": ["*.linear_proj"],
        "up_proj": ["*.mlp.linear_fc1", "*.shared_experts.linear_fc1"],
        "down_proj": ["*.mlp.linear_fc2", "*.shared_experts.linear_fc2"],
        "experts": ["*.mlp.experts.linear_fc1", "*.mlp.experts.linear_fc2"],
    }  # fmt: skip
    modules = [pattern for target in adapter.targets for pattern in patterns.get(target, ())]
    name = "DoRA" if adapter.dora else "LoRA"
    return call_text(
        name, {"target_modules": modules, "dim": adapter.rank, "alpha": round(adapter.scale * adapter.rank)}
    )


def settings(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the fields that the plan decides, by section of the configuration."""
    options, overlap = plan.job.options, plan.overlap
    sections = {
        "model": _model(plan),
        "train": stated(
            {
                "micro_batch_size": plan.micro_batch,
                "global_batch_size": plan.job.global_batch,
                "train_iters": None if plan.job.iterations is None else math.ceil(plan.job.iterations),
            }
        ),
        "ddp": {
            "use_distributed_optimizer": plan.optimizer.distributed,
            "overlap_grad_reduce": overlap.grad_reduce,
            "overlap_param_gather": overlap.param_gather,
            "use_megatron_fsdp": plan.optimizer.sharding in ("zero2", "zero3"),
            "data_parallel_sharding_strategy": STRATEGY[plan.optimizer.sharding],
        },
        "optimizer": _optimizer(plan),
        "comm_overlap": stated(
            {
                "tp_comm_overlap": overlap.tensor_parallel,
                "overlap_p2p_comm": overlap.pipeline if plan.schedule.virtual_stages > 1 else None,
                "overlap_moe_expert_parallel_comm": True if options.exchange_overlap == "batches" else None,
            }
        ),
        "dist": {"use_tp_pp_dp_mapping": plan.rank_order == "tp-cp-ep-pp-dp"},
        # A whole step in one graph cannot look at the loss.
        "rerun_state_machine": {"check_for_nan_in_loss": False} if options.cuda_graph == "full" else None,
    }
    return stated(sections)


def _model(plan: Plan) -> dict[str, Any]:
    """Return the fields of the model's provider: dimensions, degrees, layout, experts, kernels."""
    (replica,) = plan.replicas
    stage, depth, options = plan.stages[0], len(replica.stages), options_of(plan)
    virtual = plan.schedule.virtual_stages
    counts = layer_counts_of_ranges([each.layers for each in replica.stages])
    layout = layout_text(counts, plan.model.mtp_layers) if depth > 1 else None
    return {
        **provider_fields(plan.model, plan.job.seq_len),
        "tensor_model_parallel_size": stage.tensor_parallel,
        "pipeline_model_parallel_size": depth,
        "virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None,
        "context_parallel_size": stage.context_parallel,
        "sequence_parallel": plan.sequence_parallel,
        **_recompute(stage.recompute, options),
        **stated({"pipeline_model_parallel_layout": layout}),
        **(_exchange(plan) if plan.model.has_experts else {}),
        **_graphs(plan),
        **stated({"attention_backend": None if plan.flash_attention else "unfused"}),
        "cross_entropy_loss_fusion": options.get("loss", "fused") == "fused",  # as recipes have it, and as it is priced
        "cross_entropy_fusion_impl": "native",
    }


def _exchange(plan: Plan) -> dict[str, Any]:
    """Return how experts share ranks, and how tokens come to them; `flex` takes probabilities in fp32 alone."""
    stage, capacity, dispatcher = plan.stages[0], plan.job.options.expert_capacity, dispatcher_of_plan(plan)
    flex = dispatcher == "flex"
    return stated(
        {
            "expert_model_parallel_size": stage.expert_parallel,
            "expert_tensor_parallel_size": stage.expert_tensor_parallel,
            "moe_token_dispatcher_type": dispatcher,
            "moe_expert_capacity_factor": capacity,
            "moe_pad_expert_input_to_capacity": None if capacity is None else plan.job.options.padded,
            "moe_flex_dispatcher_backend": flex_backend(plan) if flex else None,
            "moe_router_dtype": "fp32" if flex else None,
        }
    )


def _graphs(plan: Plan) -> dict[str, Any]:
    graph = plan.job.options.cuda_graph
    if graph in (None, "none"):
        return {}
    implementation = "full_iteration" if graph == "full" else "transformer_engine"
    return {"cuda_graph_impl": implementation, "cuda_graph_modules": list(graph_modules(plan))}


def _optimizer(plan: Plan) -> dict[str, Any]:
    """Return how the optimizer shares its state, keeps it in host memory, and in which types."""
    options, offload = options_of(plan), plan.optimizer.offload
    types = {f"{name}_dtype": Torch(options[name]) for name in STATE if name in options}
    fields = {
        "use_distributed_optimizer": plan.optimizer.distributed,
        "overlap_param_gather": plan.overlap.param_gather,
        "optimizer_cpu_offload": True if offload > 0 else None,
        "optimizer_offload_fraction": float(offload) if offload > 0 else None,
        "use_precision_aware_optimizer": True if offload > 0 or types else None,
    }
    return stated(fields) | types


def _recompute(recompute: Recompute, options: Mapping[str, str]) -> dict[str, Any]:
    if recompute.granularity == "none":
        return {}
    if recompute.granularity == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": options.get("recompute_modules", "core_attn").split("+"),
        }
    return {
        "recompute_granularity": "full",
        "recompute_method": recompute.method,
        "recompute_num_layers": recompute.layers,
    }


def precision_of(plan: Plan) -> str:
    """Return the name of Megatron-Bridge's mixed precision recipe."""
    job = plan.job
    return FP8[job.fp8_recipe or "delayed"] if job.precision == "fp8" else PRECISION[job.precision]


def _mixed_precision(plan: Plan) -> str:
    """Return the expression of the recipe's mixed precision, which decides how gradients are reduced and in which type
    weights are kept."""
    named = f"get_mixed_precision_config({precision_of(plan)!r})"
    options, fp8 = plan.job.options, plan.job.precision == "fp8"
    changes = holding(
        (
            options.grad_reduce is not None or options.bf16_gradients,
            f"grad_reduce_in_fp32={not options.bf16_gradients}",
        ),
        (fp8, f"fp8_param_gather={options.param_gather == 'fp8'}"),
        (fp8 and plan.job.fp8_recipe == "mxfp8", "reuse_grad_buf_for_mxfp8_param_ag=False"),
    )
    return f"dataclasses.replace({', '.join([named, *changes])})" if changes else named


def _file(plan: Plan, values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the recipe: `data/bridge_recipe.py.template` with what the plan decides."""
    provider, activation, mixed = provider_of(plan.model), activation_of(plan.model), _mixed_precision(plan)
    placeholders = {
        "words": "\n".join([plan_words(plan), *_positions_note(plan)]),
        "version": VERSION,
        "dataclasses": "import dataclasses\n" if "dataclasses." in mixed else "",
        "module": "mla_provider" if provider == "MLAModelProvider" else "gpt_provider",
        "provider": provider,
        "activations": SQUARED if activation == "squared_relu" else "",
        "model": call_text(provider, values["model"], {"activation_func": activation}),
        "train": call_text("TrainingConfig", values["train"], _iterations(values["train"])),
        "ddp": call_text("DistributedDataParallelConfig", values["ddp"]),
        "optimizer": call_text("OptimizerConfig", {"optimizer": "adam", **values["optimizer"]}, LEARNING),
        "seq_len": plan.job.seq_len,
        "ckpt_format": repr("fsdp_dtensor" if values["ddp"]["use_megatron_fsdp"] else "torch_dist"),
        "comm_overlap": call_text("CommOverlapConfig", values["comm_overlap"]),
        "dist": call_text("DistributedInitConfig", values["dist"]),
        "mixed_precision": mixed,
        "adapters": "",
        "peft": "",
        "load": 'load=os.environ["CHECKPOINT_DIR"]',
        "train_call": "pretrain",
    }
    if adapter := plan.job.adapter:
        placeholders |= {
            "adapters": f"from megatron.bridge.peft.{adapter.form} import {ADAPTERS[adapter.form]}\n",
            "peft": f"        peft={adapter_call(adapter)},\n",
            "load": 'pretrained_checkpoint=os.environ["PRETRAINED_CHECKPOINT"]',
            "train_call": "finetune",
        }
    return Template(shipped_file("shardwright.exporters", "bridge_recipe.py.template").decode()).substitute(
        placeholders
    )


def _iterations(train: Mapping[str, Any]) -> dict[str, str]:
    """A plan without an end leaves the steps to the user."""
    return {} if "train_iters" in train else {"train_iters": 'int(os.environ["TRAIN_ITERS"])'}


def _script(plan: Plan) -> str:
    more = holding((plan.job.adapters, "PRETRAINED_CHECKPOINT"), (plan.job.iterations is None, "TRAIN_ITERS"))
    names = ("DATA_PATH", "TOKENIZER_MODEL", "CHECKPOINT_DIR", "LEARNING_RATE", *more)
    return run_script(
        f"{plan_words(plan)} Written by shardwright for Megatron-Bridge {VERSION}.",
        *(f': "${{{name}:?}}"' for name in names),
        "export PYTORCH_ALLOC_CONF=expandable_segments:True",
        *(f"export {name}={value}" for name, value in environment(plan) if name == "NCCL_GRAPH_REGISTER"),
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        torchrun(plan, f"{FILE}.py"),
    )


def _positions_note(plan: Plan) -> list[str]:
    rows, length = plan.model.learned_positions, plan.job.seq_len
    if not rows or rows == length:
        return []
    return ["", f"Megatron-Bridge has as many learned positions as a sample has tokens: {length}, not {rows}."]


def provider_of(model: Model) -> str:
    """Return the class that builds the model."""
    return "MLAModelProvider" if model.self_attention.latent else "GPTModelProvider"


def activation_of(model: Model) -> str:
    """Return the activation function as an expression of the recipe."""
    name = model.activation.casefold()
    key = "silu" if name in SILU else "relu2" if name in SQUARED_RELU else "gelu"
    return FUNCTIONS[key]


def provider_fields(model: Model, seq_len: int) -> Fields:
    """Return the fields that describe `model`, none of whose layers is refused."""
    attention = model.self_attention
    widths = [kind.mlp.width for kind in model.kinds if kind.mlp]
    fields = {
        "num_layers": len(model.layers),
        "hidden_size": model.hidden,
        "ffn_hidden_size": widths[0] if widths else next(kind.moe.expert_width for kind in model.kinds if kind.moe),
        "num_attention_heads": attention.heads,
        "seq_length": seq_len,
        "vocab_size": model.vocab,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "gated_linear_unit": any(map(gated, model.kinds)),
        "add_bias_linear": attention.out_bias,
        "add_qkv_bias": attention.qkv_bias and not attention.out_bias,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "hidden_dropout": 0.1 if model.dropout else 0.0,
        "attention_dropout": 0.1 if model.dropout else 0.0,
        "layernorm_epsilon": model.norm_epsilon,
        "layernorm_zero_centered_gamma": model.norm_about_one or None,
        "mtp_num_layers": model.mtp_layers or None,
    }
    return stated(fields) | _attention(attention) | _window(model) | position_fields(model) | _experts(model)


def _attention(attention: Attention) -> Fields:
    latent = attention.latent
    if latent is None:
        shape = {"num_query_groups": attention.kv_heads, "kv_channels": attention.head_dim}
        return {**shape, "qk_layernorm": attention.qk_norm}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.nope_head_dim,
        "qk_pos_emb_head_dim": latent.rope_head_dim,
        "v_head_dim": attention.value_head_dim,
        "kv_channels": attention.value_head_dim,
        "qk_layernorm": True,
    }


def _window(model: Model) -> Fields:
    """A window of W tokens counts the token itself, so W - 1 to the left."""
    left, layers = window_of(model)
    return stated({"window_size": None if left is None else (left, 0), "window_attn_skip_freq": layers})


def _experts(model: Model) -> Fields:
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    if moe is None:
        return {}
    pattern = [int(layer.moe is not None) for layer in model.layers]
    both = moe.router_groups and moe.router_top_groups
    return stated(
        {
            "num_moe_experts": moe.experts,
            "moe_router_topk": moe.top_k,
            "moe_ffn_hidden_size": moe.expert_width,
            "moe_grouped_gemm": True,
            "moe_router_load_balancing_type": "none" if moe.router_bias else "aux_loss",
            "moe_layer_freq": None if all(pattern) else pattern,
            "moe_shared_expert_intermediate_size": moe.shared_width or None,
            "moe_shared_expert_gate": moe.shared_gate or None,
            "moe_router_score_function": "sigmoid" if moe.router_bias else None,
            "moe_router_enable_expert_bias": moe.router_bias or None,
            "moe_router_dtype": "fp32" if moe.router_bias else None,
            "moe_router_pre_softmax": True if not moe.router_bias and (moe.pre_softmax or moe.top_k == 1) else None,
            "moe_router_num_groups": moe.router_groups if both else None,
            "moe_router_group_topk": moe.router_top_groups if both else None,
            "moe_router_topk_scaling_factor": moe.router_scaling,
        }
    )
