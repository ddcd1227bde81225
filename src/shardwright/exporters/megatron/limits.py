"""What Megatron-LM core_v0.19 cannot express or run, named with the remedy.

It has one mesh of ranks: degrees, layers and recomputation are the same in every replica. GPU types may differ by
stage, where machines can be started in the order of their ranks. `arguments.py`, `transformer_config.py` and so on are
files of Megatron-LM core_v0.19.2 (megatron/training and megatron/core); the line numbers are those of the release's
wheel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.exporters.exported import limit
from shardwright.exporters.support.refusals import refusals
from shardwright.exporters.support.traits import options_of
from shardwright.plans.abilities import gpu_problems, job_problems
from shardwright.plans.cuts import misfits
from shardwright.plans.mesh import hosts, one_recompute, shape
from shardwright.plans.plan import DEGREES, Plan, Recompute, Replica, Stage, stages_at
from shardwright.spec.catalog.frameworks import MEGATRON
from shardwright.spec.cluster import NodePool

TARGET = "megatron"
GROUPED_GEMM = 8.0  # the capability from which on the export asks for grouped products of experts

HINT = "plan with --exportable-to megatron"


def unsupported(plan: Plan) -> tuple[Problem, ...]:
    """Return why Megatron-LM cannot run `plan`, which is legal (`shardwright.plans.check`); nothing if it can."""
    return tuple(mesh_problems(plan)) or (*refusals(plan, TARGET), *beyond_the_matrix(plan))


def beyond_the_matrix(plan: Plan) -> Iterator[Problem]:
    """Yield the limits that hang on what machines can do, or on several settings and sizes together."""
    for rule in CONDITIONS.values():
        yield from rule(plan)


def pools_of(plan: Plan) -> tuple[NodePool, ...]:
    """Return machines of each GPU type of a plan, those that come first in the cluster."""
    return tuple(plan.cluster.pool_of[name] for name in plan.gpus_by_type)


def least_capability(plan: Plan) -> float:
    """Return the least CUDA compute capability of the GPUs of a plan, infinite where these have none."""
    return min(pool.gpu.capability for pool in pools_of(plan))


def _hardware(plan: Plan) -> Iterator[Problem]:
    job = replace(plan.job, framework=MEGATRON)
    for pool in pools_of(plan):
        yield from gpu_problems(replace(plan, job=job), pool)
        for problem in job_problems(pool.gpu, job):
            flex = problem.path == "job.options.dispatcher"
            yield limit(problem.path, problem.message, "dispatcher=alltoall") if flex else problem


def _sizes(plan: Plan) -> Iterator[Problem]:
    for of, what, size, multiple in misfits(plan, MEGATRON):
        if of == "tokens":
            hint = "use bf16, another length or other micro-batches"
            yield Problem("micro_batch", f"fp8 cannot split {size} tokens of a rank evenly", hint)
        else:
            yield Problem("job.precision", f"fp8 needs multiples of {multiple}; {what} is {size}", "use bf16")


def _options(plan: Plan) -> Iterator[Problem]:
    """transformer_config.py 1784."""
    if "moe_act" in options_of(plan).get("recompute_modules", "") and least_capability(plan) < GROUPED_GEMM:
        message = "has moe_act, which needs grouped products of experts"
        yield limit("job.options.recompute_modules", message, "recompute_modules=default")


CONDITIONS: Mapping[str, Callable[[Plan], Iterator[Problem]]] = {
    "GPUs": _hardware,
    "sizes in fp8": _sizes,
    "options with GPUs": _options,
}
"""What no row of the matrix says alone, by the value of the subject `condition` that stands for it there."""


def mesh_problems(plan: Plan) -> Iterator[Problem]:
    """Yield why the replicas and stages of a legal plan are no mesh of equal ranks."""
    if plan.layered:
        yield Problem("schedule", "is uneven FSDP; Megatron-LM gives every GPU equal shares", HINT)
    elif len({shape(replica) for replica in plan.replicas}) > 1:
        shapes = "; ".join(_replica_words(replica) for replica in plan.replicas)
        yield Problem("replicas", f"Megatron-LM needs equal replicas; these differ: {shapes}", HINT)
    elif unlike := tuple(_unlike_stages(plan)):
        yield from unlike
    else:
        yield from _machines(plan)


def _unlike_stages(plan: Plan) -> Iterator[Problem]:
    names = DEGREES if one_recompute(plan) is not None else (*DEGREES, "recompute")
    first = plan.stages[0]
    for path, _, stage in stages_at(plan):
        for name in names:
            if getattr(stage, name) != getattr(first, name):
                value, other = _words(stage, name), _words(first, name)
                yield Problem(
                    f"{path}.{name}", f"differs from stage 0's ({value} against {other}); Megatron-LM has one", HINT
                )


def _machines(plan: Plan) -> Iterator[Problem]:
    if not plan.uniform and hosts(plan) is None:
        message = "cannot be numbered machine by machine: some machine would hold ranks that do not follow each other"
        yield Problem("replicas", message, HINT)


def _replica_words(replica: Replica) -> str:
    gpus = " and ".join(dict.fromkeys(stage.gpu for stage in replica.stages))
    stages, batches = len(replica.stages), replica.micro_batches
    return (
        f"{replica.count} with {stages} stage{'s' * (stages > 1)} on {gpus} and "
        f"{batches} micro-batch{'es' * (batches > 1)}"
    )


def _words(stage: Stage, name: str) -> str:
    value = getattr(stage, name)
    if not isinstance(value, Recompute):
        return str(value)
    return " ".join(str(word) for word in (value.granularity, value.method, value.layers) if word is not None)
