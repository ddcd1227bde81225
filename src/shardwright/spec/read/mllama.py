"""Llama 3.2 Vision: layers that read images by cross attention, and the tower that gives them.

Shapes follow Hugging Face transformers 5.24 (models/mllama/configuration_mllama.py and modeling_mllama.py, its defaults
too); the tests compare with its classes.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.spec.layer import Attention, Layer, Mlp
from shardwright.spec.mixers import Product
from shardwright.spec.model import Tower
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_WIDTH, ConfigFields

CROSS = "cross_attention_layers"
USUAL_CROSS = (3, 8, 13, 18, 23, 28, 33, 38)
MORE_TOKENS = 8  # rows of the embedding that the output projection lacks
USUAL_READ = 5  # layers of the tower whose results are read beside the last one's
USUAL_GRIDS = 8  # shapes of images, in tiles, that have learned positions


def mllama_layers(fields: ConfigFields, layers: tuple[Layer, ...], hidden: int) -> tuple[Layer, ...]:
    """Return the layers as read by `layers_of`, some of which attend to images in place of the sequence; what these
    add is times a learned number."""
    crossing = set(fields.layer_list(CROSS) or USUAL_CROSS)
    if strange := [place for place in crossing if not isinstance(place, int) or not 0 <= place < len(layers)]:
        if fields.has((CROSS,)):
            message = f"{strange[0]!r} is no layer of {len(layers)}"
            fields.section.report(CROSS, message, "number layers from 0")
        else:
            fields.section.report(CROSS, "is missing", "list the layers that attend to images")
        return layers
    attention = replace(layers[0].self_attention, causal=False, qk_norm=True)
    crossed = replace(layers[0], attention=None, cross=attention, scaled=True)
    return tuple(crossed if place in crossing else layer for place, layer in enumerate(layers))


def mllama_tower(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    """Layers over all tiles of an image at once, the last of which are scaled; one product takes what the last and some
    before it give together. Positions have one table for a tile and, by the shape of the image, three for its tiles."""
    width = vision.size("hidden_size", most=MOST_WIDTH) or 1280
    heads = vision.size("attention_heads", "num_attention_heads", most=MOST_WIDTH) or 16
    if width % heads:
        vision.section.report("hidden_size", f"{width} is no multiple of {heads} heads", "check both numbers")
    dim = max(width // heads, 1)
    patch, image = vision.size("patch_size") or 14, vision.size("image_size", most=MOST_WIDTH) or 448
    tiles, scaled = vision.size("max_num_tiles") or 4, vision.size("num_global_layers", most=MOST_LAYERS) or 8
    positions = (image // patch) ** 2 + 1
    grids = len(vision.layer_list("supported_aspect_ratios")) or USUAL_GRIDS
    read = len(vision.layer_list("intermediate_layers_indices")) or USUAL_READ
    inputs, given = (1 + read) * width, vision.size("vision_output_dim", most=MOST_WIDTH) or 7680
    if inputs != given:
        message = f"is {given}, the last layer and {read} others give {inputs}"
        vision.section.report("vision_output_dim", message, "check it beside intermediate_layers_indices")
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, value_head_dim=dim, causal=False)
    inner = vision.size("intermediate_size", most=MOST_WIDTH) or 5120
    by_shape = tiles * positions + 2 * tiles  # positions in tiles, and tiles before and after the first layers
    return Tower(
        family="mllama_vision_model",
        hidden=width,
        depth=(vision.size("num_hidden_layers", most=MOST_LAYERS) or 32) + scaled,
        layer=Layer(attention=attention, mlp=Mlp(width=inner, gated=False, bias=True), moe=None),
        scaled=scaled,
        patch=patch,
        patch_values=(vision.size("num_channels") or 3) * patch * patch,
        image=image,
        tiles=tiles,
        aside=True,
        learned_positions=positions + (grids + 1) * by_shape,
        score_biases=3,  # how much each of the tables counts
        class_token=True,
        first_norm=True,
        final_norm=True,
        activation=vision.text("hidden_act", default="gelu"),
        projector=(Product(inputs=given, outputs=hidden, cut="whole", bias=True),),
    )
