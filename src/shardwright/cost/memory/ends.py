"""What is at the ends of a model beside its layers: logits and their loss, and the units of embedding and head."""

from __future__ import annotations

from functools import reduce

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.backward import norm_backward_bytes
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.sizes import SINGLE, gradient_bytes, weight_bytes
from shardwright.cost.strategies import ZERO2, ZERO3, Strategies
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model

# Gradients of logits by their kernel and by the loss of one answer, each as large as all logits, and their sum.
WHOLE_ANSWERS = 3.0  # documented: trl/experimental/{orpo,cpo}, trl/kernels/logprob_entropy.py 1.16
# Documented. Bytes of a logit in other trainers' code, in fp32 (`spec.preference`): its log-probability, which is kept,
# the gradient of that and its own; while a reference runs, what the model's pass kept, and a logit of the reference
# with its log-probability. There LLaMA-Factory has the logits of pairs still, for its metrics, and torchtune beside
# adapters a copy by its temperature; without adapters it takes the answers of a pair one after the other.
OTHER_ANSWERS, OTHER_PASS, HELD_BESIDE = 12.0, 8.0, 4.0
TILE = 4096, 32768  # documented: tokens and words of the vocabulary (trl/kernels/chunked_logprob.py 1.16)


def logit_bytes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints) -> Floats:
    """Return the bytes of the logits and the loss on the last stage for one micro-batch, [N]. A chunked loss has so few
    tokens at a time that their logits, in whose place their gradient comes, are about as large as the hidden states; it
    has the gradient of these, and of the projection if that is trained, from its first chunk on (Liger Kernel,
    ops/fused_linear_cross_entropy.py: `weight_needs_grad`). A tiled one has them in the backward pass, in fp32 and then
    in their own type, beside a tile (trl/kernels/chunked_logprob.py 1.16). Log-probabilities of whole answers have
    `WHOLE_ANSWERS` tensors like the logits in their own type."""
    width = memory_facts(job.framework).logit + widths_of(job).logit - 2.0
    size = micro_batch * job.sample_tokens / cp
    if job.fused_loss:
        width = 0.0
    chunks = memory_facts(job.framework).chunks
    if job.loss == "tiled":
        return np.asarray(tiled_gradient_bytes(model, job, size, tp) + tile_bytes(job, size))
    if whole_answers(job):
        return np.asarray(answer_width(job) * size * model.head_outputs / tp)
    if job.loss == "chunked" and chunks:
        return (width * size / chunks + 2.0 * model.hidden) * model.head_outputs / tp
    if job.loss == "chunked":
        projection = 2.0 * model.hidden * model.head_outputs / tp * job.trains("language")
        return 2.0 * widths_of(job).logit * size * model.hidden + projection
    # beside the logits of tokens further on what their losses keep
    return (width + model.mtp_layers * max(width - widths_of(job).logit, 0.0)) * size * model.head_outputs / tp


def whole_answers(job: Job) -> bool:
    """Whether a loss is over log-probabilities of whole answers by whole logits, as of ORPO and CPO."""
    return job.preference is not None and job.loss is None and not job.fused_loss


def answer_width(job: Job) -> float:
    """Return the most bytes a logit that such a loss has at a time."""
    preference = job.preference
    assert preference is not None, "only asked where there is a loss over preferences"
    if preference.by == "trl":
        return WHOLE_ANSWERS * widths_of(job).logit
    return max(OTHER_ANSWERS, sum(beside_reference(job)) * preference.reference)


def beside_reference(job: Job) -> tuple[float, float]:
    """Return the bytes a logit that the model's own pass left when a reference runs, and that the reference has, none
    where there are tiles."""
    preference = job.preference
    if preference is None or preference.by == "trl":
        return 0.0, 0.0
    more = preference.passes.trained > 1 if preference.by == "llamafactory" else job.adapters
    return HELD_BESIDE * (1.0 + more), OTHER_PASS


def keeps_head_input(job: Job) -> bool:
    """Whether what the output projection takes is kept. Where operators run one by one, a product with frozen weights
    keeps nothing of it, unless the loss is one function with it; it is there while the logits are made."""
    one_by_one = bool(memory_facts(job.framework).inner_copies)
    scores = job.preference is not None and job.preference.passes.scores  # by weights that adapters leave trained
    return not one_by_one or scores or job.trains("language") or job.loss is not None or job.fused_loss


def tile_bytes(job: Job, size: Floats) -> Floats:
    """Return the bytes of the logits of a tiled loss that are there at a time, where it is of `size` tokens [N]."""
    return np.asarray(widths_of(job).logit * np.minimum(size, TILE[0]) * TILE[1])


def tiled_gradient_bytes(model: Model, job: Job, size: Floats, tp: Ints) -> Floats:
    """Return the bytes of the gradients that the backward pass of a tiled loss makes of `size` tokens [N], in fp32 and
    in their own type."""
    width = SINGLE + widths_of(job).logit * (job.precision != "fp32")
    return np.asarray(width * model.hidden * (size + model.head_outputs / tp * job.trains("language")))


def head_bytes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints) -> Floats:
    """Return the bytes of the logits and the loss, [N], with what is made beside them."""
    return np.asarray(np.maximum(*head_passes(model, job, micro_batch, cp, tp)))


def head_passes(model: Model, job: Job, micro_batch: Ints, cp: Ints, tp: Ints) -> tuple[Floats, Floats]:
    """Return the bytes of the logits and the loss with what is made beside them in the forward pass and in the backward
    pass, [N] each: some logits in fp32 (where these are capped four such tensors) and the hidden states of all ranks; a
    part of the gradient of the output projection and three tensors like these (`runtime.model.loss`)."""
    logits, chunk = logit_bytes(model, job, micro_batch, cp, tp), memory_facts(job.framework).chunk_elements
    if not chunk:
        return logits, logits
    size = micro_batch * job.sample_tokens / cp
    hidden = widths_of(job).saved * size * model.hidden
    tensors = (1.0 if model.computed.logit_cap is None else 4.0) - (job.precision == "fp32")
    forward = 4.0 * tensors * np.minimum(chunk, size * model.head_outputs / tp) + hidden * (tp > 1)
    return logits + forward, logits + weight_bytes(job) * end_elements(model, job, tp) + 3.0 * hidden


def end_elements(model: Model, job: Job, tp: Ints) -> Floats:
    """Return the elements of the gradient of the embedding or the output projection that are made at a time, [N]."""
    most = memory_facts(job.framework).chunk_elements / 2.0 * job.trains("language")
    return np.minimum(most, model.hidden * model.head_outputs / tp)


@record
class WholeUnits:
    """What a rank needs at a time, [N] in bytes: the `head`, with its logits, or while its gradient is summed by itself
    (`summing`), and the `first` unit, the embedding.
    Beyond the two layers of `StateBytes.gathered`, while a layer runs backward: the `last` one, after the head; those
    `before` it, each after a layer, more than the last."""

    head: Floats
    summing: Floats
    first: Floats
    last: Floats
    before: Floats


def whole_units(
    model: Model,
    job: Job,
    rows: Strategies,
    layer: Array,
    ranks: Array,
    count: Ints,
    at_last: Array | bool = False,
) -> WholeUnits:
    """Return what ranks of rows [N] need for whole units; layers have `layer` parameters [N], `ranks` [N] share a
    parameter, `count` [N] are the micro-batches, and `at_last` says where the last one alone sums gradients.

    Where units are whole one by one, under ZeRO-2 and 3, weights of a unit are there with those of the next one, its
    gradients until the next unit's are complete, with the rank's own part of their sum, those of the embedding until
    the next micro-batch runs backward; gradients of a tied embedding, and of blocks that layers share beside it, are
    there from the head on (`runtime.step.{unshard,sync}`). FSDP2 sums the gradient of the head first, beside the last
    layer's weights, and that of the embedding last, from a copy of it to the rank's part, which goes to the host in the
    masters' type; where it has whole gradients, the rank's part of the head's is beside them then, and of the last
    layer's while those of that are summed. Under Megatron-Core the embedding's gradient comes whole in 16 bits before
    it is added to its buffer.
    """
    sizes = (rows.micro_batch, rows.cp, rows.tp)
    facts = memory_facts(job.framework)
    if not facts.by_unit:
        head = head_bytes(model, job, *sizes)
        whole = head + gathered_head_bytes(model, job, rows.sharding, *sizes)
        if job.loss == "chunked" and facts.chunks:
            whole = whole + _summed_head_bytes(model, job, rows, ranks, head)
        summed = (rows.sharding >= ZERO2) & facts.freed & (facts.shard_weight == 0.0) & job.trains("language")
        table, away = model.token_table_parameters / rows.tp, facts.weights_follow * (rows.offload > 0.0)
        copies = 3.0 if model.tied_embeddings and facts.freed else 2.0 + 1.0 / ranks
        gradient_width = summed * (weight_bytes(job) * copies + gradient_bytes(job) * away / ranks)
        # whole gradients get one more of the embedding, which ZeRO-3 has gathered
        whole_first = (
            summed * table * weight_bytes(job) * (1.0 + (rows.sharding == ZERO3)) * (not model.tied_embeddings)
        )
        beside = weight_bytes(job) * layer * (rows.sharding == ZERO3)
        message = (
            rows.micro_batch * job.sample_tokens / rows.cp * model.hidden / np.where(rows.sequence_parallel, rows.tp, 1)
        )
        dense = widths_of(job).saved * (table + message) * facts.megatron_core * job.trains("language")
        alone = model.head_table_parameters / rows.tp * (not model.tied_embeddings)
        summing = (gradient_width * alone + beside) * summed * (not model.tied_embeddings)
        here = 1.0 - facts.gradients_follow * rows.offload
        shard = gradient_bytes(job) * summed * here / ranks
        last = np.where(at_last, shard * alone, weight_bytes(job) * summed * (alone - layer))
        before = np.where(at_last, shard * layer - weight_bytes(job) * summed * alone, -last)
        return WholeUnits(
            head=whole,
            summing=np.where(at_last, 0.0, summing),
            first=np.where(at_last, whole_first, gradient_width * table) + dense,
            last=last,
            before=np.maximum(before, 0.0),
        )
    weight = weight_bytes(job) * (rows.sharding == ZERO3)
    gradient = gradient_bytes(job) * job.trains("language") * (rows.sharding >= ZERO2)
    end, arriving = (model.token_table_parameters + model.shared_parameters) / rows.tp, 1.0 + 1.0 / ranks
    forward, backward = head_passes(model, job, *sizes)
    forward = forward + weight * end + gradient * end * arriving * (count > 1)
    backward = backward + weight * (end + layer) + gradient * end
    first = weight * end + gradient * (end + layer * arriving) + weight_bytes(job) * end_elements(model, job, rows.tp)
    tied = model.tied_embeddings
    return WholeUnits(
        head=np.asarray(np.maximum(forward, backward)),
        summing=np.zeros(len(rows)),
        first=np.asarray(first),
        last=np.asarray(gradient * (end + layer * (arriving - 1.0) if tied else end * arriving - layer)),
        before=np.asarray(gradient * (0.0 if tied else np.maximum(layer - end, 0.0)) * arriving),
    )


def tied_unit_bytes(model: Model, job: Job, rows: Strategies) -> tuple[Floats, Floats]:
    """Return the bytes of a tied embedding while layers run backward, [N]: the weights, gathered under ZeRO-3, and the
    gradient of the logits, which waits for that of the embedding. FSDP2 ends a unit's part in the backward pass when
    gradients of its inputs are there, which numbers of tokens have not (torch/distributed/fsdp/_fully_shard/
    _fsdp_param_group.py 2.13: `_register_post_backward_hook`)."""
    facts = memory_facts(job.framework)
    able = facts.freed and facts.shard_weight == 0.0 and model.tied_embeddings
    whole = weight_bytes(job) * model.token_table_parameters / rows.tp * able
    return whole * (rows.sharding == ZERO3), whole * job.trains("language") * (rows.sharding >= ZERO2)


def released_head_bytes(model: Model, job: Job, rows: Strategies) -> Floats:
    """Return the bytes of whole weights under ZeRO-2 that FSDP2 gives back before layers run backward, [N]: those of
    the output projection, unless it is the embedding."""
    facts = memory_facts(job.framework)
    able = facts.freed and facts.shard_weight == 0.0 and not model.tied_embeddings
    return np.asarray(weight_bytes(job) * model.head_table_parameters / rows.tp * able * (rows.sharding == ZERO2))


def _summed_head_bytes(model: Model, job: Job, rows: Strategies, ranks: Array, chunk: Floats) -> Floats:
    """Return what is beside the `chunk` of a loss, [N]: the projection where it is gathered and its gradient in fp32,
    which chunks add to, or that gradient with the buffer of its sum over `ranks`, and the rank's part of it, as it
    comes and as it stays (torchtitan/components/loss.py 0.3: ChunkedLossWrapper)."""
    projection = model.hidden * model.head_outputs / rows.tp
    parts = np.where(rows.sharding >= ZERO2, ranks, 1)
    summing = SINGLE * projection * (1.0 + 2.0 / parts) + weight_bytes(job) * projection * (rows.sharding == ZERO3)
    return np.asarray(summing + np.maximum(SINGLE * projection - chunk, 0.0))


def gathered_head_bytes(model: Model, job: Job, sharding: Array, micro_batch: Ints, cp: Ints, tp: Ints) -> Floats:
    """Return the bytes of the output projection that is gathered while the logits are there, [N], which under ZeRO-2 is
    among whole weights. Before the backward pass the buffer of its gather is there too, unless it is the embedding,
    gathered long before; in it, the gradient of fp32 logits beside these. What losses over log-probabilities
    have is apart (`scored_head_bytes`)."""
    if not memory_facts(job.framework).freed or job.loss == "tiled" or whole_answers(job):
        return np.zeros(len(tp))
    projection = weight_bytes(job) * model.hidden * model.head_outputs / tp
    whole = not job.fused_loss and job.loss != "chunked"
    size = micro_batch * job.sample_tokens / cp
    later = 2.0 * whole * size * model.head_outputs / tp
    gathered = projection * (sharding == ZERO3)
    taken = widths_of(job).saved * size * model.hidden * (not keeps_head_input(job))
    buffer = projection * (not model.tied_embeddings) * (sharding >= ZERO2)
    return np.asarray(gathered + np.maximum(buffer + taken - later, 0.0))


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
    table, zero3 = width * model.head_table_parameters / rows.tp, rows.sharding == ZERO3
    buffer = (arriving if model.tied_embeddings else table) * (rows.sharding >= ZERO2)
    gradient = table * job.trains("language") * (rows.sharding >= ZERO2)
    hidden, loss = widths_of(job).saved * elements, logit_bytes(model, job, rows.micro_batch, rows.cp, rows.tp)
    copied = 0.0 if model.tied_embeddings else buffer + arriving + hidden
    if job.loss == "tiled":
        there, backward = tile_bytes(job, size) + hidden, arriving * zero3 + loss
    else:
        logits = widths_of(job).logit * size * model.head_outputs / rows.tp
        there = logits + hidden * (not keeps_head_input(job))
        backward = np.maximum(loss, arriving * zero3 + logits + gradient + hidden)
    of_norm = np.maximum(norm_backward_bytes(model, job) - widths_of(job).saved, 0.0) * elements
    normed = arriving * zero3 + gradient + of_norm
    moments = (copied, buffer + there + before_logits, backward + before_logits, normed)
    return np.asarray(table * zero3 + reduce(np.maximum, moments))
