"""Counts weights and FLOPs of multimodal models with Hugging Face transformers, and writes `transformers_towers.json`
beside this file.

Run by hand where transformers and torch are installed, after a release of transformers or a new case:

    python -m tests.spec.count_towers_with_transformers

Parameters are counted on the meta device; an image goes through the tower of a small model on the CPU. Tiles are counted
by the image processors.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.spec.count_with_transformers import BOILERPLATE, balancing, written

from shardwright.errors import SpecError
from shardwright.spec.read.config_fields import ConfigFields
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.towers import tower_of

OUT = Path(__file__).with_name("transformers_towers.json")
HEIGHT, WIDTH = 224, 448
PROJECTORS = (
    "multi_modal_projector", "connector", "visual.merger", "visual.deepstack_merger_list", "visual.downsample",
    "vision_projection", "image_newline", "vision_adapter",
    "embed_vision",
)  # fmt: skip
TOWERS = ("visual.", "vision_tower", "vision_model", "vision_encoder")
SPOKEN = ("language_model", "lm_head", "text_model")
ONE_SIZE = (
    "clip_vision_model",
    "siglip_vision_model",
    "idefics3_vision",
    "smolvlm_vision",
    "internvl_vision",
    "llama4_vision_model",
    "mllama_vision_model",
)
TILES = {
    "llama4": 16,
    "internvl": 9,
    "idefics3": 9,
    "smolvlm": 9,
    "llava_next": 3,
    "llava_onevision": 9,
}  # of an image of that size
SIZES = (
    (336, 336), (64, 64), (224, 448), (980, 980), (1000, 500), (500, 1000), (720, 1280), (1280, 720), (3000, 400),
    (400, 3000), (1537, 1023), (2304, 2304), (847, 613), (333, 777),
)  # fmt: skip
TEXT: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 12}
MULTIMODAL = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
SECTIONS = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}}
QWEN: dict[str, Any] = {"depth": 3, "hidden_size": 48, "num_heads": 4, "out_hidden_size": 64, "intermediate_size": 100}
DEEP = {**QWEN, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
GLM_EXPERTS = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip
DELTA = {
    "head_dim": 16, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llava", {
        "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {**VISION, "model_type": "clip_vision_model"},
    }),
    ("llava", {
        "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": SIGLIP, "multimodal_projector_bias": False,
        "vision_feature_select_strategy": "full",
    }),
    ("llava", {
        "text_config": {**TEXT, "model_type": "mistral"}, "vision_config": PIXTRAL, "vision_feature_layer": [-1, -2],
        "vision_feature_select_strategy": "full",
    }),
    ("gemma3", {
        "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32},
        "vision_config": SIGLIP, "mm_tokens_per_image": 4,
    }),
    ("gemma4", {
        "text_config": {
            **TEXT, "model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 16, "sliding_window": 32,
            "hidden_size_per_layer_input": 0,
        },
        "vision_config": {
            "model_type": "gemma4_vision", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 100,
        },
    }),
    ("llava_next", {
        "text_config": {**TEXT, "model_type": "mistral"}, "vision_config": {**VISION, "model_type": "clip_vision_model"},
        "image_grid_pinpoints": [[56, 112], [112, 56]],
    }),
    ("llava_onevision", {
        "text_config": {**TEXT, "model_type": "qwen2", "tie_word_embeddings": True}, "vision_config": SIGLIP,
        "image_grid_pinpoints": [[56, 112], [112, 224]], "vision_aspect_ratio": "anyres_max_4",
    }),
    ("internvl", {
        "text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": {**VISION, "model_type": "internvl_vision"},
        "tie_word_embeddings": True,
    }),
    ("internvl", {
        "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8}, "tie_word_embeddings": False,
        "vision_config": {
            **VISION, "model_type": "internvl_vision", "attention_bias": True, "use_qk_norm": True,
            "norm_type": "rms_norm",
        },
    }),
    ("llama4", {
        "text_config": {
            **TEXT, "model_type": "llama4_text", "head_dim": 8, "intermediate_size_mlp": 172, "num_local_experts": 4,
            "interleave_moe_layer_step": 1, "num_experts_per_tok": 1,
        },
        "vision_config": {
            **VISION, "model_type": "llama4_vision_model", "intermediate_size": 192, "projector_input_dim": 40,
            "projector_output_dim": 40, "vision_output_dim": 40,
        },
    }),
    ("paligemma", {
        "text_config": {**TEXT, "model_type": "gemma", "head_dim": 16}, "projection_dim": 64,
        "vision_config": {**SIGLIP, "projection_dim": 64}, "hidden_size": 64,
    }),
    ("lighton_ocr", {
        "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 8}, "vision_config": PIXTRAL,
        "tie_word_embeddings": False,
    }),
    ("glm4v", {"text_config": {**TEXT, **SECTIONS, "model_type": "glm4v_text"}, "vision_config": {
        **QWEN, "model_type": "glm4v_vision", "image_size": 56,
    }}),
    ("glm4v_moe", {
        "text_config": {**TEXT, **SECTIONS, **GLM_EXPERTS, "model_type": "glm4v_moe_text", "head_dim": 8},
        "vision_config": {**QWEN, "model_type": "glm4v_moe_vision", "image_size": 56, "attention_bias": True},
    }),
    ("qwen3_5", {
        "text_config": {**TEXT, **DELTA, "model_type": "qwen3_5_text"},
        "vision_config": {**QWEN, "model_type": "qwen3_5_vision", "num_position_embeddings": 16},
    }),
    ("qwen3_5_moe", {
        "text_config": {
            **TEXT, **DELTA, **EXPERTS, "model_type": "qwen3_5_moe_text", "shared_expert_intermediate_size": 48,
        },
        "vision_config": {**QWEN, "model_type": "qwen3_5_moe_vision", "num_position_embeddings": 16},
    }),
    ("mistral3", {
        "text_config": {**TEXT, "model_type": "mistral", "head_dim": 8}, "vision_config": PIXTRAL,
        "tie_word_embeddings": False,
    }),
    ("mllama", {
        "text_config": {
            **TEXT, "model_type": "mllama_text_model", "cross_attention_layers": [1], "pad_token_id": 0,
        },
        "vision_config": {
            **VISION, "model_type": "mllama_vision_model", "num_global_layers": 2, "vision_output_dim": 144,
            "intermediate_layers_indices": [0, 2],
        },
    }),
    ("idefics3", {
        "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {**VISION, "model_type": "idefics3_vision"},
        "scale_factor": 2, "pad_token_id": 0,
    }),
    ("smolvlm", {
        "text_config": {**TEXT, "model_type": "llama"}, "vision_config": {**VISION, "model_type": "smolvlm_vision"},
        "scale_factor": 4, "tie_word_embeddings": True, "pad_token_id": 0,
    }),
    ("qwen2_vl", {**TEXT, **MULTIMODAL, "vision_config": {
        "model_type": "qwen2_vl", "depth": 3, "embed_dim": 48, "num_heads": 4, "hidden_size": 64,
    }}),
    ("qwen2_5_vl", {**TEXT, **MULTIMODAL, "vision_config": {
        **QWEN, "model_type": "qwen2_5_vl", "fullatt_block_indexes": [1],
    }}),
    ("qwen2_5_vl", {**TEXT, **MULTIMODAL, "tie_word_embeddings": True, "vision_config": {
        **QWEN, "model_type": "qwen2_5_vl", "window_size": 56, "fullatt_block_indexes": [0, 2],
    }}),
    ("qwen3_vl", {
        "text_config": {**TEXT, **SECTIONS, "model_type": "qwen3_vl_text", "head_dim": 8},
        "vision_config": {**DEEP, "model_type": "qwen3_vl"},
    }),
    ("qwen3_vl_moe", {
        "text_config": {**TEXT, **SECTIONS, **EXPERTS, "model_type": "qwen3_vl_moe_text", "head_dim": 8},
        "vision_config": {**DEEP, "model_type": "qwen3_vl_moe"},
    }),
)  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    """Yield what transformers counts of each case."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    for model_type, given in CASES:
        config = AutoConfig.for_model(model_type, **copy.deepcopy(given))
        with torch.device("meta"):
            empty = AutoModelForImageTextToText.from_config(config)

        def total(of: Callable[[str], bool], model: Any = empty) -> int:
            return sum(parameter.numel() for name, parameter in model.named_parameters() if of(name))

        projector = total(lambda name: any(part in name for part in PROJECTORS))
        seen = total(lambda name: any(part in name for part in TOWERS + PROJECTORS))
        yield {
            "given": {"model_type": model_type, **given},
            "config": json.loads(json.dumps(written(config))),
            "encoder": seen - projector,
            "projector": projector,
            "parameters": total(lambda name: True) + balancing(empty),
            "kept": _kept_of_a_layer(model_type, given),
            "flops": _image_flops(AutoModelForImageTextToText.from_config(config, attn_implementation="eager")),
        }


def _kept_of_a_layer(model_type: str, given: dict[str, Any]) -> int:
    """Return the bytes in bf16 that one more layer of the encoder saves of an image for its backward pass."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    saved = []
    for depth in (3, 4):
        config = AutoConfig.for_model(model_type, **copy.deepcopy(given))
        vision = config.vision_config
        setattr(vision, "depth" if hasattr(vision, "depth") else "num_hidden_layers", depth)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        saved.append(saved_bytes(model, partial(_see, model.train())))
    return saved[1] - saved[0]


def _image_flops(model: Any) -> int:
    """Return what PyTorch counts of an image through encoder and projector."""
    return counted_flops(partial(_see, model))


def _see(model: Any) -> None:
    """Take an image through encoder and projector, scaled to their size where they have one."""
    import torch

    vision = model.config.vision_config
    fixed = vision.model_type in ONE_SIZE
    height, width = (vision.image_size,) * 2 if fixed else (HEIGHT, WIDTH)
    if isinstance(height, list | tuple):
        height, width = height
    if vision.model_type == "gemma4_vision":
        _see_padded(model, rows=11 * 3, columns=23 * 3)  # an image of such a shape, in 280 squares
    elif "qwen" in vision.model_type or "glm4v" in vision.model_type:
        square = vision.patch_size * vision.spatial_merge_size
        sides = [round(side / square) * square // vision.patch_size for side in (height, width)]
        numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels = torch.zeros(sides[0] * sides[1], numbers, dtype=model.dtype)
        model.model.visual(pixels, grid_thw=torch.tensor([[1, *sides]]))
    else:
        kind = model.config.model_type
        anyres = kind in ("llava_next", "llava_onevision")
        more = {} if fixed else {"image_sizes": torch.tensor([[height, width]])}
        more |= {"image_sizes": torch.tensor([[HEIGHT, WIDTH]])} if anyres else {}
        nested = anyres or kind in ("idefics3", "smolvlm")  # tiles of images; an empty one is left out
        samples = (1,) * nested + (TILES.get(kind, 1),)
        pixels = torch.ones(*samples, 3, height, width, dtype=model.dtype)
        if kind == "mllama":
            tiles = {"aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long), "aspect_ratio_mask": torch.ones(1, 1, 4)}
            seen = model.model.vision_model(pixels.expand(1, 1, 4, *pixels.shape[1:]), **tiles)
            model.model.multi_modal_projector(seen.last_hidden_state)
        elif kind == "llama4":
            model.multi_modal_projector(model.vision_model(pixels).last_hidden_state)
        else:
            model.model.get_image_features(pixels, **more)


def _see_padded(model: Any, rows: int, columns: int) -> None:
    import torch

    places = torch.full((1, 280 * 9, 2), -1)
    places[0, : rows * columns] = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).flip(1)
    pixels = torch.zeros(1, 280 * 9, 3 * model.config.vision_config.patch_size**2, dtype=model.dtype)
    model.model.get_image_features(pixels, places)


def tiles() -> Iterator[dict[str, Any]]:
    """Yield tiles and tokens of images in the sizes that families publish, as their processors count them."""
    from types import SimpleNamespace

    import torch
    from transformers import AutoConfig
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

    families = (("llava_next", LlavaNextProcessor, 336), ("llava_onevision", LlavaOnevisionProcessor, 384))
    for model_type, processor, side in families:
        config, across = AutoConfig.for_model(model_type), side // 14
        this: Any = SimpleNamespace(
            image_processor=config, patch_size=14, num_image_tokens=across * across, num_additional_image_tokens=0,
            vision_aspect_ratio="anyres_max_9",
        )  # fmt: skip
        this._get_unpadded_features = partial(processor._get_unpadded_features, this)
        for height, width in SIZES:
            samples = image_size_to_num_patches([height, width], config.image_grid_pinpoints, side)
            tokens = processor._get_number_of_features(this, height, width, side, side)
            yield {"model_type": model_type, "size": [height, width], "tiles": samples, "tokens": tokens}
    canvas = functions_of("transformers.models.got_ocr2.image_processing_got_ocr2")["get_optimal_tiled_canvas"]
    splits = functions_of("transformers.models.idefics3.image_processing_idefics3")["get_number_of_image_patches"]
    ours = functions_of("transformers.models.llama4.image_processing_llama4")
    fits, resolutions = ours["get_best_fit"], ours["find_supported_resolutions"]
    grids = torch.tensor(resolutions(16, SimpleNamespace(height=336, width=336)))
    scaled = functions_of("transformers.models.gemma4.image_processing_gemma4")["get_aspect_ratio_preserving_size"]
    for height, width in SIZES:
        tokens = math.prod(side // 48 for side in scaled(height, width, 16, 280 * 9, 3))
        yield {"model_type": "gemma4", "size": [height, width], "tiles": 1, "tokens": tokens}
    this = SimpleNamespace(do_image_splitting=True, max_image_size={"longest_edge": 364}, size={"longest_edge": 1456})
    for height, width in SIZES:
        columns, rows = canvas((height, width), (448, 448), 1, 12)
        samples = rows * columns + (rows * columns > 1)
        yield {"model_type": "internvl", "size": [height, width], "tiles": samples, "tokens": 256 * samples}
        fitting = fits((height, width), grids)
        samples = math.prod((int(fitting[0]) // 336, int(fitting[1]) // 336))
        samples += samples > 1
        yield {"model_type": "llama4", "size": [height, width], "tiles": samples, "tokens": 144 * samples}
        samples = splits(this, height, width)[0]
        yield {"model_type": "idefics3", "size": [height, width], "tiles": samples, "tokens": 169 * samples}


def texts() -> Iterator[dict[str, Any]]:
    """Yield the weights of the text model of each multimodal default configuration that is read without its tower."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    for model_type in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        try:
            config = transformers.CONFIG_MAPPING[model_type]()
            said = written(config)
            outer = {key: said[key] for key in ("model_type", "tie_word_embeddings", "text_config") if key in said}
            given = {**outer, "text_config": _without_boilerplate(said["text_config"])}
            if model_of_config(given, model_type).tower is not None or tower_of(ConfigFields.of(said, ""), 1):
                continue
            with torch.device("meta"):
                empty = transformers.AutoModelForImageTextToText.from_config(config)
        except (AttributeError, ImportError, KeyError, SpecError, TypeError, ValueError):
            continue  # refused here, or a default that its own code rejects
        weights = (weight.numel() for name, weight in empty.named_parameters() if any(part in name for part in SPOKEN))
        yield {"config": given, "parameters": sum(weights) + balancing(empty)}


def _without_boilerplate(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in BOILERPLATE and value is not None}


def functions_of(module: str) -> dict[str, Any]:
    """Return functions and methods of an image processor's module, without torchvision, which importing it takes."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not installed"
    tree, kept = ast.parse(Path(spec.origin).read_text(encoding="utf-8")), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            kept.append(node)
    names: dict[str, Any] = {"math": math, "MAX_IMAGE_SIZE": 4096, "defaultdict": defaultdict}
    with suppress(ImportError):
        names["torch"] = importlib.import_module("torch")
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(body=[*future, *kept], type_ignores=[]), spec.origin, "exec"), names)
    return names


def main() -> None:
    import transformers

    lines, tiled, spoken = (",\n".join("  " + json.dumps(row) for row in kind) for kind in (rows(), tiles(), texts()))
    head = f'"transformers": "{transformers.__version__}", "image": "{WIDTH}x{HEIGHT}"'
    lists = f'"models": [\n{lines}\n], "tiles": [\n{tiled}\n], "texts": [\n{spoken}\n]'
    OUT.write_text(f"{{{head}, {lists}}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
