"""What of a plan does not fit the one mesh of ranks that Megatron-LM has: its degrees, layers and recomputation are the
same in every replica. GPU types may differ by stage, where machines can be started in the order of their ranks."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.plans.mesh import hosts, one_recompute, shape
from shardwright.plans.plan import DEGREES, Plan, Recompute, Replica, Stage, stages_at

HINT = "plan with --exportable-to megatron"


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
    first = plan.replicas[0].stages[0]
    for path, _, stage in stages_at(plan):
        for name in names:
            if getattr(stage, name) != getattr(first, name):
                own, other = _words(stage, name), _words(first, name)
                yield Problem(
                    f"{path}.{name}", f"differs from stage 0's ({own} against {other}); Megatron-LM has one", HINT
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
