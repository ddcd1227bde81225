"""What the stages of a plan keep, by a walk over the schedule: slow, obvious, layer by layer and pass by pass.

A forward pass leaves on its rank what its layers keep, and a backward pass frees it. While one runs backward, the
gradients of a layer are there, and what is computed again; in the last virtual stage these alternate with the logits
and what the final norm and the output projection took in, which is gone with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.compute.operators import Shard
from shardwright.cost.context import Context
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.activations import Activations, layer_activation_bytes, tower_kept_bytes
from shardwright.cost.memory.ends import logit_bytes
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.pipeline.schedule import FORWARD, interleaved
from shardwright.cost.strategies import Strategies, stage_row, strategies
from shardwright.plans.plan import Plan, Recompute, Replica, Stage


@dataclass(frozen=True)
class _Layers:
    """Bytes of each layer of one micro-batch: all of them, those that selective recomputation frees, the input; of the
    largest one what lives while it runs backward. Those of the embedding, of layers beside the head, which run again where
    all do, and `at_head` of the
    logits with the inputs that their norm and their projection took, `at_first` of the gradient of the embedding and what
    gave it, when the first virtual stage has run backward."""

    whole: list[float]
    freed: list[float]
    inputs: list[float]
    gradients: float
    repeated: float
    ends: tuple[float, float]
    at_head: float
    at_first: float


def _layers(plan: Plan, replica: Replica, stage: Stage, where: Context) -> _Layers:
    row = strategies([stage_row(plan, replica, stage)])
    shard = Shard(**{name: getattr(row, name) for name in Shard.__dataclass_fields__})
    count: Activations = layer_activation_bytes(plan.model, shard, plan.job)
    again = stage.recompute.method == "uniform"
    tower = sum(float(tower_kept_bytes(before, shard, plan.job)[again][0]) for before in plan.model.towers)

    def of_layers(kinds: list[np.ndarray]) -> list[float]:
        return [float(kinds[1 + kind][0]) for kind in plan.model.kind_of_layer]

    return _Layers(
        whole=of_layers(count.kept),
        freed=of_layers(count.core),
        inputs=of_layers(count.inputs),
        gradients=max(float(kind[0]) for kind in count.gradients),
        repeated=max(float(kind[0]) for kind in count.again),
        ends=(float(count.kept[0][0]) + tower, float((count.inputs if again else count.kept)[-1][0])),
        at_head=float((logit_bytes(plan.model, plan.job, row.micro_batch, row.cp, row.tp) + count.before_logits)[0]),
        at_first=_of_embedding(plan, row),
    )


def _of_embedding(plan: Plan, row: Strategies) -> float:
    """Return the bytes of the embedding's gradient where it is there whole beside what entered it."""
    if not (memory_facts(plan.job.framework).megatron_core and plan.job.trains("language")):
        return 0.0
    message = row.micro_batch * plan.job.seq_len / row.cp / np.where(row.sequence_parallel, row.tp, 1)
    elements = plan.model.token_table_parameters / row.tp + message * plan.model.hidden
    return float((widths_of(plan.job).saved * elements)[0])


def _kept(of: _Layers, begin: int, end: int, again: Recompute) -> float:
    """Return what layers `begin` to `end` keep of a micro-batch."""
    here = range(begin, end)
    if again.granularity == "none":
        return sum(of.whole[layer] for layer in here)
    if again.granularity == "selective":
        return sum(of.whole[layer] - of.freed[layer] for layer in here)
    assert again.layers is not None
    if again.method == "block":
        return sum(of.inputs[layer] if layer - begin < again.layers else of.whole[layer] for layer in here)
    return sum(of.inputs[layer] for layer in here[:: again.layers])


def _working(of: _Layers, ranges: tuple[tuple[int, int], ...], again: Recompute) -> float:
    """Return what lives while a layer of a rank runs backward."""
    if again.granularity == "selective":
        return of.gradients + of.repeated
    if again.granularity == "none":
        return of.gradients
    assert again.layers is not None
    together = 1 if again.method == "block" else min(again.layers, max(end - begin for begin, end in ranges))
    return of.gradients + together * max(of.whole)


def _offloaded(of: _Layers, begin: int, end: int, again: Recompute) -> float:
    """Return the inputs of layers `begin` to `end` that run again: those that a pass needs from the host."""
    if again.granularity != "full":
        return 0.0
    assert again.layers is not None
    here = range(begin, end)
    return sum(
        of.inputs[layer] for layer in (here[: again.layers] if again.method == "block" else here[:: again.layers])
    )


def walked_host_bytes(plan: Plan, replica: Replica, contexts: dict[str, Context]) -> list[float]:
    """Return the most that inputs of layers take in the host of each rank of a replica, where all of them go there."""
    peaks = []
    for rank, stage in enumerate(replica.stages):
        of = _layers(plan, replica, stage, contexts[stage.gpu])
        size = [_offloaded(of, begin, end, stage.recompute) for begin, end in stage.layers]
        peaks.append(_most_at_once(plan, replica, rank, size, 0.0, 0.0, 0.0))
    return peaks


def _most_at_once(
    plan: Plan, replica: Replica, rank: int, size: list[float], beside: float, at_head: float, at_first: float
) -> float:
    """Return the most that a rank holds, where a forward pass of each of its virtual stages leaves `size` there until
    the backward pass is done; `beside` is there while one runs, or where that is more, `at_head` in the last virtual
    stage, and `at_first` when the first has run backward."""
    depth = len(replica.stages)
    order = interleaved(depth, plan.schedule.virtual_stages, replica.micro_batches)
    live, most, last = 0.0, 0.0, depth * plan.schedule.virtual_stages - 1
    for operation in order.operations(rank):
        held, there = size[operation.virtual_stage // depth], at_head if operation.virtual_stage == last else 0.0
        live += held if operation.kind == FORWARD else 0.0
        most = max(most, live + max(beside, there))
        live -= 0.0 if operation.kind == FORWARD else held
        most = max(most, live + at_first * (operation.kind != FORWARD and operation.virtual_stage == 0))
    return most


def walked_stage_buffers(plan: Plan, replica: Replica, contexts: dict[str, Context]) -> list[float]:
    """Return the most that activations, gradients and logits take on each rank where a stage has memory of its own for
    each input and each gradient of its output in a step, of which the input of a layer is no part any more, and keeps
    its output, with the gradient that it gave last."""
    depth, sizes = len(replica.stages), []
    last = depth * plan.schedule.virtual_stages - 1
    for rank, stage in enumerate(replica.stages):
        message = max(_layers(plan, replica, stage, contexts[stage.gpu]).inputs)
        numbers = [rank + chunk * depth for chunk in range(len(stage.layers))]
        received = replica.micro_batches * sum((number > 0) + (number < last) for number in numbers)
        output = [message * ((number < last) - (number > 0)) for number in numbers]
        given = len(numbers) == 1 and rank > 0
        walked = _walked(plan, replica, rank, contexts, output)
        sizes.append(walked + message * (received + given) * (depth > 1))
    return sizes


def walked_bytes(plan: Plan, replica: Replica, contexts: dict[str, Context]) -> list[float]:
    """Return the most that activations, gradients of these and logits take on each rank of a replica."""
    return [_walked(plan, replica, rank, contexts) for rank in range(len(replica.stages))]


def _walked(
    plan: Plan, replica: Replica, rank: int, contexts: dict[str, Context], more: list[float] | None = None
) -> float:
    """Return the same of a rank, of whose virtual stages each keeps so much `more` of a micro-batch."""
    stage, depth = replica.stages[rank], len(replica.stages)
    of = _layers(plan, replica, stage, contexts[stage.gpu])
    size = [_kept(of, begin, end, stage.recompute) for begin, end in stage.layers]
    size[0] += of.ends[0] if rank == 0 else 0.0
    size[-1] += of.ends[1] if rank == depth - 1 else 0.0
    size = [held + extra for held, extra in zip(size, more or [0.0] * len(size), strict=True)]
    working = _working(of, stage.layers, stage.recompute)
    return _most_at_once(plan, replica, rank, size, working, of.at_head, of.at_first)
