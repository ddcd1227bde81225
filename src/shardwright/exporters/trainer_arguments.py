"""What of a plan a Hugging Face `Trainer` must be told: batch, accumulation, precision, recomputation and steps.

Names are those of `transformers.TrainingArguments` (transformers 5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from shardwright.plans.plan import Plan

PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
OPTIMIZER = {
    "adam8bit": "adamw_bnb_8bit", "paged_adam": "paged_adamw_32bit", "paged_adam8bit": "paged_adamw_8bit",
    "lion": "lion_32bit", "adafactor": "adafactor", "sgd": "sgd",
}  # fmt: skip
CHUNKED = dict.fromkeys(("rope", "swiglu", "rms_norm", "cross_entropy"), False) | {"fused_linear_cross_entropy": True}


def mixed_precision(plan: Plan) -> str:
    """Return the type of autocast: none where weights have 16 bits and no masters."""
    return PRECISION[plan.job.precision] if plan.job.masters else "no"


def trainer_arguments(plan: Plan) -> dict[str, object]:
    """Return the training arguments of a uniform plan without pipeline."""
    (replica,) = plan.replicas
    precision, options = mixed_precision(plan), plan.job.options
    found: dict[str, object] = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": replica.micro_batches,
        "gradient_checkpointing": replica.stages[0].recompute.granularity == "full",
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
    }
    if plan.job.optimizer in OPTIMIZER:
        found["optim"] = OPTIMIZER[plan.job.optimizer]
    if options.activation_offload == "inputs":
        found["gradient_checkpointing_kwargs"] = {"offload": True}
    if options.loss == "chunked":
        found |= {"use_liger_kernel": True, "liger_kernel_config": CHUNKED}
    if plan.job.iterations is not None:
        found["max_steps"] = math.ceil(plan.job.iterations)
    return found


def trainer_text(arguments: Mapping[str, object]) -> str:
    """Return the same as a JSON file, which `HfArgumentParser.parse_json_file` reads."""
    return json.dumps(arguments, indent=2) + "\n"
