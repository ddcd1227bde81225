"""What Muon adds to the update: matrices travel to their owners, are orthogonalised there, and come back.

The ranks that hold a stage's matrices own about equal work, but no rank owns less than a matrix. As `train` runs it,
nothing else goes on beside it. The work of a layer's weight is the average over the model.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import SATURATED, UNKNOWN_ARCHITECTURE, peak_flops
from shardwright.cost.compute.orthogonalisation import work_of
from shardwright.cost.context import Context
from shardwright.cost.iteration.step import data_parallel
from shardwright.cost.memory.sizes import HeldParameters
from shardwright.cost.network.collectives import Fabric, Group, exchange_seconds, group, product
from shardwright.cost.strategies import UNSHARDED, Strategies
from shardwright.spec.job import Job


def orthogonalisation_seconds(context: Context, rows: Strategies, held: HeldParameters) -> Floats:
    """Return the time of Muon's exchanges and products on each rank, [N, P]; 0 under other optimizers."""
    if context.job.optimizer != "muon":
        return np.zeros_like(held.dense)
    links, groups, work = context.links, data_parallel(context, rows), work_of(context.model)
    width = _width(context.job)
    flops, seconds = np.zeros_like(held.dense), np.zeros_like(held.dense)
    for weights, cut, copies, times in (
        (held.dense - held.ends, rows.tp, groups.dense, work.dense),
        (held.expert, rows.etp, groups.expert, work.expert),
    ):
        if times:
            ranks = product(group(links, cut, np.ones_like(cut)), copies).column
            of_rank = weights / copies.size[:, None]
            back = np.where((rows.sharding == UNSHARDED)[:, None], weights, of_rank)
            seconds += exchange_seconds(links, ranks, width * of_rank) + exchange_seconds(links, ranks, width * back)
            flops += of_rank * times
    return np.asarray(seconds + _product_seconds(context, flops, work.largest))


def layered_orthogonalisation_seconds(
    context: Context,
    links: Iterable[tuple[Fabric, Group]],
    gpus: int,
    dense: float,
    expert: float,
    largest_state: Floats,
) -> Floats:
    """Return the same, [N], where all GPUs, over `links`, have parts of the layers' matrices, `dense` and `expert`
    weights in all, and the one with the largest part `largest_state` [N] of them."""
    if context.job.optimizer != "muon":
        return np.zeros_like(largest_state)
    sent, work = _width(context.job) * (dense + expert) * largest_state, work_of(context.model)
    one_way = np.max([exchange_seconds(fabric, everyone, sent) for fabric, everyone in links], axis=0)
    flops = np.array([(dense * work.dense + expert * work.expert) / gpus])
    return np.asarray(2.0 * one_way + _product_seconds(context, flops, work.largest))


def running_product_seconds(context: Context, dense: Floats, expert: Floats, ends: Floats) -> Floats:
    """Return what Muon's products take one rank that owns the layers before each position, [N, L + 3], from their
    running sums of weights: none for the `ends` of `dense`."""
    if context.job.optimizer != "muon":
        return np.zeros_like(dense)
    work = work_of(context.model)
    return np.asarray(_product_seconds(context, work.dense * (dense - ends) + work.expert * expert, 0.0))


def _width(job: Job) -> float:
    """Bytes of an element on its way."""
    return 4.0 if job.precision == "fp32" else 2.0


def _product_seconds(context: Context, flops: Floats, largest: float) -> Floats:
    """Return the time of an owner's products, of whole matrices, of which the largest has `largest` FLOPs."""
    gpu, job = context.pool.gpu, context.job
    rate = peak_flops(gpu, "bf16" if job.precision == "fp8" else job.precision)
    rate *= SATURATED.get(gpu.architecture, UNKNOWN_ARCHITECTURE).gemm
    return np.where(flops > 0.0, np.maximum(flops, largest), 0.0) / rate
