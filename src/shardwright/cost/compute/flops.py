"""Model FLOPs: the arithmetic of training alone, without recomputation, by which MFU is measured."""

from __future__ import annotations

from shardwright.spec.adapter import Adapter, adapted
from shardwright.spec.images import Taken, patch_rows, stem_products, taken_of
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.model import Model, Tower


def job_flops(model: Model, job: Job) -> float:
    """Return the FLOPs of one iteration of a job: those of `iteration_flops` where all weights are trained.

    Passes without gradients count once. Frozen weights have no gradients: their products count twice, forward and for
    the gradients of their inputs. Scores and adapters have all three passes. Of a tower, parts that are frozen with all
    before them have the forward pass alone, and what its first trained product takes has no gradient.
    """
    everything = iteration_flops(model, job.global_batch, job.sample_tokens, job.attended_tokens)
    again = job.passes_without_gradients / 3.0 * everything
    images, (read, reads) = sum(_of_tower(model, tower, job) for tower in model.towers), cross_flops(model, job)
    if job.trains("language"):
        return everything + again + images + 3.0 * job.global_batch * (read + reads)
    images += job.global_batch * (2.0 * read + 3.0 * reads)
    kinds = [layer.attention for layer in model.layers if layer.attention is not None]
    scores = sum(score_flops_per_token(attention, job.attended_tokens) for attention in kinds)
    adapter = job.adapter
    beside = sum(_adapter_flops_per_token(model, layer, adapter) for layer in model.layers) if adapter else 0.0
    return 2.0 / 3.0 * everything + again + job.tokens_per_iteration * (scores + 3.0 * beside) + images


def cross_flops(model: Model, job: Job) -> tuple[float, float]:
    """Return the forward FLOPs of a sequence's attention over what a tower gives: of its projections, and of scores and
    their product with the values."""
    tower, projections, scores = model.tower, 0.0, 0.0
    for cross in (layer.cross for layer in model.layers):
        if cross is not None and tower is not None:
            read = taken_of(tower, job).all_tokens
            projections += 2.0 * job.seq_len * model.hidden * (cross.query_width + cross.out_width)
            projections += 2.0 * read * tower.given_width * (cross.key_width + cross.value_width)
            scores += job.seq_len * score_flops_per_token(cross, read)
    return projections, scores


def _of_tower(model: Model, tower: Tower, job: Job) -> float:
    taken = taken_of(tower, job)
    encoder, projector = image_flops(tower, taken)
    vision, after = job.trains(tower.part), job.trains("projector")
    first = stem_flops(tower, taken)[0] * vision
    if not vision and tower.projector and after:
        first = 2.0 * taken.tokens * tower.projectors * tower.projector[0].weights
    if not vision and not (tower.projector and after):  # keys and values of what is frozen
        widths = sum(layer.cross.key_width + layer.cross.value_width for layer in model.layers if layer.cross)
        first = 2.0 * taken.tokens * tower.given_width * widths
    passes = (1.0 + 2.0 * vision) * encoder + (1.0 + after + (vision or after)) * projector - first
    return job.global_batch * taken.count * passes


def image_flops(tower: Tower, images: Taken) -> tuple[float, float]:
    """Return the FLOPs forward of one image, text or sound, in the encoder and in the projector of a tower."""
    layers = sum(layer_flops_per_token(tower.encoder, layer, images.positions) for layer in tower.encoder.layers)
    encoder = sum(stem_flops(tower, images)) + images.positions * layers
    if tower.budget is not None:  # patches are averaged by a product
        encoder += 2.0 * tower.budget * images.positions * tower.hidden
    if tower.tiles is not None:  # the mask of what is padded is a product
        encoder += 2.0 * images.positions**2
    chain = sum(product.weights for product in tower.projector)
    return encoder, 2.0 * images.tokens * tower.projectors * chain


def stem_flops(tower: Tower, images: Taken) -> list[float]:
    """Return the FLOPs of the products that take patches or sound to the width of the encoder; one of 0 for text."""
    rows = patch_rows(tower, images)
    return [2.0 * times * rows * product.weights for times, product in stem_products(tower)] or [0.0]


def _adapter_flops_per_token(model: Model, layer: Layer, adapter: Adapter) -> float:
    """Return the forward FLOPs of the adapters of a layer for one token: 2 r (inputs + outputs) for each matrix that it
    goes through."""
    routed = layer.moe.top_k / layer.moe.experts if layer.moe else 0.0
    return sum(
        2.0
        * adapter.rank
        * (matrix.inputs + matrix.outputs)
        * matrix.copies
        * (routed if matrix.target == "experts" else 1)
        for matrix in adapted(model, layer, adapter)
    )


def iteration_flops(model: Model, global_batch: int, seq_len: int, attended_tokens: float | None = None) -> float:
    """Return the FLOPs of one iteration: twice the multiply-adds of the forward pass, times three for the backward.

    The convention of Megatron-LM's `num_floating_point_operations` (core_v0.19): matrix products of layers and
    logits, causal attention counted by the half of the scores that is used, windowed attention by its window. Within
    documents attention goes over `attended_tokens` (`Job.attended_tokens`) in place of whole samples.
    """
    tokens = float(global_batch) * seq_len
    attended = seq_len if attended_tokens is None else attended_tokens
    layers = sum(layer_flops_per_token(model, layer, attended) for layer in model.layers)
    last = model.layers[-1]
    predicted = model.mtp_layers * layer_flops_per_token(model, last, attended)
    predicted += model.mtp_layers * 4.0 * model.hidden * model.hidden
    logits = 2.0 * model.hidden * model.head_outputs * (1 + model.mtp_layers)
    embedded = 2.0 * model.hidden * model.embedded_width + 4.0 * model.stream_parameters
    return 3.0 * tokens * (layers + predicted + logits + embedded)


def layer_flops_per_token(model: Model, layer: Layer, seq_len: float) -> float:
    """Return forward FLOPs of one layer for one token of a sequence of `seq_len`."""
    flops = 0.0
    if layer.attention is not None:
        flops = 2.0 * attention_weights(model, layer.attention) + score_flops_per_token(layer.attention, seq_len)
    if layer.mixer is not None:
        flops += layer.mixer.work(model.hidden).flops
    if layer.mlp is not None:
        flops += 2.0 * (3 if layer.mlp.gated else 2) * model.hidden * layer.mlp.width
    if layer.moe is not None:
        moe, inner = layer.moe, layer.moe.latent or model.hidden
        flops += 2.0 * moe.matrices * inner * moe.top_k * moe.expert_width
        flops += 2.0 * moe.matrices * model.hidden * moe.shared_width
        flops += 4.0 * model.hidden * (moe.latent or 0)
    flops += layer.streams.flops(model.hidden) if layer.streams else 0.0
    flops += 2.0 * sum(product.weights for product in layer.shared_products(model.hidden))
    return flops + 4.0 * model.hidden * (layer.embedded or 0)


def attention_weights(model: Model, attention: Attention) -> int:
    """Return the elements of the projection matrices of attention, of its gate and its indexer."""
    out = (attention.out_width + attention.gate_width) * model.hidden
    mla = attention.latent
    if mla is None:
        return attention.inputs(model.hidden) * sum(attention.projected_widths) + out
    if mla.query_rank is None:
        query = model.hidden * attention.query_width
    else:
        query = mla.query_rank * (model.hidden + attention.query_width)
    keys_values = model.hidden * (mla.kv_rank + mla.rope_head_dim)
    keys_values += mla.kv_rank * attention.heads * (mla.nope_head_dim + attention.value_head_dim)
    indexer = attention.sparse.matrix_weights(model.hidden, mla.query_rank or model.hidden) if attention.sparse else 0
    return query + keys_values + out + indexer


def score_flops_per_token(attention: Attention, seq_len: float) -> float:
    """Return the FLOPs of scores and their product with the values: 2 (d_k + d_v) per head and attended token. An
    indexer scores all tokens before the query, attention those that it picked."""
    before = seq_len / 2.0 if attention.causal else seq_len
    attended, indexed = before, 0.0
    if attention.window is not None:
        attended = min(attended, float(attention.window))
    if attention.sparse is not None:
        attended = picked_tokens(attention, seq_len)
        indexed = 2.0 * attention.sparse.heads * attention.sparse.head_dim * before
    return 2.0 * attention.heads * (attention.head_dim + attention.value_head_dim) * attended + indexed


def picked_tokens(attention: Attention, seq_len: float) -> float:
    """Return the keys that a query attends to on average where an indexer picks k: k, but those before it where they
    are fewer, k - k² / 2 S of S."""
    most = float(attention.sparse.top_k) if attention.sparse else seq_len
    if not attention.causal:
        return min(most, seq_len)
    return most - most * most / (2.0 * seq_len) if most < seq_len else seq_len / 2.0
