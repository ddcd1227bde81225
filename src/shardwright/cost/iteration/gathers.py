"""How often data parallelism gathers weights and sums gradients: in the passes of each micro-batch, and once a step.

`step` makes seconds of it, and a rehearsal holds the messages of trainers against it. Where lines of PyTorch are named,
they are those of 2.13.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO2, ZERO3, Layouts, Strategies
from shardwright.records import record
from shardwright.spec.catalog.frameworks import framework_has, framework_rows
from shardwright.spec.job import Job


@record
class Moved:
    """Parameters that a forward pass gathers, that a backward pass gathers, and whose gradients it sums: of a
    micro-batch, as one GPU holds them before they are sharded. Arrays of one shape."""

    forward: Floats
    backward: Floats
    summed: Floats


def micro_batches(job: Job, rows: Layouts) -> Ints:
    """Return the micro-batches of one replica and step, [N]."""
    return job.global_batch // (rows.dp * rows.micro_batch)


def summed_at_last(job: Job, rows: Strategies) -> Bools:
    """Return which rows keep whole gradients of what they shard until the last of several micro-batches, [N]."""
    kept = (job.options.gradient_sync == "last") | _in_pipeline(job, rows)
    return np.asarray(kept & (rows.sharding >= ZERO2) & (micro_batches(job, rows) > 1))


def once_a_step(job: Job, rows: Strategies) -> tuple[Ints, Ints]:
    """Return how often a step sums all gradients, and gathers all weights, beside what its passes do, [N] each. Summed
    and spread again counts twice."""
    alike = 2 if framework_has(job.framework, "summed_last") else 1
    sharded = np.where(rows.sharding == ZERO1, alike, summed_at_last(job, rows))
    gathers = (rows.sharding == ZERO1) | ((rows.sharding == ZERO2) & ~_freed_by_passes(job, rows))
    return np.where(rows.sharding == UNSHARDED, 2, sharded), gathers.astype(np.int64)


def summed_beside(job: Job, rows: Strategies) -> Bools:
    """Return where gradients are summed beside the last backward pass, [N]."""
    after = framework_has(job.framework, "summed_last") & (rows.sharding == ZERO1)
    return np.asarray(rows.overlap_grad & ~after)


def moved_in_passes(
    job: Job,
    rows: Strategies,
    parameters: Floats,
    embedding: Floats,
    head: Floats,
    tied: Floats,
    *,
    lasting: float = 0.0,
) -> Moved:
    """Return what the passes of a micro-batch move of `parameters` [N, V], of which `embedding` and `head` are those of
    the two ends; `tied` are those that both ends have where one GPU has both, which are in `parameters` twice. What is
    gathered of quantised layers counts as so many parameters of the width of the ends.

    Where the last unit stays gathered, the backward pass finds final norm and head there still; where both ends do, the
    next micro-batch finds the embedding, too. Of its unit the part `lasting` is there from the first layer of a pass to
    the last one of the way back: all of it where blocks that layers share are of it, a tied output projection too.
    """
    zero2, zero3 = (rows.sharding >= ZERO2)[:, None], (rows.sharding == ZERO3)[:, None]
    anew = zero3 | (zero2 & _freed_by_passes(job, rows)[:, None])
    gathered = parameters - (1.0 - frozen_part(job)) * (parameters - embedding - head)
    forward = backward = gathered - tied * (framework_has(job.framework, "one_unit_tied"))
    stays = framework_rows()[job.framework]["stays"]
    if stays == "last":
        backward = backward - head
    elif stays == "ends":
        forward = gathered - embedding * (1.0 - 1.0 / micro_batches(job, rows)[:, None]) - lasting * tied
        backward = gathered - head - lasting * embedding
    in_each = zero2 & ~summed_at_last(job, rows)[:, None]
    return Moved(forward=forward * anew, backward=backward * zero3, summed=(parameters - tied) * in_each)


def frozen_part(job: Job) -> float:
    """Return the bytes of a weight of a layer as a part of those of the ends, which are never quantised."""
    widths = widths_of(job)
    return widths.frozen_gather / widths.weight_gather


def _freed_by_passes(job: Job, rows: Strategies) -> Bools:
    return np.asarray(framework_has(job.framework, "passes_free") & ~_in_pipeline(job, rows))


def _in_pipeline(job: Job, rows: Strategies) -> Bools:
    return np.asarray(framework_has(job.framework, "whole_in_pipelines") & (rows.pp > 1))
