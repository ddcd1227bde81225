"""Ways to train that fit, of those that a trainer of the framework has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import bad
from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Plan, Recompute
from shardwright.search.sizing import Size, Sizing, TrainingWay, way_with
from shardwright.search.sizing import fit as size
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import Options
from shardwright.spec.preference import as_trained
from shardwright.trainers.runs import (
    NO_RECOMPUTATION,
    frameworks_with_trainers,
    model_refusals,
    one_gpu_replicas,
    runners,
    what_lacks,
)


def fit(model: Model, cluster: Cluster, job: Job) -> Sizing:
    """Return the memory that training takes on the GPUs of `cluster`, for each way to train that a trainer of the job's
    framework runs; of a framework that nothing is exported to, for each way (`search.sizing.fit`). Raises SpecError
    where none runs the model, with the frameworks that have one that does."""
    model = as_trained(model, job.preference)
    sizing, trainers = size(model, cluster, job), frameworks_with_trainers()
    if job.framework not in trainers:
        return sizing
    ran = {item.way: _somebody_runs(plan_of_way(sizing, item.way, job.options)) for item in sizing.sizes}
    if not any(ran.values()):
        able = [name for name in trainers if not all(what_lacks(replace(job, framework=name), model, cluster).values())]
        others = [name for name in able if name != job.framework]
        hint = f"use {', '.join(others)}" if others else "`shardwright support` says who runs what"
        raise bad("`framework=`", f"no trainer for {job.framework} that we know runs {model.name} so", hint)
    return replace(
        sizing,
        sizes=tuple(_with_known_options(sizing, item) for item in sizing.sizes if ran[item.way]),
        lacking=tuple(way for way, able in ran.items() if not able),
        without_adapters=_without_adapters(sizing, ran),
    )


def _without_adapters(sizing: Sizing, ran: Mapping[TrainingWay, bool]) -> str:
    """Return why no trainer has any of the ways with adapters, if there are such and none has."""
    adapted = [way for way in ran if way.adapter is not None]
    if not adapted or any(ran[way] for way in adapted):
        return ""
    job = adapted[0].of(sizing.job)
    trainers = frameworks_with_trainers()[job.framework]
    refused = [model_refusals(trainer, sizing.model, sizing.cluster, job) for trainer in trainers]
    return str(min(refused, key=len)[0]) if all(refused) else ""


def _with_known_options(sizing: Sizing, size: Size) -> Size:
    """Return a size without the options that make it fit where no trainer runs it with them."""
    if size.options is None:
        return size
    lighter = plan_of_way(sizing, way_with(size.way, size.options, sizing.cluster.gpus), size.options)
    return size if _somebody_runs(lighter) else replace(size, options=None)


def _somebody_runs(plan: Plan) -> bool:
    return not check(plan) and bool(runners(plan))


def plan_of_way(sizing: Sizing, way: TrainingWay, options: Options) -> Plan:
    """Return the data-parallel plan of a way, under options of the trainer, on so many GPUs of the type that decides,
    all in one machine."""
    count = sizing.cluster.gpus
    pool = replace(sizing.pool, nodes=1, gpus_per_node=count)
    return one_gpu_replicas(
        sizing.model,
        replace(sizing.cluster, pools=(pool,)),
        way.of(replace(sizing.job, options=options)),
        pool.gpu.name,
        count=count,
        micro_batch=sizing.job.global_batch // count,
        recompute=Recompute(granularity="full", method="uniform", layers=1) if way.recompute else NO_RECOMPUTATION,
        optimizer=OptimizerPlan(sharding=way.sharding, offload=way.offload),
        flash_attention=True,
    )
