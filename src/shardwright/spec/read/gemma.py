"""The layers of Gemma 4: wider heads in layers of full attention, keys and values of earlier layers, experts beside the
feed-forward block, and embeddings for each layer. And of Gemma 3n: several residual streams, and gates of which the
first layers keep the largest alone.

Shapes follow Hugging Face transformers 5.24 (configuration_….py and modeling_….py of models/gemma4 and models/gemma3n);
the tests compare parameter counts with its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.spec.layer import Attention, Layer, interned
from shardwright.spec.read.block_patterns import FULL, SLIDING
from shardwright.spec.read.config_fields import HEAD_DIM, KV_HEADS, LAYERS, MOST_LAYERS, MOST_WIDTH, ConfigFields
from shardwright.spec.read.families import ModelFamily
from shardwright.spec.streams import Streams

BY_LAYER = "per_layer_config"
GLOBAL_KV_HEADS = "num_global_key_value_heads"
WIDTH, USUAL_WIDTH = "hidden_size_per_layer_input", 256
GLOBAL_HEAD_DIM = 512


def gemma4_config(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Return the traits and fields: the last layer has full attention, and experts that are not enabled are none."""
    count = fields.size(*LAYERS, most=MOST_LAYERS) or 1
    listed = list(fields.layer_list("layer_types")) or [FULL if not (i + 1) % 6 else SLIDING for i in range(count)]
    overlay: dict[str, object] = {"layer_types": [*listed[:-1], FULL]}
    if not fields.flag("enable_moe_block", default=False):
        overlay["num_experts"] = None
    return family, overlay


def gemma4_layers(fields: ConfigFields, layers: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """Return the layers as read by `layers_of` with what is particular to Gemma 4; equal ones are equal objects.

    The last `num_kv_shared_layers` take keys and values of the last layer of their kind before them, and their
    feed-forward block may be twice as wide. Beside experts the feed-forward block is one that every token visits, with
    a norm for each before their sum.
    """
    first_shared = len(layers) - fields.count("num_kv_shared_layers", most=MOST_LAYERS)
    wide = fields.flag("use_double_wide_mlp", default=False)
    width = fields.count(WIDTH, most=MOST_WIDTH) if WIDTH in fields.section.fields else USUAL_WIDTH
    width = 0 if "unified" in fields.text("model_type", default="") else width  # whose layers have none
    dense = fields.size("intermediate_size", most=MOST_WIDTH) or 0
    made = []
    for place, layer in enumerate(layers):
        borrowed = place >= first_shared
        twice = 2 if wide and borrowed else 1
        norms, vectors = layer.norms + bool(width), layer.vector_parameters or 0
        attention = _attention(fields, layer, place, borrowed=borrowed)
        mlp = None if layer.mlp is None else replace(layer.mlp, width=twice * layer.mlp.width)
        moe = None if layer.moe is None else replace(layer.moe, shared_width=twice * dense)
        if moe is not None:  # the router has a scale for each input, and one for each expert
            norms, vectors = norms + 3, vectors + hidden + moe.experts
        made.append(
            replace(
                layer,
                attention=attention,
                mlp=mlp,
                moe=moe,
                norms=norms,
                vector_parameters=vectors or None,
                embedded=width or None,
            )
        )
    return interned(made)


def _attention(fields: ConfigFields, layer: Layer, place: int, *, borrowed: bool) -> Attention:
    attention = layer.self_attention
    if layer.window is None:
        reuses = fields.flag("attention_k_eq_v", default=False)
        dim, kv_heads = _of_full_attention(fields, attention, place, grouped=reuses)
        attention = replace(
            attention,
            head_dim=dim,
            value_head_dim=dim,
            kv_heads=kv_heads,
            reused="values" if reuses else None,
        )
    return replace(attention, value_norm=True, reused="both" if borrowed else attention.reused)


def _of_full_attention(fields: ConfigFields, usual: Attention, place: int, *, grouped: bool) -> tuple[int, int]:
    """Return the width of heads, and how many there are for keys, in a layer of full attention: transformers writes
    them layer by layer, of those that differ, the authors once for all."""
    if BY_LAYER in fields.section.fields:
        by_layer = fields.inner(BY_LAYER) if fields.section.fields[BY_LAYER] else None
        name = by_layer.has((str(place), f"{place:02}", f"{place:03}")) if by_layer is not None else None
        said = by_layer.inner(name) if by_layer is not None and name is not None else None
        dim = said.size(*HEAD_DIM, most=MOST_WIDTH) if said is not None else None
        kv_heads = said.size(*KV_HEADS, most=MOST_WIDTH) if said is not None else None
    else:
        dim = fields.size("global_head_dim", most=MOST_WIDTH) or GLOBAL_HEAD_DIM
        kv_heads = fields.size(GLOBAL_KV_HEADS, most=MOST_WIDTH) if grouped else None
    kv_heads = kv_heads or usual.kv_heads
    if usual.heads % kv_heads:
        message = f"{kv_heads} does not divide {usual.heads} heads"
        fields.section.report(GLOBAL_KV_HEADS, message, "correct one of them")
    return dim or usual.head_dim, kv_heads


WIDTHS, SPARSITY, SHARED = "intermediate_size", "activation_sparsity_pattern", "num_kv_shared_layers"
USUAL_SPARSE, USUAL_SHARED = 10, 15  # Gemma3nTextConfig


def gemma3n_config(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Return the traits and fields: widths may be listed by layer."""
    listed = fields.section.fields.get(WIDTHS)
    if not isinstance(listed, list):
        return family, {}
    count = fields.size(*LAYERS, most=MOST_LAYERS)
    whole = all(isinstance(width, int) and 0 < width <= MOST_WIDTH for width in listed)
    if len(listed) != count or not whole:
        fields.section.report(WIDTHS, f"is no list of {count} widths", "write one for each layer")
        return family, {WIDTHS: 1}
    return family, {WIDTHS: max(listed), "widths_by_layer": listed}


def gemma3n_layers(fields: ConfigFields, layers: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """Return the layers as read by `layers_of` with what is particular to Gemma 3n; equal ones are equal objects. The
    last `num_kv_shared_layers` take keys and values of the last layer of their kind before them."""
    streams = Streams(count=fields.size("altup_num_inputs") or 4, rank=fields.size("laurel_rank") or 64)
    shared = fields.count(SHARED, most=MOST_LAYERS) if fields.has((SHARED,)) else USUAL_SHARED
    if shared >= len(layers):
        message = f"is {shared} of {len(layers)} layers, which leaves none to take keys from"
        fields.section.report(SHARED, message, "give fewer")
    embedded = fields.size("hidden_size_per_layer_input", most=MOST_WIDTH)
    widths = [int(str(width)) for width in fields.layer_list("widths_by_layer")]
    made = []
    for place, layer in enumerate(layers):
        attention = replace(layer.self_attention, value_norm=True)
        if place >= len(layers) - shared:
            attention = replace(attention, reused="both")
        mlp = layer.mlp
        if mlp is not None:
            width = widths[place] if widths else mlp.width
            mlp = replace(mlp, width=width, cut=True if _sparse(fields, len(layers))[place] else None)
        norms = layer.norms + 3  # of the router, of the branch, and after the token's own embedding
        made.append(
            replace(layer, attention=attention, mlp=mlp, norms=norms, embedded=embedded or 256, streams=streams)
        )
    return interned(made)


def _sparse(fields: ConfigFields, count: int) -> tuple[bool, ...]:
    """Return in which layers all but the largest gates are cut off."""
    usual = USUAL_SPARSE if count > USUAL_SPARSE else 0
    listed = fields.layer_list(SPARSITY)
    if listed and (len(listed) != count or not all(isinstance(part, int | float) for part in listed)):
        fields.section.report(SPARSITY, f"is no list of {count} shares", "write one for each layer")
        return (False,) * count
    return tuple(bool(part) for part in listed) if listed else tuple(place < usual for place in range(count))
