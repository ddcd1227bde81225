"""A plan as a DeepSpeed 0.19 configuration: ZeRO-1 to ZeRO-3, offload, AutoTP.

Fields: https://www.deepspeed.ai/docs/config-json. A pipeline is not in DeepSpeed's JSON but in the user's
`PipelineModule`, whose partition methods cannot say any split (DeepSpeed #2974), so plans with a pipeline are refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from shardwright.errors import Problem, reject
from shardwright.exporters.exported import Exported, run_script, torchrun
from shardwright.exporters.hugging_face import (
    ARGUMENTS,
    frozen_parts,
    peft_files,
    refusals_of_trainer,
    script_words,
    trainer_arguments,
    trainer_text,
)
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.support.traits import options_of
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.rows import stated

TARGET = "deepspeed"
VERSION = trainers()[TARGET].version
FILE = "ds_config.json"
SUB_GROUPS = 32  # of a rank, of which a part is offloaded to 3 %
STAGE = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


def export_config(plan: Plan) -> Exported:
    """Return `ds_config.json`, the arguments of a Trainer, and the launch script. Raises SpecError with every reason
    where the plan is illegal or DeepSpeed cannot run it."""
    reject(check(plan) or tuple(unsupported(plan)))
    document, arguments = config(plan), {**trainer_arguments(plan), "deepspeed": FILE}
    return Exported(
        target=TARGET,
        version=VERSION,
        files={
            FILE: json.dumps(document, indent=2) + "\n",
            ARGUMENTS: trainer_text(arguments),
            **peft_files(plan),
            "run.sh": _script(plan),
        },
        document={"config": document, "training_arguments": arguments},
    )


def unsupported(plan: Plan) -> Iterator[Problem]:
    """Yield why DeepSpeed cannot run a legal plan."""
    return refusals_of_trainer(plan, TARGET)


def config(plan: Plan) -> dict[str, object]:
    """Return the configuration as data."""
    replica, offload = plan.replicas[0], plan.optimizer.offload
    tensor_parallel, reduced = replica.stages[0].tensor_parallel, options_of(plan).get("grad_reduce")
    in_host = {"device": "cpu", "pin_memory": True}
    zero = {
        "stage": STAGE[plan.optimizer.sharding],
        "overlap_comm": plan.overlap.grad_reduce,
        "offload_optimizer": {**in_host, "ratio": offload} if offload else None,
        "offload_param": in_host if plan.job.options.weights_in_host else None,
        "sub_group_size": _sub_group_size(plan) if 0 < offload < 1 else None,
    }
    return stated(
        {
            "train_batch_size": plan.job.global_batch,
            "train_micro_batch_size_per_gpu": plan.micro_batch,
            "gradient_accumulation_steps": replica.micro_batches,
            "zero_optimization": stated(zero),
            "bf16": {"enabled": plan.job.precision == "bf16"},
            "fp16": {"enabled": plan.job.precision == "fp16"},
            "tensor_parallel": {"autotp_size": tensor_parallel} if tensor_parallel > 1 else None,
            "communication_data_type": reduced,
            "data_types": {"grad_accum_dtype": reduced} if reduced else None,
        }
    )


def _sub_group_size(plan: Plan) -> int:
    """Return the parameters of a rank that are updated at once. Of these groups a whole number is offloaded, and of
    the usual size, a billion, a rank may have one (deepspeed/runtime/zero/stage3.py: `subgroup_to_device`)."""
    tensor_parallel = plan.stages[0].tensor_parallel
    return math.ceil(plan.model.parameters / (tensor_parallel * plan.data_parallel * SUB_GROUPS))


def _script(plan: Plan) -> str:
    return run_script(
        f"Written by shardwright for DeepSpeed {VERSION}.",
        f': "${{TRAIN_SCRIPT:?{script_words(plan)}; it reads training_arguments.json, which names '
        f'ds_config.json{frozen_parts(plan)}}}"',
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        torchrun(plan, '"${TRAIN_SCRIPT}" training_arguments.json "$@"'),
    )
