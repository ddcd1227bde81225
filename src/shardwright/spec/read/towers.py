"""The tower of a multimodal `config.json`: its encoder by the `model_type` of the vision config, its projector by that
of the whole.

Shapes follow the model classes of Hugging Face transformers 5.24 (`models/<model_type>/modeling_*.py`, its defaults
too); the tests compare parameter counts with those classes. A tower of another kind is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.spec.layer import Attention, Layer, Mlp
from shardwright.spec.mixers import Product
from shardwright.spec.model import Tower
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_WIDTH, ConfigFields
from shardwright.spec.read.mllama import mllama_tower
from shardwright.spec.tiles import Tiling, grids_within

VISION = "vision_config"
MOST_SIDE = 100_000  # pixels
TIED = "tie_word_embeddings"
# By a word in the text config, too.
TIED_BY_EITHER = ("llava", "llava_next_video", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "video_llama_3")
# What the configs of Llama, Mistral and Qwen2 assume, of which the text config inside a multimodal one may say nothing;
# VoxtralConfig has values of its own.
LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
QWEN2 = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 22016, "max_position_embeddings": 32768, "vocab_size": 151936,
}  # fmt: skip
TEXT_SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "qwen2": QWEN2,
        "voxtral": {
            "vocab_size": 131072,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 30,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
        },
        "llama": {**LLAMA, "intermediate_size": 11008, "max_position_embeddings": 2048},
        "mistral": {
            **LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
    }
)


def tower_of(config: ConfigFields, hidden: int) -> Tower | None:
    """Return the tower of a config whose text model has the width `hidden`; None where there is none, or no known one.
    Problems are added to the fields."""
    family = config.text("model_type", default="")
    read = FAMILIES.get(family)
    vision = config.inner(VISION) if read is not None and config.has((VISION,)) else None
    return None if read is None or vision is None else read(config, vision, hidden)


def tied_of(config: ConfigFields, text: ConfigFields) -> dict[str, object]:
    """Return whether the output projection of a config that holds a text model is tied, where it says so: its own word
    counts, and that of the text model where there is none."""
    outer, inner = (fields.section.fields.get(TIED) for fields in (config, text))
    if outer is None:
        return {}
    return {TIED: True if inner is True and config.text("model_type", default="") in TIED_BY_EITHER else outer}


def _llava(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """Any encoder; two products for each of its patches, of as many layers of it as are read."""
    encoder = _encoder(vision)
    if encoder is None:
        return None
    listed = isinstance(config.section.fields.get("vision_feature_layer"), list)
    read = max(len(config.layer_list("vision_feature_layer")), 1) if listed else 1
    return replace(encoder, projector=_pair(read * encoder.hidden, hidden, hidden, bias=_biased(config, default=True)))


def _llava_next(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """The tower of LLaVA on tiles, in one of several grids, and on the whole image; a learned token ends rows."""
    tower = _llava(config, vision, hidden)
    if tower is None or tower.image is None:
        return None
    sides = _grid_sides(config, tower.image)
    words = config.text("vision_aspect_ratio", default="anyres_max_9").removeprefix("anyres_max_")
    most = int(words) if words.isdecimal() and config.text("model_type", default="") == "llava_onevision" else None
    return replace(tower, tiling=Tiling(by="area", grids=sides, most=most), loose=hidden)


def _grid_sides(config: ConfigFields, image: int) -> tuple[tuple[int, int], ...]:
    """Return rows and columns of the grids that a config lists as heights and widths in pixels."""
    name = "image_grid_pinpoints"
    grids: list[tuple[int, int]] = []
    for sides in config.layer_list(name):
        match sides:
            case [int(height), int(width)] if height > 0 < width and height % image == width % image == 0:
                grids.append((height // image, width // image))
            case _:
                config.section.report(name, f"expected pairs of multiples of {image} pixels", "write [[336, 672], …]")
                return ((1, 1),)
    if grids:
        return tuple(grids)
    if config.text("model_type", default="") == "llava_onevision":
        return tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
    return ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))


def _internvl(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """InternViT on up to 12 tiles and the whole image; a norm over merged patches, and two products. In configs of the
    authors' own code (`internvl_chat`) the tower says nothing of biases but those of queries, keys and values."""
    ours = config.text("model_type", default="") == "internvl"
    width = vision.size("hidden_size", most=MOST_WIDTH) or (1024 if ours else 3200)
    heads = vision.size("num_attention_heads") or (16 if ours else 25)
    inner = vision.size("intermediate_size", most=MOST_WIDTH) or (4096 if ours else 12800)
    image, patch = _side(vision, "image_size", 448 if ours else 224), _side(vision, "patch_size", 14)
    image = image if ours else config.size("force_image_size", most=MOST_SIDE) or image
    normed = vision.flag("use_qk_norm" if ours else "qk_normalization", default=not ours)
    biased = vision.flag("attention_bias" if ours else "qkv_bias", default=False)
    root = vision.text("norm_type", default="layer_norm" if ours else "rms_norm") == "rms_norm"
    ratio = config.fraction("downsample_ratio", most=1.0) or 0.5
    merge = round(1.0 / ratio)
    if (image // patch) % merge:
        message = f"{image // patch} patches of a side are not merged by {merge}"
        config.section.report("downsample_ratio", message, "check both numbers")
        return None
    tiled = ours or config.flag("dynamic_image_size", default=False)
    least, most = (1, 12) if ours else (config.size("min_dynamic_patch") or 1, config.size("max_dynamic_patch") or 6)
    thumbnail = ours or config.flag("use_thumbnail", default=False)
    attention = replace(_attention(vision, width, heads, biased=biased), out_bias=True)
    mlp = Mlp(width=inner, gated=False, bias=True)
    vectors = 2 * width + 2 * width * normed  # scales of both sums, norms of queries and keys over all heads
    table = not ours or vision.flag("use_absolute_position_embeddings", default=True)
    tower = Tower(
        family="internvl_vision",
        hidden=width,
        depth=vision.size("num_hidden_layers", most=MOST_LAYERS) or (24 if ours else 48),
        layer=Layer(attention=attention, mlp=mlp, moe=None, vector_parameters=vectors),
        patch=patch,
        patch_values=(vision.size("num_channels") or 3) * patch * patch,
        image=image,
        tiling=Tiling(by="ratio", grids=grids_within(least, most), whole=thumbnail) if tiled else None,
        merge=merge,
        norm="rmsnorm" if root else "layernorm",
        position="learned" if table else "none",
        learned_positions=(image // patch) ** 2 + 1 if table else 0,
        patch_bias=True,
        class_token=True,
        activation=vision.text("hidden_act", default="gelu"),
        copies=2 + 6 * normed,  # norms of queries and keys save theirs in fp32 and in bf16
    )
    inputs = width * merge**2
    return replace(tower, projector=_pair(inputs, hidden, hidden, bias=True), projector_vectors=2 * inputs)


def _paligemma(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """SigLIP without its head, and one product."""
    encoder = _encoder(vision.over({"vision_use_head": False, **vision.section.fields}))
    if encoder is None:
        return None
    outputs = vision.size("projection_dim", most=MOST_WIDTH) or hidden
    return replace(encoder, projector=(Product(inputs=encoder.hidden, outputs=outputs, cut="whole", bias=True),))


def _glm4v(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    """Layers with gates and RMSNorms; a convolution merges patches, then a product, a norm and a gated pair."""
    width = vision.size("hidden_size", most=MOST_WIDTH) or 1536
    outputs = vision.size("out_hidden_size", most=MOST_WIDTH) or hidden
    inner = vision.size("intermediate_size", most=MOST_WIDTH) or 13696
    mlp = Mlp(width=outputs, gated=True)
    tower = _qwen_tower(vision, "glm4v_vision", width, mlp, "silu", depth=24, heads=12)
    biased = vision.flag("attention_bias", default=False)
    layer = replace(tower.layer, attention=replace(tower.layer.self_attention, qkv_bias=biased, out_bias=False))
    chain = (
        Product(inputs=width * tower.merge**2, outputs=outputs, cut="whole", bias=True),
        Product(inputs=outputs, outputs=outputs, cut="whole"),
        Product(inputs=outputs, outputs=2 * inner, cut="whole"),
        Product(inputs=inner, outputs=outputs, cut="whole"),
    )
    return replace(
        tower,
        layer=layer,
        norm="rmsnorm",
        patch_bias=True,
        first_norm=True,
        final_norm=True,
        learned_positions=(_side(vision, "image_size", 336) // tower.patch) ** 2,
        projector=chain,
        projector_vectors=2 * outputs,
    )


def _gemma3(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """SigLIP, whose patches are averaged over squares; a norm and one product."""
    encoder = _encoder(vision)
    if encoder is None:
        return None
    tokens = config.size("mm_tokens_per_image") or 256
    side, across = (encoder.image or 0) // encoder.patch, round(tokens**0.5)
    if across * across != tokens or side % across:
        config.section.report("mm_tokens_per_image", f"{tokens} are no square of {side} × {side} patches", "256")
        return None
    projector = (Product(inputs=encoder.hidden, outputs=hidden, cut="whole"),)
    return replace(encoder, merge=side // across, projector=projector, projector_vectors=encoder.hidden)


def _mistral3(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """Pixtral; a norm, a product that merges squares of patches, and two more."""
    encoder = _encoder(vision)
    if encoder is None:
        return None
    merge, width = config.size("spatial_merge_size") or 2, encoder.hidden
    merging = Product(inputs=width * merge * merge, outputs=width, cut="whole")
    chain = (merging, *_pair(width, hidden, hidden, bias=_biased(config, default=False)))
    return replace(encoder, merge=merge, projector=chain, projector_vectors=width)


def _idefics3(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """SigLIP without its head on tiles, four on the longer side, and on the whole image; one product merges squares of
    patches."""
    encoder = _encoder(vision)
    if encoder is None or encoder.image is None:
        return None
    merge = config.size("scale_factor") or 2
    if (encoder.image // encoder.patch) % merge:
        message = f"{merge} does not divide the {encoder.image // encoder.patch} patches of a side"
        config.section.report("scale_factor", message, "check both numbers")
        return None
    projector = (Product(inputs=encoder.hidden * merge * merge, outputs=hidden, cut="whole"),)
    return replace(encoder, merge=merge, projector=projector, tiling=Tiling(by="edge", longest=4))


def _gemma4(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    """Layers with gates, four RMSNorms, and norms of queries, keys and values; a position has a row for each side.
    Patches are averaged over squares; a norm without weights and one product."""
    width = vision.size("hidden_size", most=MOST_WIDTH) or 768
    heads, dim = vision.size("num_attention_heads") or 12, vision.size("head_dim", most=MOST_WIDTH) or 64
    attention = Attention(
        heads=heads,
        kv_heads=vision.size("num_key_value_heads") or 12,
        head_dim=dim,
        value_head_dim=dim,
        causal=False,
        qk_norm=True,
        value_norm=True,
    )
    patch = _side(vision, "patch_size", 16)
    mlp = Mlp(width=vision.size("intermediate_size", most=MOST_WIDTH) or 3072, gated=True)
    return Tower(
        family="gemma4_vision",
        hidden=width,
        depth=vision.size("num_hidden_layers", most=MOST_LAYERS) or 16,
        layer=Layer(attention=attention, mlp=mlp, moe=None, norms=4),
        patch=patch,
        patch_values=3 * patch * patch,
        merge=vision.size("pooling_kernel_size") or 3,
        budget=config.size("vision_soft_tokens_per_image") or 280,
        norm="rmsnorm",
        norm_form="single",
        position="rope",
        learned_positions=2 * (vision.size("position_embedding_size") or 10240),
        activation=vision.text("hidden_activation", default="gelu_pytorch_tanh"),
        projector=(Product(inputs=width, outputs=hidden, cut="whole"),),
    )


def _llama4(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower | None:
    """CLIP's layers with rotary positions beside the table, on up to 16 tiles and the whole image; squares of patches
    are merged, and go through two products and their non-linearities, then a third."""
    usual = {"hidden_size": 768, "num_hidden_layers": 34, "num_attention_heads": 16, "intermediate_size": 5632}
    usual |= {"image_size": 448, "patch_size": 14}
    clip = vision.over({**usual, **vision.section.fields, "model_type": "clip_vision_model"})
    encoder, merge = _encoder(clip), round(1.0 / (vision.fraction("pixel_shuffle_ratio", most=1.0) or 0.5))
    if encoder is None or encoder.image is None or encoder.layer.mlp is None:
        return None
    if (encoder.image // encoder.patch) % merge or encoder.hidden * merge**2 != encoder.layer.mlp.width:
        message = f"{merge} × {merge} patches of {encoder.hidden} are no input of {encoder.layer.mlp.width}"
        vision.section.report("pixel_shuffle_ratio", message, "check it beside intermediate_size and image_size")
        return None
    names = {"projector_input_dim": 4096, "projector_output_dim": 4096, "vision_output_dim": 7680}
    inner, outer, output = (vision.size(name, most=MOST_WIDTH) or number for name, number in names.items())
    if not inner == outer == output:
        message = f"is {output}, the widths of the adapter are {inner} and {outer}"
        vision.section.report("vision_output_dim", message, "write the same width for all three")
    chain = (
        Product(inputs=encoder.hidden * merge**2, outputs=inner, cut="whole"),
        Product(inputs=outer, outputs=outer, cut="whole"),
        Product(inputs=output, outputs=hidden, cut="whole"),
    )
    return replace(
        encoder,
        family="llama4_vision_model",
        merge=merge,
        activation="gelu",
        projector=chain,
        tiling=Tiling(by="scale", grids=grids_within(1, 16)),
    )


def _qwen2(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    width = vision.size("embed_dim", most=MOST_WIDTH) or 1280
    ratio = vision.size("mlp_ratio") or 4
    mlp = Mlp(width=ratio * width, gated=False, bias=True)
    tower = _qwen_tower(vision, "qwen2_vl", width, mlp, "quick_gelu")
    return _merged(tower, vision.size("hidden_size", most=MOST_WIDTH) or hidden)


def _qwen2_5(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    """Layers attend within windows, but for `fullatt_block_indexes`; norms are RMSNorms."""
    width = vision.required("hidden_size", most=MOST_WIDTH)
    mlp = Mlp(width=vision.size("intermediate_size", most=MOST_WIDTH) or 3420, gated=True, bias=True)
    tower = _qwen_tower(vision, "qwen2_5_vl", width, mlp, "silu")
    window = ((vision.size("window_size", most=MOST_SIDE) or 112) // tower.patch) ** 2
    listed = vision.layer_list("fullatt_block_indexes") or (7, 15, 23, 31)
    layer = replace(tower.layer, attention=replace(tower.layer.self_attention, window=window))
    whole = tuple(place for place in listed if isinstance(place, int))
    tower = replace(tower, layer=layer, whole=whole, norm="rmsnorm")
    return _merged(tower, vision.size("out_hidden_size", most=MOST_WIDTH) or hidden)


def _qwen3(config: ConfigFields, vision: ConfigFields, hidden: int) -> Tower:
    """What some layers give goes through a merger of its own and is added to the first layers of the text model; not in
    Qwen3.5."""
    width = vision.size("hidden_size", most=MOST_WIDTH) or 1152
    mlp = Mlp(width=vision.size("intermediate_size", most=MOST_WIDTH) or 4304, gated=False, bias=True)
    positions = vision.size("num_position_embeddings") or 2304
    tower = _qwen_tower(vision, "qwen3_vl", width, mlp, "gelu_pytorch_tanh", patch=16, depth=27)
    tower = replace(tower, patch_bias=True, learned_positions=positions)
    deep = len(vision.layer_list("deepstack_visual_indexes") or (8, 16, 24))
    deep *= not config.text("model_type", default="").startswith("qwen3_5")
    merged = _merged(tower, vision.size("out_hidden_size", most=MOST_WIDTH) or hidden)
    after = 2 * width * merged.merge**2  # the norms of these mergers go over merged patches
    return replace(merged, projectors=1 + deep, projector_vectors=merged.projector_vectors + deep * after)


def _qwen_tower(
    vision: ConfigFields,
    family: str,
    width: int,
    mlp: Mlp,
    activation: str,
    *,
    patch: int = 14,
    depth: int = 32,
    heads: int = 16,
) -> Tower:
    """Return the encoder that Qwen's and GLM's have in common: of images of any size, each a pair of equal frames."""
    heads = vision.size("num_heads", "num_attention_heads") or heads
    patch = _side(vision, "patch_size", patch)
    frames = vision.size("temporal_patch_size") or 2
    return Tower(
        family=family,
        hidden=width,
        depth=vision.size("depth", "num_hidden_layers", most=MOST_LAYERS) or depth,
        layer=Layer(attention=_attention(vision, width, heads, biased=True), mlp=mlp, moe=None),
        patch=patch,
        patch_values=(vision.size("in_channels", "in_chans") or 3) * frames * patch * patch,
        merge=vision.size("spatial_merge_size") or 2,
        position="rope",
        activation=vision.text("hidden_act", default=activation),
        copies=3,
        projector=(),
    )


def _merged(tower: Tower, outputs: int) -> Tower:
    """Return a tower with the merger of Qwen's: a norm, and two products with biases."""
    inputs = tower.hidden * tower.merge**2
    vectors = tower.hidden * (2 if tower.norm == "layernorm" else 1)
    return replace(tower, projector=_pair(inputs, inputs, outputs, bias=True), projector_vectors=vectors)


def _encoder(vision: ConfigFields) -> Tower | None:
    """Return the encoder of a vision config, without projector; None where it is not known."""
    kind = vision.text("model_type", default="")
    if kind not in ENCODERS:
        return None
    usual = ENCODERS[kind]
    width = vision.size("hidden_size", most=MOST_WIDTH) or usual["hidden_size"]
    heads = vision.size("num_attention_heads") or usual["num_attention_heads"]
    inner = vision.size("intermediate_size", most=MOST_WIDTH) or usual["intermediate_size"]
    image, patch = (_side(vision, name, usual[name]) for name in ("image_size", "patch_size"))
    pixtral, clip = kind == "pixtral", kind == "clip_vision_model"
    if kind == "siglip_vision_model" and vision.flag("vision_use_head", default=True):
        return None
    return Tower(
        family=kind,
        hidden=width,
        depth=vision.size("num_hidden_layers", most=MOST_LAYERS) or usual["num_hidden_layers"],
        layer=Layer(
            attention=_attention(vision, width, heads, biased=not pixtral),
            mlp=Mlp(width=inner, gated=pixtral, bias=not pixtral),
            moe=None,
        ),
        patch=patch,
        patch_values=(vision.size("num_channels") or 3) * patch * patch,
        image=None if pixtral else image,
        norm="rmsnorm" if pixtral else "layernorm",
        position="rope" if pixtral else "learned",
        learned_positions=0 if pixtral else (image // patch) ** 2 + clip,
        patch_bias=not pixtral and not clip,
        class_token=clip,
        first_norm=pixtral or clip,
        final_norm=not pixtral,
        activation=vision.text("hidden_act", default=ACTIVATIONS[kind]),
        projector=(),
    )


def _attention(vision: ConfigFields, width: int, heads: int, *, biased: bool) -> Attention:
    if width % heads:
        vision.section.report("hidden_size", f"{width} is no multiple of {heads} heads", "check both numbers")
    dim = max(width // heads, 1)
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=dim,
        value_head_dim=dim,
        causal=False,
        qkv_bias=biased,
        out_bias=biased,
    )


def _pair(inputs: int, inner: int, outputs: int, *, bias: bool) -> tuple[Product, Product]:
    return (
        Product(inputs=inputs, outputs=inner, cut="whole", bias=bias),
        Product(inputs=inner, outputs=outputs, cut="whole", bias=bias),
    )


def _biased(config: ConfigFields, *, default: bool) -> bool:
    return config.flag("multimodal_projector_bias", default=default)


def _side(vision: ConfigFields, name: str, usual: int) -> int:
    """Return pixels of a side, which a config may write twice, as height and width."""
    value = vision.section.fields.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        vision = vision.over({**vision.section.fields, name: value[0]})
    return vision.size(name, most=MOST_SIDE) or usual


FAMILIES: Mapping[str, Callable[[ConfigFields, ConfigFields, int], Tower | None]] = MappingProxyType(
    {
        "llava": _llava,
        "llava_next": _llava_next,
        "llava_onevision": _llava_next,
        "internvl": _internvl,
        "internvl_chat": _internvl,
        "paligemma": _paligemma,
        "glm4v": _glm4v,
        "glm46v": _glm4v,
        "glm4v_moe": _glm4v,
        "lighton_ocr": _mistral3,
        "llama4": _llama4,
        "gemma3": _gemma3,
        "gemma4": _gemma4,
        "mistral3": _mistral3,
        "mllama": mllama_tower,
        "qwen2_vl": _qwen2,
        "qwen2_5_vl": _qwen2_5,
        "qwen2_5_omni_thinker": _qwen2_5,
        "qwen3_omni_moe_thinker": _qwen3,
        "qwen3_vl": _qwen3,
        "qwen3_vl_moe": _qwen3,
        "qwen3_5": _qwen3,
        "qwen3_5_moe": _qwen3,
        "idefics3": _idefics3,
        "smolvlm": _idefics3,
    }
)
ACTIVATIONS = {
    "clip_vision_model": "quick_gelu", "siglip_vision_model": "gelu_pytorch_tanh", "pixtral": "gelu",
    "idefics3_vision": "gelu_pytorch_tanh", "smolvlm_vision": "gelu_pytorch_tanh",
}  # fmt: skip
IDEFICS3 = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip
ENCODERS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "clip_vision_model": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "image_size": 224, "patch_size": 32,
        },
        "siglip_vision_model": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "image_size": 224, "patch_size": 16,
        },
        "idefics3_vision": IDEFICS3,
        "smolvlm_vision": IDEFICS3,
        "pixtral": {
            "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
            "image_size": 1024, "patch_size": 16,
        },
    }
)  # fmt: skip
