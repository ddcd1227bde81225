"""Bytes at the head of a model whose loss is over log-probabilities of answers (TRL 1.16), where units are gathered one
by one: logits in tiles, or whole ones in few copies, do not hide what stands beside them.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.backward import norm_backward_bytes
from shardwright.cost.memory.sizes import keeps_head_input, logit_bytes, tile_bytes, weight_bytes
from shardwright.cost.strategies import ZERO2, ZERO3, Strategies
from shardwright.spec.job import Job
from shardwright.spec.model import Model


def scored_head_bytes(
    model: Model, job: Job, rows: Strategies, arriving: Array, elements: Array, before_logits: Array
) -> Floats:
    """Return the most that is there at the head beside what layers keep, [N], of these moments:

    * in the forward pass, the output projection as it is copied out of the buffer in which it came, beside that of the
      last layer (`StateBytes.arriving`, [N]) and what the layer gave, unless it is the embedding, gathered long before;
    * then logits, beside that buffer, or the last layer's; with tiles of these a copy of the hidden states
      (`elements` [N]) as they are picked;
    * in the backward pass, tiles and the gradients that they make, beside the last layer as it comes; or whole logits
      with what their loss has, and then their gradient with that of the projection, beside that layer;
    * then the final norm, with the gradient of the projection in its own type.

    `before_logits` [N] are what norm and projection keep, of which the norm's backward pass has its part.
    """
    width, size = weight_bytes(job), rows.micro_batch * job.sample_tokens / rows.cp
    table, zero3 = width * model.token_table_parameters / rows.tp, rows.sharding == ZERO3
    buffer = (arriving if model.tied_embeddings else table) * (rows.sharding >= ZERO2)
    gradient = table * job.trains("language") * (rows.sharding >= ZERO2)
    hidden, loss = widths_of(job).saved * elements, logit_bytes(model, job, rows.micro_batch, rows.cp, rows.tp)
    copied = 0.0 if model.tied_embeddings else buffer + arriving + hidden
    if job.loss == "tiled":
        there, backward = tile_bytes(job, size) + hidden, arriving * zero3 + loss
    else:
        logits = widths_of(job).logit * size * model.vocab / rows.tp
        there = logits + hidden * (not keeps_head_input(job))
        backward = np.maximum(loss, arriving * zero3 + logits + gradient + hidden)
    of_norm = np.maximum(norm_backward_bytes(model, job) - widths_of(job).saved, 0.0) * elements
    normed = arriving * zero3 + gradient + of_norm
    moments = (copied, buffer + there + before_logits, backward + before_logits, normed)
    return np.asarray(table * zero3 + reduce(np.maximum, moments))
