"""What of a plan a Hugging Face `Trainer` must be told: batch, accumulation, precision, recomputation and steps.

Names are those of `transformers.TrainingArguments` (transformers 5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from shardwright.plans.plan import Plan

PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}


def trainer_arguments(plan: Plan) -> dict[str, object]:
    """Return the training arguments of a uniform plan without pipeline."""
    (replica,) = plan.replicas
    found: dict[str, object] = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": replica.micro_batches,
        "gradient_checkpointing": replica.stages[0].recompute.granularity == "full",
        "bf16": plan.job.precision == "bf16",
        "fp16": plan.job.precision == "fp16",
    }
    if plan.job.iterations is not None:
        found["max_steps"] = math.ceil(plan.job.iterations)
    return found


def trainer_text(arguments: Mapping[str, object]) -> str:
    """Return the same as a JSON file, which `HfArgumentParser.parse_json_file` reads."""
    return json.dumps(arguments, indent=2) + "\n"
