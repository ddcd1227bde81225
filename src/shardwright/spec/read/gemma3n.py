"""The layers of Gemma 3n: several residual streams, keys and values of earlier layers, embeddings for each layer, and
gates of which the first layers keep the largest alone.

Shapes follow Hugging Face transformers 5.24 (models/gemma3n/configuration_gemma3n.py and modeling_gemma3n.py); tests
compare with its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.spec.layer import Layer
from shardwright.spec.read.config_fields import LAYERS, MOST_LAYERS, MOST_WIDTH, ConfigFields
from shardwright.spec.read.families import ModelFamily
from shardwright.spec.streams import Streams

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
    known = {layer: layer for layer in made}
    return tuple(known[layer] for layer in made)


def _sparse(fields: ConfigFields, count: int) -> tuple[bool, ...]:
    """Return in which layers all but the largest gates are cut off."""
    usual = USUAL_SPARSE if count > USUAL_SPARSE else 0
    listed = fields.layer_list(SPARSITY)
    if listed and (len(listed) != count or not all(isinstance(part, int | float) for part in listed)):
        fields.section.report(SPARSITY, f"is no list of {count} shares", "write one for each layer")
        return (False,) * count
    return tuple(bool(part) for part in listed) if listed else tuple(place < usual for place in range(count))
