"""What Hugging Face's libraries are told of a plan.

A `Trainer`: batch, accumulation, precision, recomputation and steps, by the names of `transformers.TrainingArguments`
(transformers 5). PEFT and bitsandbytes: `adapter_config.json`, which `LoraConfig.from_pretrained` reads, and the fields
of `BitsAndBytesConfig`. PEFT finds matrices by the ends of their names (`target_modules`), and experts that are one
tensor by the names of parameters (`target_parameters`): peft/tuners/lora/config.py of PEFT 0.21.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.errors import Problem
from shardwright.exporters.support.refusals import refusals, several_types
from shardwright.plans.mesh import has_equal_shares
from shardwright.plans.plan import Plan
from shardwright.rows import stated
from shardwright.spec.adapter import LINEAR, TARGETS, Adapter, Target, peft_fields
from shardwright.spec.model import Model
from shardwright.spec.preference import Preference

PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
OPTIMIZER = {
    "foreach_adam": "adamw_torch", "adam8bit": "adamw_bnb_8bit",
    "paged_adam": "paged_adamw_32bit", "paged_adam8bit": "paged_adamw_8bit",
    "galore": "galore_adamw", "apollo": "apollo_adamw", "lion": "lion_32bit", "adafactor": "adafactor", "sgd": "sgd",
    "plain_sgd": "sgd",
}  # fmt: skip
MOMENTUM = "momentum=0.9"  # transformers/trainer_optimizer.py 5.23 gives it to PyTorch's, which has none of its own
CHUNKED = dict.fromkeys(("rope", "swiglu", "rms_norm", "cross_entropy"), False) | {"fused_linear_cross_entropy": True}

ARGUMENTS = "training_arguments.json"
MODEL_ARGUMENTS = "model_arguments.json"
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
CONFIG = "adapter_config.json"
QUANTISATION = "quantization_config.json"
# Families whose matrices have in transformers 5 the names that Llama's have; in the others PEFT looks for all that are
# linear. src/transformers/models/<family>/modeling_<family>.py.
AS_IN_LLAMA = frozenset(
    {"arcee", "cohere", "cohere2", "cwm", "dots1", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4_moe"}
    | {"granite", "helium", "internlm3", "llama", "ministral", "ministral3", "mistral", "mixtral", "nemotron", "olmo"}
    | {"olmo2", "olmo3", "olmoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open"}
    | {"mllama_text_model", "stablelm", "vaultgemma"}
)
LATENT: Mapping[str, tuple[str, ...]] = {  # the two steps of latent attention: modeling_deepseek_v3.py
    "q_proj": ("q_a_proj", "q_b_proj"), "k_proj": ("kv_a_proj_with_mqa",), "v_proj": ("kv_b_proj",),
}  # fmt: skip
FEED_FORWARD: tuple[Target, ...] = ("gate_proj", "up_proj", "down_proj")
ALL = "all-linear"
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EIGHT_BITS, FOUR_BITS = {"load_in_8bit": True}, {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}  # fmt: skip


def mixed_precision(plan: Plan) -> str:
    """Return the type of autocast: none where weights have 16 bits and no masters."""
    return PRECISION[plan.job.precision] if plan.job.masters else "no"


def trainer_arguments(plan: Plan) -> dict[str, object]:
    """Return the training arguments of a plan of equal shares."""
    replica, precision, options = plan.replicas[0], mixed_precision(plan), plan.job.options
    again, rank = replica.stages[0].recompute.granularity == "full", plan.job.projection_rank
    offloads = options.activation_offload == "inputs" and again  # of layers that run again
    chunked, preference = options.loss == "chunked", plan.job.preference
    return stated(
        {
            "per_device_train_batch_size": plan.micro_batch,
            "gradient_accumulation_steps": replica.micro_batches,
            "gradient_checkpointing": again,
            "bf16": precision == "bf16",
            "fp16": precision == "fp16",
            "optim": OPTIMIZER.get(plan.job.optimizer),
            "optim_target_modules": None if rank is None else ["attn", "mlp"],
            "optim_args": f"rank={rank}" if rank else MOMENTUM if plan.job.optimizer == "sgd" else None,
            "gradient_checkpointing_kwargs": {"offload": True} if offloads else None,
            # Fields of TRL's configurations alone.
            "max_length": None if preference is None else plan.job.seq_len,
            "precompute_ref_log_probs": True if preference is not None and preference.precomputed else None,
            "loss_type": "nll" if options.loss == "tiled" else None,
            "use_liger_kernel": True if chunked else None,
            "liger_kernel_config": CHUNKED if chunked else None,
            "max_steps": None if plan.job.iterations is None else math.ceil(plan.job.iterations),
        }
    )


def trainer_text(arguments: Mapping[str, object]) -> str:
    """Return the same as a JSON file, which `HfArgumentParser.parse_json_file` reads."""
    return json.dumps(arguments, indent=2) + "\n"


def refusals_of_trainer(plan: Plan, target: str) -> Iterator[Problem]:
    """Yield why a target that runs transformers' Trainer, with equal shares for all, does not run a legal plan."""
    if not plan.uniform and not has_equal_shares(plan):
        yield from several_types(target)
        return
    yield from refusals(plan, target)
    yield from unnamed_targets(plan.model, plan.job.adapter)


def unnamed_targets(model: Model, adapter: Adapter | None) -> Iterator[Problem]:
    """Yield which matrices of an adapter PEFT cannot be told by name."""
    if adapter is None:
        return
    blocks = [target for target in FEED_FORWARD if target in adapter.targets and module_names(model, target)]
    known, experts = named_as_known(model), "experts" in adapter.targets
    rows = (
        (
            not known and adapter.targets not in (LINEAR, TARGETS),
            f"names some matrices of {model.family}, whose names are not known here",
            "target all linear ones: --adapter-targets linear",
        ),
        (
            model.towers and _modules(model, adapter) == ALL,
            f"are of {model.family}, whose names are not known here, and all linear ones are in the tower too",
            "train all weights, or take another model",
        ),
        (
            known and blocks and model.has_experts and not experts,
            f"has {', '.join(blocks)}, beside which PEFT makes adapters of the experts too",
            "leave feed-forward blocks out: --adapter-targets attention",
        ),
        (adapter.dora and experts, "has experts, beside which PEFT has no DoRA", "leave out experts"),
        (
            adapter.quantised and experts,
            "has experts, beside which PEFT has no adapters where they are quantised",
            "leave out experts",
        ),
    )
    yield from (Problem("job.adapter.targets", message, hint) for holds, message, hint in rows if holds)


def script_words(plan: Plan) -> str:
    """Return what training script reads the arguments: with a trainer of TRL's, where the loss is TRL's own, or the
    trainer whose code of the loss is meant."""
    preference = plan.job.preference
    if preference is not None and preference.by != "trl":
        return f"your launch of {preference.by} with its {preference.loss.upper()}"
    if preference is None and plan.job.loss != "tiled":
        return "your training script"
    return f"your script with TRL's {_trainer(preference)}Trainer"


def _trainer(preference: Preference | None) -> str:
    if preference is None:
        return "SFT"
    return preference.loss.title() if preference.passes.scores else preference.loss.upper()


def frozen_parts(plan: Plan) -> str:
    """Return in words what a training script freezes, which no argument says; "" for nothing."""
    if plan.job.freeze is None or plan.job.adapter is not None:
        return ""
    names = {"vision": "vision tower", "audio": "audio tower", "language": "language model"}
    words = " and the ".join(names.get(part, part) for part in plan.job.freeze)
    return f", and calls requires_grad_(False) on the {words}"


def adapter_config(model: Model, adapter: Adapter) -> dict[str, Any]:
    """Return the fields of `LoraConfig` that differ from adapter to adapter, and what kind it is."""
    fields = peft_fields(adapter, _modules(model, adapter))
    if model.scores is not None:
        fields["task_type"] = "SEQ_CLS"
    if "experts" in adapter.targets and model.has_experts:
        fields["target_parameters"] = EXPERTS
    return fields


def module_names(model: Model, target: Target) -> tuple[str, ...]:
    """Return the names that the matrices of a target have in transformers, of a model whose names are known."""
    kinds = model.kinds
    dense = any(kind.mlp or kind.embedded or (kind.moe and kind.moe.shared_width) for kind in kinds)
    if target == "experts" or (target in FEED_FORWARD and not dense):
        return ()
    if not any(kind.latent for kind in kinds):
        return (target,)
    direct = any(kind.latent and kind.latent.query_rank is None for kind in kinds)
    return (target,) if direct and target == "q_proj" else LATENT.get(target, (target,))


def named_as_known(model: Model) -> bool:
    """Return whether PEFT can be told of some matrices of a model by name."""
    return any(kind.latent for kind in model.kinds) or model.family in AS_IN_LLAMA


def _modules(model: Model, adapter: Adapter) -> list[str] | str:
    if not named_as_known(model):
        return ALL
    names = [name for target in adapter.targets for name in module_names(model, target)]
    if model.towers:  # whose matrices have some of these names; PEFT matches a text as an expression
        return rf".*language_model.*\.({'|'.join(names)})"
    return names


def quantisation_config(plan: Plan) -> dict[str, Any]:
    """Return the fields of `BitsAndBytesConfig`, empty where frozen weights are in 16 bits. Four-bit weights are stored
    in the type in which they are computed with, as FSDP gathers tensors of one type."""
    adapter = plan.job.adapter
    if adapter is None or not adapter.quantised:
        return {}
    dtype = DTYPES[plan.job.precision]
    if adapter.frozen == "int8":
        return dict(EIGHT_BITS)
    return {**FOUR_BITS, "bnb_4bit_compute_dtype": dtype, "bnb_4bit_quant_storage": dtype}


def loaded_narrow(plan: Plan) -> bool:
    """Return whether a training script is to load the model in 16 bits: weights without fp32 copies, and those beside
    adapters in TRL's trainers of preferences, whose own scripts load fp32 unless told otherwise."""
    frozen = plan.job.adapter is not None and plan.job.preference is not None
    return not plan.job.masters or (frozen and plan.job.precision in DTYPES)


def model_files(plan: Plan) -> Mapping[str, str]:
    """Return the file of the type in which a training script loads the model, none where it is not told."""
    if not loaded_narrow(plan):
        return {}
    return {MODEL_ARGUMENTS: json.dumps({"dtype": DTYPES[plan.job.precision]}, indent=2) + "\n"}


def peft_files(plan: Plan) -> Mapping[str, str]:
    """Return the files that a training script reads beside its arguments, none where all weights are trained."""
    if plan.job.adapter is None:
        return {}
    files = {CONFIG: adapter_config(plan.model, plan.job.adapter)}
    if quantised := quantisation_config(plan):
        files[QUANTISATION] = quantised
    return {name: json.dumps(fields, indent=2) + "\n" for name, fields in files.items()}
