"""A plan as a torchtitan 0.3 configuration: a Python file with a function that returns `Trainer.Config`.

torchtitan 0.3 is configured by Python, not by TOML (torchtitan/config/README.md): `--module M --config F` calls F of M.
The file starts from the model of the registry and sets what the plan decides. Module names of every pipeline stage are
written out, so any split can be said. What torchtitan cannot express or run is named with the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from string import Template

from shardwright.errors import Problem, reject
from shardwright.exporters.exported import Exported, call_text, plan_words, run_script, torchrun
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.support.refusals import refusals, several_types
from shardwright.exporters.torchtitan.models import Registered, differences, registered, registry
from shardwright.files import shipped_file
from shardwright.plans.abilities import job_problems
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.rows import stated

TARGET = "torchtitan"
VERSION = trainers()[TARGET].version
MODULE = "shardwright_plan"
RESHARD = {"zero2": "never", "zero3": "always"}
# The FSDP2 of PyTorch 2.13 takes no plain tensors on a mesh of several axes, which torchtitan's default, `spmd_types`,
# hands it (torch/distributed/fsdp/_fully_shard/_fsdp_param.py 346); that of 2.14 does. Both run this one.
SPMD_BACKEND = "partial_dtensor"
CONVERTER = {
    "tensorwise": ("Float8LinearConverter", "Float8LinearConverter.Config(model_compile_enabled=True)"),
    "mxfp8": ("MXFP8LinearConverter", "MXFP8LinearConverter.Config(model_compile_enabled=True)"),
}


def export_config(plan: Plan) -> Exported:
    """Return `shardwright_plan.py` and the script that starts it. Raises SpecError with every reason where the plan is
    illegal or torchtitan cannot express it."""
    reject(check(plan) or unsupported(plan))
    found = registered(plan.model)
    assert found is not None, "refused above"
    values = settings(plan)
    text = _file(plan, found, values)
    return Exported(
        target=TARGET,
        version=VERSION,
        files={f"{MODULE}.py": text, "run.sh": _script(plan)},
        document={"module": found.module, "flavor": found.flavor, "settings": values, "script": _script(plan)}
        | {"other_constants": [list(row) for row in differences(plan.model, found)]},
    )


def settings(plan: Plan) -> dict[str, dict[str, object]]:
    """Return the fields of torchtitan's configuration that the plan decides, by section."""
    (replica,) = plan.replicas
    stage, depth = replica.stages[0], len(replica.stages)
    sharded = plan.optimizer.distributed and plan.data_parallel > 1
    schedule = "Interleaved1F1B" if plan.schedule.virtual_stages > 1 else "1F1B"
    parallelism = {
        "data_parallel_replicate_degree": 1 if sharded else plan.data_parallel,
        "data_parallel_shard_degree": plan.data_parallel if sharded else 1,
        "fsdp_reshard_after_forward": RESHARD.get(plan.optimizer.sharding, "default"),
        "tensor_parallel_degree": stage.tensor_parallel,
        "enable_sequence_parallel": plan.sequence_parallel or stage.tensor_parallel == 1,
        "context_parallel_degree": stage.context_parallel,
        "expert_parallel_degree": stage.expert_parallel,
        "pipeline_parallel_degree": depth,
        "spmd_backend": SPMD_BACKEND,
        "pipeline_parallel_schedule": schedule if depth > 1 else None,
        "pipeline_parallel_microbatch_size": plan.micro_batch if depth > 1 else None,
        "module_fqns_per_model_part": modules_of_parts(plan) if depth > 1 else None,
    }
    training = {
        "local_batch_size": plan.micro_batch * (replica.micro_batches if depth > 1 else 1),
        "global_batch_size": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "dtype": "float32" if plan.job.masters else "bfloat16",
        "mixed_precision_param": "float32" if plan.job.precision == "fp32" else "bfloat16",
        "disable_cuda_graphs": depth > 1 or stage.expert_parallel > 1 or plan.optimizer.offload > 0.0,
        "enable_cpu_offload": True if plan.optimizer.offload else None,
        "steps": None if plan.job.iterations is None else math.ceil(plan.job.iterations),
    }
    return {"training": stated(training), "parallelism": stated(parallelism)}


def modules_of_parts(plan: Plan) -> list[list[str]]:
    """Return the modules of every virtual stage in the order of execution: part i runs on pipeline rank i mod depth."""
    (replica,) = plan.replicas
    parts = [
        [f"layers.{layer}" for layer in range(*stage.layers[chunk])]
        for chunk in range(plan.schedule.virtual_stages)
        for stage in replica.stages
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _file(plan: Plan, entry: Registered, values: dict[str, dict[str, object]]) -> str:
    """Return the configuration: `data/plan.py.template` with what the plan decides."""
    recompute = plan.stages[0].recompute.granularity
    policy = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}[recompute]
    converter = CONVERTER.get(plan.job.fp8_recipe or "") if plan.job.precision == "fp8" else None
    loss, losses = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))", "CrossEntropyLoss"
    if plan.job.options.loss == "chunked":
        loss, losses = f"ChunkedLossWrapper.Config(loss_fn={loss})", f"ChunkedLossWrapper, {losses}"
    placeholders = {
        "words": "\n".join([plan_words(plan), *_notes(plan, entry)]),
        "version": VERSION,
        "quantization": converter and f"from torchtitan.components.quantization import {converter[0]}\n",
        "recomputation": policy and f"from torchtitan.distributed.activation_checkpoint import {policy}\n",
        "losses": losses,
        "loss": loss,
        "module": entry.module,
        "registry": f"model_registry({entry.flavor!r}{f', converters=[{converter[1]}]' if converter else ''})",
        "training": call_text("TrainingConfig", values["training"], indent=4),
        "parallelism": call_text("ParallelismConfig", values["parallelism"], indent=4),
        "async_tensor_parallel": plan.overlap.tensor_parallel,
    }
    placeholders = {name: "" if value is None else value for name, value in placeholders.items()}
    text = shipped_file("shardwright.exporters.torchtitan", "plan.py.template").decode()
    return Template(text).substitute(placeholders, policy=policy and f"{policy}.Config()")


def _notes(plan: Plan, entry: Registered) -> list[str]:
    """Return in which constants the registry's model is another one, as its configuration cannot say these."""
    rows = [f"    {name} {theirs} in place of {ours}" for name, ours, theirs in differences(plan.model, entry)]
    title = f"torchtitan's registry has {entry.module} {entry.flavor} with constants that are not {plan.model.name}'s,"
    return ["", title, "and its configuration has no fields for them:", *rows] if rows else []


def _script(plan: Plan) -> str:
    return run_script(
        f"{plan_words(plan)} Written by shardwright for torchtitan {VERSION}.",
        ': "${HF_ASSETS_PATH:?folder with the tokenizer}"',
        ': "${LEARNING_RATE:?peak learning rate}"',
        'PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):${PYTHONPATH:-}"',
        "export PYTHONPATH PYTORCH_ALLOC_CONF=expandable_segments:True",
        torchrun(plan, f'-m torchtitan.train --module {MODULE} --config plan "$@"'),
    )


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why torchtitan cannot run a legal plan; nothing if it can."""
    if not plan.uniform:
        return (*_model(plan), *several_types(TARGET))
    gpu = plan.cluster.pool_of[plan.stages[0].gpu].gpu
    return (*_model(plan), *refusals(plan, TARGET), *job_problems(gpu, replace(plan.job, framework=TARGET)))


def _model(plan: Plan) -> Iterator[Problem]:
    entry = registered(plan.model)
    if entry is None:
        have = ", ".join(f"{entry.module} {entry.flavor}" for entry in registry())
        yield Problem("model", f"{plan.model.name} is not in torchtitan's registry", f"it has {have}")
    elif plan.job.seq_len > entry.longest:
        message = f"{plan.job.seq_len} is longer than the {entry.longest} positions of {entry.module} {entry.flavor}"
        yield Problem("job.seq_len", f"{message} in torchtitan's registry", f"--seq-len {entry.longest}")
