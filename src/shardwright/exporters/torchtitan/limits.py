"""What torchtitan 0.3 cannot express or run, named with the remedy."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.exporters.limit import limit
from shardwright.exporters.torchtitan.models import registered, registry
from shardwright.exporters.trainer_options import refused_options
from shardwright.plans.plan import Plan

RECIPES = ("tensorwise", "mxfp8")


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why torchtitan cannot run a legal plan; nothing if it can."""
    return (*_shape(plan), *_model(plan), *_settings(plan), *refused_options(plan, "torchtitan"))


def _shape(plan: Plan) -> Iterator[Problem]:
    if not plan.uniform:
        yield Problem("replicas", "differ; torchtitan has one mesh for all GPUs", "plan on one GPU type")
        return
    stage = plan.replicas[0].stages[0]
    if any(kind.moe for kind in plan.model.kinds):
        split = stage.tensor_parallel if stage.expert_parallel == 1 else 1
        if stage.expert_tensor_parallel != split:  # it splits experts over the ranks that they are not spread over
            yield limit("replicas", f"torchtitan splits these experts over {split}", f"etp={split}")
    if plan.rank_order != "tp-cp-ep-dp-pp":
        yield limit(
            "rank_order",
            f"{plan.rank_order}: torchtitan's mesh has pipeline outermost",
            "rank_order=tp-cp-ep-dp-pp",
        )
    if stage.context_parallel > 1 and plan.optimizer.sharding == "none":
        message = "is none; ranks that share a sequence share the state, too (`dp_shard_cp`)"
        yield limit("optimizer.sharding", message, "sharding=zero2,zero3")
    virtual = plan.schedule.virtual_stages
    if virtual > 1 and plan.replicas[0].micro_batches % len(plan.replicas[0].stages):
        yield limit("micro_batches", "Interleaved1F1B needs a multiple of the pipeline ranks", "vpp=1")


def _model(plan: Plan) -> Iterator[Problem]:
    if registered(plan.model) is None:
        have = ", ".join(f"{each.module} {each.flavor}" for each in registry())
        yield Problem("model", f"{plan.model.name} is not in torchtitan's registry", f"it has {have}")
    if plan.model.mtp_layers:
        yield Problem("model", "has multi-token prediction, which torchtitan has not", "plan without: mtp_layers: 0")


def _settings(plan: Plan) -> Iterator[Problem]:
    if plan.job.precision not in ("bf16", "fp8", "fp32"):
        yield Problem("job.precision", f"{plan.job.precision} is not trained by torchtitan", "--precision bf16")
    if plan.job.precision == "fp8" and plan.job.fp8_recipe not in RECIPES:
        yield Problem("job.fp8_recipe", f"is {plan.job.fp8_recipe}", f"one of {', '.join(RECIPES)}")
    if plan.job.document_tokens is not None:
        yield Problem("job.document_tokens", "is run by `shardwright train` alone", "leave it out")
    if plan.job.optimizer != "adam":
        yield Problem("job.optimizer", f"is {plan.job.optimizer}", "--optimizer adam")
    if plan.optimizer.offload:
        yield limit("optimizer.offload", "torchtitan offloads parameters and gradients too", "offload=0")
    if plan.optimizer.sharding == "zero1":
        yield limit("optimizer.sharding", "torchtitan shards gradients with the state", "sharding=zero2,zero3")
    for replica in plan.replicas:
        for place, stage in enumerate(replica.stages):
            if stage.recompute.method == "block" and stage.recompute.layers != stage.layer_count:
                yield limit(f"stage {place}", "recomputes some of its layers", "recompute=none,selective,uniform")
                return
