"""Time, bytes and parameters of every layer on one GPU, for every way to shard it.

A `LayerTable` has one row per `Shard` and one column per position of the model: the embedding, each layer in order,
the head. It keeps running sums over the positions, so that the sum over any range of layers is one subtraction. A
user's own layer times fill the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwright.arrays import Columns, Floats
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.compute.launches import launches
from shardwright.cost.compute.operator_table import BACKWARD, FORWARD, GEMM, Operator, table
from shardwright.cost.compute.operators import (
    Shard,
    core_attention,
    embedding_operators,
    head_operators,
    held_adapters,
    layer_operators,
    repeated_share,
)
from shardwright.cost.compute.tower import tower_parts
from shardwright.cost.frameworks.overheads import (
    BACKWARD_LAUNCHES,
    Overheads,
    host_seconds,
    kernel_factor,
    launched_seconds,
)
from shardwright.cost.layers.seconds import OperatorSeconds, layer_seconds
from shardwright.cost.memory.activations import layer_activation_bytes, tower_kept_bytes
from shardwright.cost.memory.backward import dummy_gradient_bytes
from shardwright.cost.network.collectives import Fabric, exposed_offload_seconds
from shardwright.cost.stage.terms import kept_by_state, live_by_state
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.spec.adapter import matrices
from shardwright.spec.cluster import Gpu
from shardwright.spec.images import tower_parameters
from shardwright.spec.job import Job, dispatcher_of
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model

SECONDS = (
    *("forward", "backward", "compute_forward", "compute_backward", "core_seconds"),
    *("tp_seconds", "cp_seconds", "ep_seconds", "weight_seconds", "beside_weights"),
)


@record
class LayerTable(Columns):
    """Running sums over positions, each [M, layers + 3]: entry p is the sum over positions before p. A tower belongs to
    the embedding.

    `weight_seconds` are those of `backward` in which gradients of layers' weights are computed, `beside_weights` what
    more a backward pass takes without them, as nothing hides tensor-parallel communication. `kept` are the bytes kept
    for the backward pass of one micro-batch in each state of a layer (`cost.stage.terms`), [M, 3, layers + 3];
    `offloaded` those of layers' inputs that go to host memory; `dense` and `expert` are parameters held by one GPU,
    `adapters` and `expert_adapters` those trained beside them, `ends` those of `dense` in embedding and output
    projection, which are no matrices of layers. Of single layers: `live` is what lives while the largest runs backward,
    by state [M, 3], `dummies` what autograd is given for weights [M], `group` what each that runs again together adds,
    `boundary` the activation passed to the next layer, `parameters` the most that a layer has, [M]; `before_logits` and
    `halfway` are those of `cost.memory.activations`.
    Of a tower: `tower_again` are the seconds of its layers that run again where all layers of a stage do, `frozen` the
    weights that a GPU has of it without training them, [M].
    """

    forward: Floats
    backward: Floats
    compute_forward: Floats
    compute_backward: Floats
    core_seconds: Floats
    tp_seconds: Floats
    cp_seconds: Floats
    ep_seconds: Floats
    weight_seconds: Floats
    beside_weights: Floats
    kept: Floats
    offloaded: Floats
    dense: Floats
    expert: Floats
    adapters: Floats
    expert_adapters: Floats
    ends: Floats
    live: Floats
    dummies: Floats
    group: Floats
    boundary: Floats
    parameters: Floats
    before_logits: Floats
    halfway: Floats
    tower_again: Floats
    frozen: Floats

    def scaled(self, factor: Floats | float) -> LayerTable:
        """Return the table with times (`SECONDS`) multiplied by `factor`, one for all or one for each row [M]."""
        column = np.reshape(factor, (-1, 1))
        running = {name: column * getattr(self, name) for name in SECONDS}
        return replace(self, **running, tower_again=column[:, 0] * self.tower_again)


def layer_table(
    model: Model,
    gpu: Gpu,
    job: Job,
    shard: Shard,
    efficiency: Efficiency,
    links: Fabric,
    software: Overheads,
    *,
    strain: float = 1.0,
) -> LayerTable:
    """Return the table for every row of `shard`. All times are `strain` times those of an undisturbed GPU."""
    dispatcher = dispatcher_of(job, (gpu,))
    parts = language_operators(model, shard, job)
    kinds: tuple[Layer | None, ...] = (None, *model.kinds, None)
    calls = [launches(model, kind, shard, job) for kind in kinds]
    tower = [part for before in model.towers for part in tower_parts(before, shard, job)]
    all_calls = [*calls, *(part.launches for part in tower)]
    times = _timed([*parts, *(part.operators for part in tower)], gpu, job, efficiency, software, all_calls)
    columns = [
        layer_seconds(model, kind, shard, job, links, software, dispatcher, OperatorSeconds(*time)).scaled(strain)
        for kind, time in zip(kinds, times[: len(kinds)], strict=True)
    ]
    memory = layer_activation_bytes(model, shard, job)
    live, group = live_by_state(memory)
    kept, again = kept_by_state(memory), np.zeros(len(shard.tp))
    if model.towers:
        before = [
            (strain * part.count * forward, strain * part.count * part.backward * backward)
            for part, (forward, backward, *_) in zip(tower, times[len(kinds) :], strict=True)
        ]
        columns[0] = columns[0].after(*(np.asarray(sum(side)) for side in zip(*before, strict=True)))
        again = again + sum(forward for part, (forward, _) in zip(tower, before, strict=True) if part.again)
        for whole, inputs in (tower_kept_bytes(of_model, shard, job) for of_model in model.towers):
            kept[0] = kept[0] + np.stack([whole, whole, inputs], axis=1)
    where = np.array([0, *(kind + 1 for kind in model.kind_of_layer), len(kinds) - 1])

    def running(per_kind: list[Floats]) -> Floats:
        return running_sums(np.stack(per_kind, axis=-1)[..., where])

    forward = [c.forward + c.tp_forward + c.cp_forward + c.ep_forward for c in columns]
    backward = [c.backward + c.tp_backward + c.cp_backward + c.ep_backward for c in columns]
    if job.options.activation_offload == "inputs":
        waits = map(partial(exposed_offload_seconds, gpu), memory.offloaded, forward, backward)
        backward = [seconds + wait for seconds, wait in zip(backward, waits, strict=True)]
    parameters = [shard_parameters(model, kind, shard, position) for position, kind in enumerate(kinds)]
    trained, frozen = tower_parameters(model, job)
    parameters[0] = (parameters[0][0] + trained, parameters[0][1])
    adapters = [_adapters(model, kind, shard, job) for kind in kinds]
    ends = [model.end_parameters, *(0 for _ in model.kinds), head_weights(model)]
    return LayerTable(
        forward=running(forward),
        backward=running(backward),
        compute_forward=running([c.forward for c in columns]),
        compute_backward=running([c.backward for c in columns]),
        core_seconds=running([c.core for c in columns]),
        tp_seconds=running([c.tp_forward + c.tp_backward for c in columns]),
        cp_seconds=running([c.cp_forward + c.cp_backward for c in columns]),
        ep_seconds=running([c.ep_forward + c.ep_backward for c in columns]),
        weight_seconds=running([c.weights for c in columns]),
        beside_weights=running([c.tp_beside_weights for c in columns]),
        kept=running(kept),
        offloaded=running(memory.offloaded),
        dense=running([dense for dense, _ in parameters]),
        expert=running([expert for _, expert in parameters]),
        adapters=running([dense for dense, _ in adapters]),
        expert_adapters=running([expert for _, expert in adapters]),
        ends=running([weights / shard.tp for weights in ends]),
        live=live,
        dummies=dummy_gradient_bytes(model, shard, job),
        group=group,
        boundary=np.max(np.stack(memory.inputs[1:-1]), axis=0),
        parameters=np.max(np.stack([dense + expert for dense, expert in parameters[1:-1]]), axis=0),
        before_logits=memory.before_logits,
        halfway=memory.halfway,
        tower_again=again,
        frozen=np.full(len(shard.tp), float(frozen)),
    )


def language_operators(model: Model, shard: Shard, job: Job) -> list[list[Operator]]:
    """Return the operators of the embedding, of each kind of layer and of the head. Frozen weights have no gradients,
    what goes through them has."""
    parts = [[*layer_operators(model, kind, shard, job)] for kind in model.kinds]
    parts = [[*embedding_operators(model, shard, job)], *parts, [*head_operators(model, shard, job)]]
    if job.trains("language"):
        return parts
    return [[operator for operator in part if not operator.weight_gradient] for part in parts]


def running_sums(values: Floats) -> Floats:
    """Return running sums along the last axis, beginning with 0."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def shard_parameters(model: Model, layer: Layer | None, shard: Shard, position: int) -> tuple[Floats, Floats]:
    """Return the dense and expert parameters that one GPU holds of a layer; of the embedding (position 0) or the
    head where `layer` is None. Matrices that tensor-parallel ranks do not split are whole on each; that norms are is
    below 0.1 %."""
    if layer is None:
        if position == 0:
            return model.embedding_parameters / shard.tp, np.zeros(len(shard.tp))
        more_dense, more_expert = mtp_parameters(model)
        whole = model.mtp_layers * _whole(model, model.layers[-1], shard)
        return (head_weights(model) + more_dense) / shard.tp + whole, more_expert / (shard.ep * shard.etp)
    dense = model.dense_layer_parameters(layer) / shard.tp + _whole(model, layer, shard)
    return dense, model.expert_layer_parameters(layer) / (shard.ep * shard.etp)


def _whole(model: Model, layer: Layer, shard: Shard) -> Floats:
    """Return the parameters of matrices outside experts that no rank splits, beyond its share, [M]: projections of
    latent attention to its ranks, and what routes tokens."""
    apart = [matrix for matrix in matrices(model, layer) if not matrix.split and matrix.target != "experts"]
    routers = model.hidden * layer.moe.experts if layer.moe else 0
    whole = sum(matrix.inputs * matrix.outputs * matrix.copies for matrix in apart) + routers
    return np.asarray(whole * (1.0 - 1.0 / shard.tp))


def _adapters(model: Model, layer: Layer | None, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return the weights of adapters that one GPU holds of a layer, and of its experts, none of embedding and head, [M]
    each."""
    if layer is None or job.adapter is None:
        return np.zeros(len(shard.tp)), np.zeros(len(shard.tp))
    return held_adapters(model, layer, job.adapter, shard)


def head_weights(model: Model) -> int:
    """Return the parameters of the last position: a tied output projection is a copy of the embedding there."""
    tied = model.token_table_parameters if model.tied_embeddings else 0
    return model.head_parameters + tied


def mtp_parameters(model: Model) -> tuple[int, int]:
    """Return dense and expert parameters of the multi-token-prediction layers: each is a layer like the last, with a
    projection of two hidden vectors to one and three norms."""
    last = model.layers[-1]
    per_module = model.dense_layer_parameters(last) + 2 * model.hidden * model.hidden + 3 * model.norm_parameters
    return model.mtp_layers * per_module, model.mtp_layers * model.expert_layer_parameters(last)


def _timed(
    parts: list[list[Operator]],
    gpu: Gpu,
    job: Job,
    efficiency: Efficiency,
    software: Overheads,
    calls: Sequence[Floats | float],
) -> list[tuple[Floats, Floats, Floats, Floats, Floats]]:
    """Return forward and backward seconds [M] of each part, those forward of core attention and of what selective
    recomputation repeats, and those backward of the weights of plain products, timed in one batch. Where the host
    launches a part (forward by so many `calls`) more slowly than the device runs it, the host's time counts."""
    operators = table([operator for part in parts for operator in part])
    factor = kernel_factor(software, job, operators) * operators.times
    seconds = coarse(efficiency.operator_seconds(gpu, job, operators)) * factor
    forward = np.where(operators.direction == FORWARD, seconds, 0.0)
    backward = np.where(operators.direction == BACKWARD, seconds, 0.0)
    again = repeated_share(job, operators) * forward
    core = np.where(core_attention(operators), forward, 0.0)
    plain = (operators.kind == GEMM) & (operators.groups == 1)
    weights = np.where(operators.weight_gradient & plain, backward, 0.0)
    bounds = np.cumsum([0, *(len(part) for part in parts)])[:-1]
    host = [host_seconds(software, job, count) for count in calls]
    sums = [np.add.reduceat(column, bounds, axis=0) for column in (forward, backward, core, again, weights)]
    return [
        (launched_seconds(forward, launch), launched_seconds(backward, BACKWARD_LAUNCHES * launch), *rest)
        for forward, backward, *rest, launch in zip(*sums, host, strict=True)
    ]
