"""What Muon adds to the update: matrices travel to their owners, are orthogonalised there, and come back.

The ranks that hold a stage's matrices own about equal work, but no rank owns less than a matrix. As `train` runs it,
nothing else goes on beside it. The work of a layer's weight is the average over the model.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import SATURATED, UNKNOWN_ARCHITECTURE, peak_flops
from shardwright.cost.compute.orthogonalisation import work_of
from shardwright.cost.context import Context
from shardwright.cost.iteration.footprint import Held
from shardwright.cost.iteration.step import data_parallel
from shardwright.cost.network.collectives import Group, exchange_seconds, group, product
from shardwright.cost.strategies import UNSHARDED, Strategies


def orthogonalisation_seconds(context: Context, rows: Strategies, held: Held) -> Floats:
    """Return the time of Muon's exchanges and products on each rank, [N, P]; 0 under other optimizers."""
    if context.job.optimizer != "muon":
        return np.zeros_like(held.dense)
    links, groups, work = context.links, data_parallel(context, rows), work_of(context.model)
    width = 4.0 if context.job.precision == "fp32" else 2.0
    flops, seconds = np.zeros_like(held.dense), np.zeros_like(held.dense)
    for weights, cut, copies, each in (
        (held.dense - held.ends, rows.tp, groups.dense, work.dense),
        (held.expert, rows.etp, groups.expert, work.expert),
    ):
        if each:
            ranks = _column(product(group(links, cut, np.ones_like(cut)), copies))
            own = weights / copies.size[:, None]
            back = np.where((rows.sharding == UNSHARDED)[:, None], weights, own)
            seconds += exchange_seconds(links, ranks, width * own) + exchange_seconds(links, ranks, width * back)
            flops += own * each
    gpu, job = context.pool.gpu, context.job
    rate = peak_flops(gpu, "bf16" if job.precision == "fp8" else job.precision)
    rate *= SATURATED.get(gpu.architecture, UNKNOWN_ARCHITECTURE).gemm
    return np.asarray(seconds + np.where(flops > 0.0, np.maximum(flops, work.largest), 0.0) / rate)


def _column(ranks: Group) -> Group:
    stride = None if ranks.stride is None else ranks.stride[:, None]
    return Group(size=ranks.size[:, None], local=ranks.local[:, None], stride=stride)
