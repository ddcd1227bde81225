"""Bytes at the head of a model whose loss makes its logits in tiles (TRL 1.16), where units are gathered one by one.

Whole logits hide what stands beside them; tiles do not.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.backward import norm_backward_bytes
from shardwright.cost.memory.sizes import logit_bytes, tile_bytes, weight_bytes
from shardwright.cost.strategies import ZERO2, ZERO3, Strategies
from shardwright.spec.job import Job
from shardwright.spec.model import Model


def tiled_head_bytes(
    model: Model, job: Job, rows: Strategies, arriving: Array, elements: Array, before_logits: Array
) -> Floats:
    """Return the most that is there at the head beside what layers keep, [N], of these moments:

    * in the forward pass, the output projection as it is copied out of the buffer in which it came, beside that of the
      last layer (`StateBytes.arriving`, [N]), unless it is the embedding, gathered long before;
    * then a tile, beside that buffer, or the last layer's, and a copy of the hidden states (`elements` [N]) as they are
      picked;
    * in the backward pass, tiles and the gradients that they make, beside the last layer as it comes;
    * then the final norm, with the gradient of the projection in its own type.

    `before_logits` [N] are what norm and projection keep, of which the norm's backward pass has its part.
    """
    width, size = weight_bytes(job), rows.micro_batch * job.sample_tokens / rows.cp
    table, zero3 = width * model.token_table_parameters / rows.tp, rows.sharding == ZERO3
    buffer = (arriving if model.tied_embeddings else table) * (rows.sharding >= ZERO2)
    copied = 0.0 if model.tied_embeddings else buffer + arriving
    forward = buffer + tile_bytes(job, size) + widths_of(job).saved * elements + before_logits
    backward = arriving * zero3 + logit_bytes(model, job, rows.micro_batch, rows.cp, rows.tp) + before_logits
    of_norm = np.maximum(norm_backward_bytes(model, job) - widths_of(job).saved, 0.0) * elements
    gradient = table * job.trains("language") * (rows.sharding >= ZERO2)
    normed = arriving * zero3 + gradient + of_norm
    highest = np.maximum(np.maximum(forward, backward), np.maximum(copied, normed))
    return np.asarray(table * zero3 + highest)
