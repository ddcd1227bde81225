"""Bytes of activations: what each layer keeps for its backward pass (`kept`), and what is there beside that while it
runs (`backward`)."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operators import (
    Shard,
    freed_of_operators,
    norm_tokens,
    per_operator,
    tokens,
)
from shardwright.cost.compute.tower import encoder_shard, patch_inputs, projector_inputs, tower_tokens
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.memory.backward import (
    beside_again,
    beside_gradients_bytes,
    dispatched_bytes,
    engine_bytes,
    gradient_bytes,
    grouped_bytes,
    halfway_bytes,
    lengths_bytes,
    magnitude_bytes,
    norm_bytes,
    unmerged_bytes,
)
from shardwright.cost.memory.ends import keeps_head_input
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.memory.kept import (
    attention_bytes,
    before_adapters_bytes,
    cross_bytes,
    eager_bytes,
    embedded_bytes,
    embeddings_bytes,
    freed_of_modules,
    input_tokens,
    low_rank_bytes,
    mixer_bytes,
    mlp_bytes,
    module_copies,
    moe_bytes,
    norm_copies,
    shared_bytes,
    streams_bytes,
)
from shardwright.records import record
from shardwright.spec.adapter import adapted
from shardwright.spec.catalog.frameworks import OWN, framework_has
from shardwright.spec.images import encoder_job, taken_of
from shardwright.spec.job import Job
from shardwright.spec.model import Model, Tower


@record
class Activations:
    """Bytes of one micro-batch, lists over positions (embedding, kinds of layers, head) of [M]. `core` is what
    selective recomputation frees, `again` what of it lives beside the gradients while it runs again, where its modules
    are said. `offloaded` are those of `inputs` that are kept in host memory. `dequantised` is the largest quantised
    matrix, 16 bits wide to compute with. `before_logits` [M] are the inputs of the final norm and of the output
    projection, which are gone before a layer runs backward; `halfway` [M] is what is there beyond `gradients` in the
    backward pass of a norm between attention and feed-forward block, where gradients of weights wait for the layer's
    last."""

    kept: list[Floats]
    core: list[Floats]
    inputs: list[Floats]
    gradients: list[Floats]
    again: list[Floats]
    offloaded: list[Floats]
    dequantised: list[Floats]
    before_logits: Floats
    halfway: Floats


def layer_activation_bytes(model: Model, shard: Shard, job: Job) -> Activations:
    """Return what each position keeps for the backward pass. An unfused norm keeps what its weights multiply where
    these are trained."""
    outer = norm_tokens(shard, job) * model.hidden
    saved = widths_of(job).saved
    zero = np.zeros(len(shard.tp))
    kept, core, inputs, gradients, again, dequantised, halfway = [], [], [], [], [], [], [zero]
    to_host = float(job.options.activation_offload == "inputs")
    for layer in model.kinds:
        attention, scores = zero, zero
        if layer.attention is not None:
            attention, scores = attention_bytes(model, layer.attention, shard, job)
        if layer.mixer is not None:
            attention = attention + mixer_bytes(model, layer.mixer, shard, job)
        feed_forward = zero
        if layer.mlp is not None:
            feed_forward = mlp_bytes(model, layer.mlp, shard, job)
        if layer.streams is not None:
            feed_forward = feed_forward + streams_bytes(model, layer.streams, shard, job)
        if layer.moe is not None:
            feed_forward = feed_forward + moe_bytes(model, layer.moe, shard, job)
        if layer.cross is not None and model.tower is not None:
            attention = attention + cross_bytes(model, layer.cross, model.tower, shard, job)
            modules = module_copies(model, layer, model.tower.copies, job)
            attention = attention + saved * tokens(shard, job) * modules
        masks = 2.0 + (layer.cross is not None) if model.dropout else 0.0
        outside = outer * (layer.norms * (saved + norm_copies(model, job)) + masks)
        feed_forward = feed_forward + embedded_bytes(model, layer, shard, job) + shared_bytes(model, layer, shard, job)
        if layer.scaled and job.trains("language"):  # what a learned number multiplies
            feed_forward = feed_forward + saved * layer.sublayers * outer
        feed_forward = feed_forward + eager_bytes(model, layer, shard, job)
        beside = magnitude_bytes(model, layer, shard, job) + low_rank_bytes(model, layer, shard, job)
        kept.append(outside + attention + feed_forward + beside)
        if per_operator(job):
            core.append(freed_of_operators(model, layer, shard, job, kept[-1], width=saved))
        else:
            core.append(freed_of_modules(model, layer, shard, job, scores))
        repeated = np.maximum(core[-1], 0.0) + beside_again(layer, shard, job)
        again.append(zero if job.options.recompute_modules is None else repeated)
        inputs.append(saved * outer * (layer.streams.count if layer.streams else 1))
        moments = (
            gradient_bytes, norm_bytes, lengths_bytes, unmerged_bytes, grouped_bytes, dispatched_bytes, engine_bytes
        )  # fmt: skip
        gradients.append(np.max(np.stack([of(model, layer, shard, job) for of in moments]), axis=0))
        dequantised.append(beside_gradients_bytes(model, layer, shard, job, gradients[-1]))
        halfway.append(halfway_bytes(model, layer, shard, job) - gradients[-1])
    embedding = outer * (1.0 if model.dropout else 0.0) + embeddings_bytes(model, shard, job)
    last = (saved + norm_copies(model, job)) * outer
    last = last + saved * input_tokens(shard, job) * model.hidden * keeps_head_input(job)
    if model.streams is not None:
        last = last + saved * tokens(shard, job) * model.streams.end_kept(model.hidden, first=False)
    head = model.mtp_layers * (kept[model.kind_of_layer[-1]] + last)
    head_again = head
    if memory_facts(job.framework).megatron_core:
        ahead = model.mtp_layers * saved * outer
        joined = 2.0 * (ahead + saved * outer * bool(model.mtp_layers))  # what all depths give
        head, head_again = head + 3.0 * ahead + joined, model.mtp_layers * last + 2.0 * ahead + joined
    unneeded, of_core = _unneeded(model, shard, job, kept, core)
    return Activations(
        kept=[embedding - unneeded, *kept, head],
        core=[-of_core, *core, zero],
        inputs=[embedding, *inputs, head_again],
        gradients=[zero, *gradients, zero],
        again=[zero, *again, zero],
        offloaded=[zero, *(to_host * size for size in inputs), zero],
        dequantised=[zero, *dequantised, zero],
        before_logits=last,
        halfway=np.max(np.stack(halfway), axis=0),
    )


def _unneeded(model: Model, shard: Shard, job: Job, kept: list[Floats], core: list[Floats]) -> tuple[Floats, Floats]:
    """Return what layers do not keep as it comes before all adapters, on the stage that has the embedding, and what of
    that is core attention's. Where layers run again, what enters the first has a gradient in transformers
    (modeling_utils.py 5.24: `enable_input_require_grads`)."""
    whole, of_core = np.zeros(len(shard.tp)), np.zeros(len(shard.tp))
    transformers = framework_has(job.framework, "transformers")
    if job.adapter is None or not (transformers or job.framework == OWN):
        return whole, of_core
    for kind in model.kind_of_layer:
        layer = model.kinds[kind]
        beside = adapted(model, layer, job.adapter)
        less, freed = before_adapters_bytes(model, layer, shard, job) if beside else (kept[kind], core[kind])
        whole, of_core = whole + less, of_core + freed
        if beside:
            break
    return whole, whole if transformers else of_core


def tower_kept_bytes(tower: Tower, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return what a tower of a model keeps of a micro-batch for its backward pass, [M]: where nothing runs again, and
    where its layers run again with those of the model, which keep their inputs then."""
    positions, merged = tower_tokens(tower, shard, job)
    saved = widths_of(job).saved
    beside = saved * merged * projector_inputs(tower, job)
    if not tower.projector or tower.aside:  # what the decoder's layers read
        beside = beside + saved * merged * tower.given_width
    if tower.tiles is not None:  # a mask of which tiles a token sees
        beside = beside + saved * tokens(shard, job) * taken_of(tower, job).all_tokens
    if not job.trains(tower.part):
        return beside, beside
    beside = beside + saved * positions * patch_inputs(tower)
    copies = module_copies(tower.encoder, tower.layer, tower.copies, job)
    modules = tower.depth * saved * positions * copies
    if tower.budget is not None:  # what is padded is masked, in 16 bits in each layer
        modules = modules + tower.depth * saved * positions * taken_of(tower, job).positions
    if tower.tiles is not None:  # by one mask for all layers
        modules = modules + saved * positions * taken_of(tower, job).positions
    layers = layer_activation_bytes(tower.encoder, encoder_shard(tower, shard, job), encoder_job(tower, job))
    places = [1 + kind for kind in tower.encoder.kind_of_layer]
    kept, inputs = (np.asarray(sum(figures[place] for place in places)) for figures in (layers.kept, layers.inputs))
    return kept + modules + beside, inputs + beside
