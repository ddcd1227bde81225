"""Who runs a plan, and who runs a model at all: the exporters' limits, and those of `shardwright train`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.errors import Problem
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.targets import Limits, limits_of
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model


def limits_of_trainer(name: str) -> Limits:
    """Return what says why a trainer cannot run a legal plan."""
    limits = unrunnable if name == OWN else limits_of(name)
    assert limits is not None, "trainers have limits"
    return limits


def frameworks_with_trainers() -> Mapping[str, tuple[str, ...]]:
    """Return the trainers of each framework that plans are searched for."""
    names = dict.fromkeys(trainer.framework for trainer in trainers().values() if trainer.framework)
    return {name: tuple(each.name for each in trainers().values() if each.framework == name) for name in names}


def runners(plan: Plan) -> tuple[str, ...]:
    """Return the trainers that run a legal plan, of those of the framework that it is priced for; of one whose replicas
    are no mesh of equal ranks `train`, which alone runs such plans."""
    framework = plan.job.framework if plan.uniform or is_mesh(plan) else OWN
    names = frameworks_with_trainers().get(framework, ())
    return tuple(name for name in names if not tuple(limits_of_trainer(name)(plan)))


def model_refusals(trainer: str, model: Model, cluster: Cluster, job: Job) -> tuple[Problem, ...]:
    """Return why a trainer runs no plan for a model and a job whatsoever, as far as that hangs on these two; nothing
    where it runs some."""
    plans = [_least_plan(model, cluster, pool, job) for pool in cluster.pools]
    refused = [tuple(_of_the_model(limits_of_trainer(trainer)(plan))) for plan in plans]
    return min(refused, key=len)


def _of_the_model(problems: Iterable[Problem]) -> Iterable[Problem]:
    return (problem for problem in problems if problem.path.split(".")[0] in ("model", "job"))


def _least_plan(model: Model, cluster: Cluster, pool: NodePool, job: Job) -> Plan:
    """Return the plan of one GPU with every setting at its least, which asks nothing of a trainer but the model and the
    job."""
    stage = Stage(
        gpu=pool.gpu.name,
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((0, len(model.layers)),),
        recompute=Recompute(),
    )
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=1,
        schedule=Schedule(),
        replicas=(Replica(count=1, micro_batches=job.global_batch, stages=(stage,)),),
        optimizer=OptimizerPlan(),
        overlap=Overlap(),
        sequence_parallel=False,
        flash_attention=job.framework == OWN,
    )
