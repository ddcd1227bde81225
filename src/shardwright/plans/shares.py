"""The two shares of a GPU under uneven FSDP: rows of the batch, which it computes, and state, which it keeps.

Both are integers that sum exactly: rows to `job.global_batch`, state to `optimizer.parts`. So one GPU can compute much
and keep little, another the reverse (Cephalo, arXiv 2411.01075 §2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from shardwright.errors import Problem
from shardwright.plans.plan import DEGREES, Plan, Replica, Stage, replicas_at
from shardwright.rows import holding, stated


def cuts(elements: int, states: Sequence[int], parts: int, step: int) -> tuple[int, ...]:
    """Return where the shards of a buffer begin, and the last one ends: shard i has `states[i]` of `parts` of its
    `elements`, a multiple of `step`, rounded to whole steps so that the sum stays exact."""
    assert elements % step == 0 and sum(states) == parts, "buffers are padded, and states sum to the parts"
    return tuple(total * (elements // step) // parts * step for total in accumulate(states, initial=0))


def share_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what is wrong with the shares of a plan, and with a layered plan as such."""
    if not plan.layered:
        yield from _no_shares(plan)
        return
    for place, replica in replicas_at(plan):
        yield from _replica_problems(place, replica)
    yield from _wave_problems(plan)
    yield from _micro_batch_problems(plan)
    yield from _state_problems(plan)
    sharding, offload = plan.optimizer.sharding, plan.optimizer.offload
    rows = holding(
        (sharding != "zero3", ("sharding", sharding, "write zero3")),
        (offload, ("offload", f"{offload:g}", "write 0: state shares are of GPU memory")),
    )
    for name, word, hint in rows:
        yield Problem(f"optimizer.{name}", f"is {word} with schedule layered", hint)


def _no_shares(plan: Plan) -> Iterator[Problem]:
    figures = {"schedule.waves": plan.schedule.waves, "optimizer.parts": plan.optimizer.parts}
    for place, replica in replicas_at(plan):
        figures |= {f"{place}.rows": replica.rows, f"{place}.state": replica.state}
    message = f"is set with schedule {plan.schedule.kind}"
    for place in stated(figures):
        yield Problem(place, message, "leave it out, or use schedule layered")


def _replica_problems(place: str, replica: Replica) -> Iterator[Problem]:
    rows, waves = replica.rows, replica.micro_batches
    faults = holding(
        (rows is None, ("rows", "is missing", "write the samples that each of its GPUs takes a step")),
        (
            rows is not None and rows < waves,
            (
                "rows",
                f"{rows} samples do not fill {waves} micro-batches",
                "write at least one sample for each micro-batch",
            ),
        ),
        (
            replica.state is None,
            ("state", "is missing", "write how many of optimizer.parts each of its GPUs keeps"),
        ),
        (
            len(replica.stages) > 1,
            (
                "stages",
                f"has {len(replica.stages)} stages with schedule layered",
                "a layered plan has the whole model on every GPU: write one stage",
            ),
        ),
    )
    yield from (Problem(f"{place}.{name}", message, hint) for name, message, hint in faults)
    yield from _stage_problems(f"{place}.stages[0]", replica.stages[0])


def _stage_problems(place: str, stage: Stage) -> Iterator[Problem]:
    for name in DEGREES:
        if getattr(stage, name) != 1:
            yield Problem(f"{place}.{name}", f"is {getattr(stage, name)} with schedule layered", "write 1")
    again = stage.recompute
    if again.method == "uniform" and again.layers != 1:
        message = f"groups of {again.layers} layers with schedule layered"
        yield Problem(f"{place}.recompute.layers", message, "write 1: passes go layer by layer")


def _wave_problems(plan: Plan) -> Iterator[Problem]:
    waves = plan.schedule.waves
    if not waves:
        yield Problem("schedule.waves", "is missing" if waves is None else "is 0", "write 1 or more")
        return
    for place, replica in replicas_at(plan):
        if replica.micro_batches % waves:
            message = f"{replica.micro_batches} micro-batches do not divide by the {waves} waves"
            yield Problem(f"{place}.micro_batches", message, "every wave has as many: write a multiple")


def _micro_batch_problems(plan: Plan) -> Iterator[Problem]:
    known = [replica for replica in plan.replicas if replica.rows is not None]
    largest = max((replica.sizes(plan.micro_batch)[0] for replica in known), default=plan.micro_batch)
    if plan.micro_batch != largest:
        message = f"is {plan.micro_batch}, but the largest micro-batch of the replicas has {largest} samples"
        yield Problem("micro_batch", message, f"write {largest}")


def _state_problems(plan: Plan) -> Iterator[Problem]:
    parts = plan.optimizer.parts
    if not parts:
        message = "is missing" if parts is None else "is 0"
        yield Problem("optimizer.parts", message, "write into how many parts the state is cut")
        return
    total = sum(replica.count * (replica.state or 0) for replica in plan.replicas)
    if total != parts and all(replica.state is not None for replica in plan.replicas):
        message = f"the replicas keep {total} parts of the state, but optimizer.parts is {parts}"
        yield Problem("replicas", message, "the sum of count * state must equal it")
