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
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.job import Job

# Under FSDP2 a backward pass ends with its weights freed, whether or not a forward pass does (`post_backward` of
# torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), so that ZeRO-2 gathers them in every micro-batch.
FREED_BY_PASSES = frozenset({"fsdp", "eager", "torchtitan", "jax"})
# The last unit stays between the passes: final norm and head, with a tied embedding (accelerate/utils/fsdp_utils.py
# 1.15, `fsdp2_prepare_model`).
LAST_UNIT_STAYS = frozenset({"fsdp", "eager"})
# One unit has both ends of a tied embedding (torchtitan 0.3, distributed/fsdp.py: `apply_fsdp`).
TIED_IN_ONE_UNIT = LAST_UNIT_STAYS | {"torchtitan"}
# In a pipeline of PyTorch's, weights stay and gradients are whole until the last micro-batch
# (torch/distributed/pipelining/stage.py: `backward_maybe_with_nosync`).
OF_PYTORCH_PIPELINES = "torchtitan"


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
    sharded = np.where(rows.sharding == ZERO1, 1, summed_at_last(job, rows))
    gathers = (rows.sharding == ZERO1) | ((rows.sharding == ZERO2) & ~_freed_by_passes(job, rows))
    return np.where(rows.sharding == UNSHARDED, 2, sharded), gathers.astype(np.int64)


def moved_in_passes(
    job: Job, rows: Strategies, parameters: Floats, embedding: Floats, head: Floats, tied: Floats
) -> Moved:
    """Return what the passes of a micro-batch move of `parameters` [N, V], of which `embedding` and `head` are those of
    the two ends; `tied` are those that both ends have where one GPU has both, which are in `parameters` twice. What is
    gathered of quantised layers counts as so many parameters of the width of the ends.

    The runtime finds the head there still when its backward pass begins, and the embedding when the next micro-batch
    does.
    """
    zero2, zero3 = (rows.sharding >= ZERO2)[:, None], (rows.sharding == ZERO3)[:, None]
    anew = zero3 | (zero2 & _freed_by_passes(job, rows)[:, None])
    gathered = parameters - (1.0 - frozen_part(job)) * (parameters - embedding - head)
    forward = backward = gathered - tied * (job.framework in TIED_IN_ONE_UNIT)
    if job.framework in LAST_UNIT_STAYS:
        backward = backward - head
    elif job.framework == OWN:
        forward = gathered - embedding * (1.0 - 1.0 / micro_batches(job, rows)[:, None])
        backward = gathered - head
    in_each = zero2 & ~summed_at_last(job, rows)[:, None]
    return Moved(forward=forward * anew, backward=backward * zero3, summed=(parameters - tied) * in_each)


def frozen_part(job: Job) -> float:
    """Return the bytes of a weight of a layer as a part of those of the ends, which are never quantised."""
    widths = widths_of(job)
    return widths.frozen_gather / widths.weight_gather


def _freed_by_passes(job: Job, rows: Strategies) -> Bools:
    return np.asarray((job.framework in FREED_BY_PASSES) & ~_in_pipeline(job, rows))


def _in_pipeline(job: Job, rows: Strategies) -> Bools:
    return np.asarray((job.framework == OF_PYTORCH_PIPELINES) & (rows.pp > 1))
