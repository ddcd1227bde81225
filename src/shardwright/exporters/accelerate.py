"""A plan as an Accelerate 1.15 configuration: FSDP2, with tensor and context parallelism by its ParallelismConfig.

Fields: https://huggingface.co/docs/accelerate/package_reference/fsdp and …/parallelism_config. Accelerate passes over
keys inside `fsdp_config` and `parallelism_config` that it does not know, so the tests compare what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem, reject
from shardwright.exporters.exported import Exported, run_script, yaml_text
from shardwright.exporters.hugging_face import (
    ARGUMENTS,
    MODEL_ARGUMENTS,
    frozen_parts,
    loaded_narrow,
    mixed_precision,
    model_files,
    peft_files,
    refusals_of_trainer,
    script_words,
    trainer_arguments,
    trainer_text,
)
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.support.traits import ON_THE_GPU
from shardwright.plans.check import check
from shardwright.plans.mesh import has_equal_shares
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.rows import stated

TARGET = "accelerate"
VERSION = trainers()[TARGET].version
EVENLY = "plan with GPUs that the machines share evenly"
# In place of bitsandbytes', whose operators take no distributed tensors (its issue 1633; bitsandbytes/optim 0.50).
OF_SHARDS = {"adam8bit": "adamw_torch_8bit"}
# Layers without the blocks that they share: two units of FSDP2 cannot have one weight (fully_shard of torch 2.13 takes
# what another unit has sharded for a part of tensor parallelism), so these are the root's.
MIXER_LAYERS = {"zamba": "ZambaMambaDecoderLayer", "zamba2": "Zamba2MambaDecoderLayer"}


def export_config(plan: Plan) -> Exported:
    """Return `accelerate.yaml`, the arguments of a Trainer, and the launch script. Raises SpecError with every reason
    where the plan is illegal or Accelerate cannot run it."""
    reject(check(plan) or (*unsupported(plan), *_with_fsdp2(plan)))
    document, arguments = config(plan), _arguments(plan)
    return Exported(
        target=TARGET,
        version=VERSION,
        files={
            "accelerate.yaml": f"# Written by shardwright for Accelerate {VERSION}.\n{yaml_text(document)}",
            ARGUMENTS: trainer_text(arguments),
            **model_files(plan),
            **peft_files(plan),
            "run.sh": _script(plan),
        },
        document={"config": document, "training_arguments": arguments},
    )


def unsupported(plan: Plan) -> Iterator[Problem]:
    """Yield why Accelerate cannot run a legal plan."""
    yield from refusals_of_trainer(plan, TARGET)
    if has_equal_shares(plan) and not plan.uniform and len(sizes := set(machine_sizes(plan))) > 1:
        words = " and ".join(map(str, sorted(sizes)))
        yield Problem("replicas", f"take {words} GPUs of machines; Accelerate starts as many on each", EVENLY)


def _with_fsdp2(plan: Plan) -> Iterator[Problem]:
    """Yield why FSDP2, for which the export is, does not run what FSDP did: `--framework fsdp` is a price for both."""
    if _is_sharded(plan) and plan.job.optimizer in ON_THE_GPU - OF_SHARDS.keys():
        message = f"{plan.job.optimizer} is bitsandbytes' alone, which updates no parameters that FSDP2 shards"
        yield Problem("job.optimizer", message, "use --optimizer adam8bit, which torchao has, or --set sharding=none")


def _is_sharded(plan: Plan) -> bool:
    return plan.optimizer.sharding in ("zero2", "zero3")


def _arguments(plan: Plan) -> dict[str, object]:
    """Return the training arguments. Sharded gradients are summed in every micro-batch unless the job says otherwise:
    left alone, Accelerate keeps whole ones on every GPU until the last (`no_sync`)."""
    if not _is_sharded(plan):
        return trainer_arguments(plan)
    several = plan.replicas[0].micro_batches > 1 and plan.job.options.gradient_sync != "last"
    of_shards = {
        "optim": OF_SHARDS.get(plan.job.optimizer),
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if several else None,
    }
    return trainer_arguments(plan) | stated(of_shards)


def config(plan: Plan) -> dict[str, object]:
    """Return the configuration as data, keys in the order of Accelerate's own files."""
    stage, machines = plan.stages[0], machine_sizes(plan)
    sharded = _is_sharded(plan)
    fsdp = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": plan.optimizer.sharding == "zero3",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **_wrapped(plan),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": plan.optimizer.offload > 0,
        "fsdp_activation_checkpointing": False,  # the Trainer's own, training_arguments.json
    }
    parallelism = {
        "parallelism_config_dp_replicate_size": 1,
        "parallelism_config_dp_shard_size": plan.data_parallel,
        "parallelism_config_tp_size": stage.tensor_parallel,
        "parallelism_config_cp_size": stage.context_parallel,
    }
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU",
        "mixed_precision": mixed_precision(plan),
        "num_machines": len(machines),
        "num_processes": plan.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
        **({"fsdp_config": fsdp, "parallelism_config": parallelism} if sharded else {}),
    }


def _wrapped(plan: Plan) -> dict[str, str]:
    """Return which layers are units of their own, where these are not all that transformers says."""
    layer = MIXER_LAYERS.get(plan.model.family) if plan.model.sharing else None
    return {} if layer is None else {"fsdp_transformer_layer_cls_to_wrap": layer}


def _script(plan: Plan) -> str:
    loaded = "" if not loaded_narrow(plan) else f", and loads the model in the dtype of {MODEL_ARGUMENTS}"
    if _is_sharded(plan) and plan.job.adapter is not None and plan.job.adapter.quantised:
        loaded += ", and loads the model with device_map='cpu', or all of it comes onto each GPU first"
    start = "exec accelerate launch --config_file accelerate.yaml"
    if len(machine_sizes(plan)) > 1:
        start += ' --machine_rank "${NODE_RANK:?number of this machine}" \\\n'
        start += '    --main_process_ip "${MASTER_ADDR:?address of machine 0}" --main_process_port 29500'
    return run_script(
        f"Written by shardwright for Accelerate {VERSION}.",
        f': "${{TRAIN_SCRIPT:?{script_words(plan)}; it reads training_arguments.json{loaded}{frozen_parts(plan)}}}"',
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f'{start} \\\n    "${{TRAIN_SCRIPT}}" training_arguments.json "$@"',
    )
