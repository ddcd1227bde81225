"""Seconds of one layer: its operators, and the communication that they cannot hide."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import (
    MLP,
    MOE,
    SHARED,
    Shard,
    expert_copies,
    norm_tokens,
    per_operator,
    repeats,
    tokens,
)
from shardwright.cost.frameworks.overheads import Overheads
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.network.collectives import (
    Fabric,
    Group,
    dispatch_seconds,
    exchange_seconds,
    exposed_seconds,
    gather_seconds,
    group,
    reduce_seconds,
)
from shardwright.records import record
from shardwright.spec.catalog.frameworks import framework_has, framework_rows
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.model import Model
from shardwright.spec.options import Dispatcher

TP_OVERLAP_SHARE = 0.8  # of a GEMM that chunks of its own communication can run beside; chosen, 0.5 to 1


class OperatorSeconds(NamedTuple):
    """Seconds of the operators of a layer, [M]: forward and backward, those forward of core attention and of what
    selective recomputation repeats, and those backward for the gradients of weights."""

    forward: Floats
    backward: Floats
    core: Floats
    again: Floats
    weights: Floats


@record
class Seconds:
    """Exposed seconds of one layer for one micro-batch, [M], by cause; `core` is what selective recomputation
    repeats of those forward, `weights` are those backward in which the gradients of weights are computed, and
    `tp_beside_weights` is the tensor-parallel communication that runs beside them."""

    forward: Floats
    backward: Floats
    core: Floats
    tp_forward: Floats
    tp_backward: Floats
    cp_forward: Floats
    cp_backward: Floats
    ep_forward: Floats
    ep_backward: Floats
    weights: Floats
    tp_beside_weights: Floats

    def scaled(self, factor: float) -> Seconds:
        return Seconds(**{field.name: factor * getattr(self, field.name) for field in fields(Seconds)})

    def after(self, forward: Floats, backward: Floats) -> Seconds:
        """Return the times with those of what runs before, whose backward pass comes last."""
        return replace(self, forward=forward + self.forward, backward=self.backward + backward)


def layer_seconds(
    model: Model,
    layer: Layer | None,
    shard: Shard,
    job: Job,
    links: Fabric,
    software: Overheads,
    dispatcher: Dispatcher,
    operators: OperatorSeconds,
) -> Seconds:
    """Return the times of a layer (of embedding and head where it is None) with the communication that it cannot hide,
    from those of its operators."""
    forward, backward = operators.forward, operators.backward
    if layer is None:
        tp_forward, tp_backward = _tp_edge(model, shard, job, links)
        none = dict.fromkeys((field.name for field in fields(Seconds)), np.zeros(len(shard.tp)))
        sides = {"forward": forward, "backward": backward, "tp_forward": tp_forward, "tp_backward": tp_backward}
        return Seconds(**none | sides)
    blocks = column_row_pairs(layer)
    tp_forward, tp_backward, beside_weights = _tp_layer(model, shard, job, links, blocks, forward, backward)
    inside_forward, inside_backward = _tp_inside(model, layer, shard, job, links)
    cp_forward, cp_backward = _cp_layer(model, layer, shard, job, links, operators.core)
    ep_forward, ep_backward = (
        software.exchange * seconds for seconds in _ep_layer(model, layer, shard, job, links, dispatcher)
    )
    if job.options.exchange_overlap == "batches":  # forward beside another micro-batch's backward, and the reverse
        ep_forward, ep_backward = exposed_seconds(ep_forward, backward), exposed_seconds(ep_backward, forward)
    return Seconds(
        forward=forward,
        backward=backward,
        core=operators.again + _repeated_communication(layer, job, tp_forward / max(blocks, 1), ep_forward),
        tp_forward=tp_forward + inside_forward,
        tp_backward=tp_backward + inside_backward,
        cp_forward=cp_forward,
        cp_backward=cp_backward,
        ep_forward=ep_forward,
        ep_backward=ep_backward,
        weights=operators.weights,
        tp_beside_weights=beside_weights,
    )


def column_row_pairs(layer: Layer) -> int:
    """Return the pairs of products that tensor parallelism cuts by columns and then by rows: one for what mixes tokens
    each way, one for a feed-forward block, that of shared experts too."""
    dense = layer.mlp is not None or (layer.moe is not None and layer.moe.shared_width > 0)
    return (layer.attention is not None) + (layer.mixer is not None) + dense


def _repeated_communication(layer: Layer, job: Job, pair: Floats, exchange: Floats) -> Floats | float:
    """Return the communication of the modules that selective recomputation repeats: `pair` is that of a column-row pair
    forward, `exchange` that of tokens with experts."""
    modules = 0 if per_operator(job) else repeats(job)
    dense = layer.mlp is not None and modules & MLP
    shared = layer.moe is not None and layer.moe.shared_width and modules & (SHARED | MOE)
    experts = layer.moe is not None and modules & MOE
    return (pair if dense or shared else 0.0) + (exchange if experts else 0.0)


def _tp_layer(
    model: Model, shard: Shard, job: Job, links: Fabric, blocks: int, forward: Floats, backward: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return exposed tensor-parallel time of a layer with `blocks` column-row pairs, forward and backward, and what
    backward is hidden beside the gradients of weights.

    Forward, each pair all-gathers its input and reduce-scatters its output (one all-reduce without sequence
    parallelism). Backward does the same in reverse and, with sequence parallelism, gathers the input once more;
    Megatron-LM runs the latter and the input gradient's reduction beside the weight gradient's GEMM.
    """
    gather, reduce = _tp_seconds(model.hidden, shard, job, links)
    pair = blocks * (gather + reduce)
    hidden_backward = pair
    open_backward = np.where(shard.sequence_parallel, blocks * gather, 0.0)
    room_forward, room_backward = TP_OVERLAP_SHARE * forward, TP_OVERLAP_SHARE * backward
    overlapped = exposed_seconds(pair, room_forward)
    tp_forward = np.where(shard.overlap_tp, overlapped, pair)
    beside = exposed_seconds(hidden_backward, 0.5 * room_backward)
    all_beside = exposed_seconds(hidden_backward + open_backward, room_backward)
    tp_backward = np.where(shard.overlap_tp, np.minimum(all_beside, beside + open_backward), beside + open_backward)
    return tp_forward, tp_backward, hidden_backward + open_backward - tp_backward


def _tp_inside(model: Model, layer: Layer, shard: Shard, job: Job, links: Fabric) -> tuple[Floats, Floats]:
    """Return the seconds forward and backward of what ranks of tensor parallelism send between the products of a mixer
    or beside a shared block: partial sums that a further product takes; and what is low and has a part of the
    positions, all of which enter the next product, as in a column-row pair. So does what attention reads beside the
    hidden state."""
    forward = backward = np.zeros(len(shard.tp))
    if layer.mixer is None:
        return forward, backward
    work, beside = layer.mixer.work(model.hidden), layer.shared_products(model.hidden)[1:]
    if work.summed:
        summed = np.sum(_tp_seconds(work.summed, shard, job, links), axis=0)
        forward, backward = forward + summed, backward + summed
    low = work.low + sum(product.outputs for product in beside if product.cut == "whole")
    low += layer.attention.inputs(model.hidden) - model.hidden if layer.attention else 0
    if low:
        gather, reduce = _tp_seconds(low, shard, job, links)
        forward, backward = forward + np.where(shard.sequence_parallel, gather, 0.0), backward + gather + reduce
    return forward, backward


def _tp_edge(model: Model, shard: Shard, job: Job, links: Fabric) -> tuple[Floats, Floats]:
    """Return the tensor-parallel time at the embedding or the head: one collective each way."""
    _, reduce = _tp_seconds(model.hidden, shard, job, links)
    whole = np.where(shard.sequence_parallel, 1.0, 2.0) * reduce
    return whole, whole


def _tp_seconds(elements: int, shard: Shard, job: Job, links: Fabric) -> tuple[Floats, Floats]:
    """Return the seconds of an all-gather and a reduce-scatter of so many `elements` of a token, as of a hidden state,
    over tensor-parallel ranks, [M]. An all-reduce has both in the width of partial sums."""
    ranks, widths = group(links, shard.tp, np.ones_like(shard.tp)), widths_of(job)
    size = tokens(shard, job) * elements
    width = np.where(shard.sequence_parallel, widths.tensor_gather, widths.tensor_reduce)
    return (
        gather_seconds(links, ranks, width * size),
        gather_seconds(links, ranks, widths.tensor_reduce * size),
    )


def _cp_layer(model: Model, layer: Layer, shard: Shard, job: Job, links: Fabric, core: Floats) -> tuple[Floats, Floats]:
    """Return exposed context-parallel time: keys and values travel the ring beside core attention (arXiv
    2310.01889), or before it; backward their gradients travel too. What a mixer projects, and what it gives, is
    exchanged for parts of the heads of the whole sequence, and nothing runs beside that."""
    attention, ranks = layer.attention, group(links, shard.cp, shard.tp)
    exchanged = np.zeros(len(shard.tp))
    if layer.mixer is not None:
        sent = layer.mixer.work(model.hidden).sent / shard.tp
        exchanged = exchange_seconds(links, ranks, widths_of(job).context * tokens(shard, job) * sent)
    if attention is None:
        return exchanged, exchanged
    forward, backward = _ring(attention, shard, job, links, ranks, core)
    return forward + exchanged, backward + exchanged


def _ring(
    attention: Attention, shard: Shard, job: Job, links: Fabric, ranks: Group, core: Floats
) -> tuple[Floats, Floats]:
    heads = np.minimum(shard.tp, attention.kv_heads)  # ranks beyond have the same ones
    width = (attention.key_width + attention.value_width) / heads
    size = widths_of(job).context * shard.micro_batch * job.sample_tokens * width
    ring = gather_seconds(links, ranks, size)
    if not framework_has(job.framework, "overlap_context"):
        return ring, 2.0 * ring
    forward = exposed_seconds(ring, core)
    return forward, exposed_seconds(2.0 * ring, 2.0 * core)


def _ep_layer(
    model: Model, layer: Layer, shard: Shard, job: Job, links: Fabric, dispatcher: Dispatcher
) -> tuple[Floats, Floats]:
    """Return the time of dispatching tokens to experts and combining them, forward and backward: an all-to-all each,
    and what ranks with parts of the same experts gather and sum."""
    if layer.moe is None:
        return np.zeros(len(shard.tp)), np.zeros(len(shard.tp))
    early = framework_rows()[job.framework]["cut_experts"] == "tokens"
    message = tokens(shard, job) / shard.tp * (layer.moe.latent or model.hidden)
    routed = message * shard.etp if early else message
    widths, across = widths_of(job), group(links, shard.ep, shard.etp)
    copies = expert_copies(layer.moe, norm_tokens(shard, job), shard.ep, job)
    both = [
        dispatch_seconds(links, across, width * routed, copies, dispatcher)
        for width in (widths.dispatch, widths.combine)
    ]
    forward, backward = (_early if early else _late)(layer.moe, shard, job, links, message)
    return sum(both, forward), sum(both, backward)


def _late(moe: Moe, shard: Shard, job: Job, links: Fabric, message: Floats) -> tuple[Floats, Floats]:
    """Return the time of gathering rows and of summing their results over the ranks that have parts of an expert, where
    each has `message` elements, forward and backward: after rows were sent, as Megatron-LM does."""
    within = group(links, shard.etp, np.ones_like(shard.etp))
    copies = expert_copies(moe, norm_tokens(shard, job), shard.ep, job)
    seconds = reduce_seconds(links, within, widths_of(job).combine * message * copies * shard.etp)
    return seconds, seconds


def _early(moe: Moe, shard: Shard, job: Job, links: Fabric, message: Floats) -> tuple[Floats, Floats]:
    """Return the same where tokens are gathered before they are routed, as `train` does, and results summed once they
    are back, together with those of shared experts: of the latter, `_tp_layer` has the sums."""
    within, widths, whole = group(links, shard.etp, np.ones_like(shard.etp)), widths_of(job), message * shard.etp
    gather, summed = (gather_seconds(links, within, width * whole) for width in (widths.dispatch, widths.combine))
    if not moe.shared_width:
        both = np.where(shard.sequence_parallel, gather + summed, reduce_seconds(links, within, widths.combine * whole))
        return both, both
    priced = gather_seconds(links, within, widths.tensor_gather * whole)  # of the gradients of the results
    apart = shard.sequence_parallel
    return np.where(apart, gather, 0.0), np.where(apart, gather + summed - priced, 0.0)
