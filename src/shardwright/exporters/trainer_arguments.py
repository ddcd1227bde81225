"""What of a plan a Hugging Face `Trainer` must be told: batch, accumulation, precision, recomputation and steps.

Names are those of `transformers.TrainingArguments` (transformers 5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

from shardwright.errors import Problem
from shardwright.exporters.limit import limit
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


def trainer_limits(plan: Plan, name: str) -> Iterator[Problem]:
    """Yield what trainers without pipeline and expert parallelism cannot run of a legal plan."""
    if not plan.uniform:
        yield Problem("replicas", f"differ; {name} runs one strategy on all GPUs", "plan on one GPU type")
        return
    (replica,) = plan.replicas
    stage = replica.stages[0]
    if len(replica.stages) > 1:
        yield limit("replicas[0].stages", f"{name} has no pipeline for Hugging Face models", "pp=1")
    if stage.expert_parallel > 1:
        yield limit("replicas[0].stages[0].expert_parallel", f"{name} splits no experts", "ep=1")
    if stage.expert_tensor_parallel != stage.tensor_parallel and any(kind.moe for kind in plan.model.kinds):
        pins = f"etp={stage.tensor_parallel}"
        yield limit("replicas[0].stages[0].expert_tensor_parallel", f"{name} splits experts as all layers", pins)
    recompute = stage.recompute
    if recompute.granularity == "selective" or recompute.layers not in (None, 1, stage.layer_count):
        pins = "recompute_layers=1" if recompute.method == "uniform" else "recompute=none,uniform"
        yield limit("recompute", f"{name} recomputes all layers, each by itself, or none", pins)
    if plan.job.precision not in PRECISION:
        yield Problem("job.precision", f"{plan.job.precision} is not among {', '.join(PRECISION)}", "--precision bf16")
    if plan.job.document_tokens is not None:
        yield Problem("job.document_tokens", "is run by `shardwright train` alone", "leave it out")
    if plan.job.optimizer != "adam":
        yield Problem("job.optimizer", f"is {plan.job.optimizer}", "--optimizer adam")
