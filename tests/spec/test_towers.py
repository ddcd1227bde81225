"""Towers of multimodal models: weights and FLOPs against Hugging Face transformers, and the images of a job.

`transformers_towers.json` is made by `count_towers_with_transformers.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nightly import nightly

from shardwright import Job, SpecError, load_model, make_job
from shardwright.cost.compute.flops import image_flops, job_flops
from shardwright.cost.compute.operators import Shard
from shardwright.cost.memory.activations import tower_kept_bytes
from shardwright.plans.check import position_problems
from shardwright.reports.text.question import model_line
from shardwright.spec.images import images_of, taken_of, tower_parameters
from shardwright.spec.model import Model, Tower
from shardwright.spec.read.huggingface import TEXT_ALONE, model_of_config
from shardwright.spec.read.huggingface_config import config_of_model

DATA = json.loads(Path(__file__).with_name("transformers_towers.json").read_text(encoding="utf-8"))
ROWS = DATA["models"]
ONES, NO = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)
ONE = Shard(
    tp=ONES, cp=ONES, ep=ONES, etp=ONES, micro_batch=ONES, sequence_parallel=NO, flash=~NO, overlap_tp=NO
)  # fmt: skip
QWEN = "qwen2.5-vl-7b"


def label(row: dict[str, Any]) -> str:
    return str(row["given"]["model_type"])


def job(**more: Any) -> Job:
    return make_job(global_batch=8, seq_len=4096, framework="fsdp", **more)


def seeing(tower: Tower) -> Job:
    """Return a job with the image that was counted; an encoder of one size has it scaled to that."""
    return job(image_size=DATA["image"] if tower.tiling or not tower.image else None)


@pytest.mark.parametrize("row", ROWS, ids=label)
@pytest.mark.parametrize("form", ["given", "config"])
def test_parts_have_as_many_weights_as_in_transformers(row: dict[str, Any], form: str) -> None:
    model = model_of_config(row[form], "config.json")
    assert model.tower is not None
    assert model.tower.encoder_parameters == row["encoder"]
    assert model.tower.projector_parameters == row["projector"]
    assert model.parameters == row["parameters"]
    assert model.assumed == ()


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_an_image_has_as_many_flops_as_pytorch_counts(row: dict[str, Any]) -> None:
    tower = model_of_config(row["given"], "config.json").tower
    assert tower is not None
    images = taken_of(tower, seeing(tower))
    assert images.count * sum(image_flops(tower, images)) == row["flops"]


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_layer_keeps_as_much_as_pytorch_saves(row: dict[str, Any]) -> None:
    tower = model_of_config(row["given"], "config.json").tower
    assert tower is not None
    asked = seeing(tower)
    more = replace(tower, depth=tower.depth + 1, whole=None)
    fewer = replace(tower, whole=None)
    kept, less = (float(tower_kept_bytes(depth, ONE, asked)[0][0]) for depth in (more, fewer))
    assert kept - less == pytest.approx(row["kept"], rel=0.03)


@pytest.mark.parametrize(
    ("name", "asked", "pixels", "tokens"),
    [
        ("llava-1.5-7b", {}, (336, 336), 576),  # image_seq_length of its config
        ("llava-v1.6-mistral-7b", {"image_size": 672}, (672, 672), 2928),
        ("internvl3-8b", {"image_size": 448}, (448, 448), 256),
        ("internvl3-8b", {"image_size": "1344x896"}, (896, 1344), 7 * 256),
        ("smolvlm-2b", {"image_size": "768x384"}, (384, 768), 9 * 81),
        ("gemma-3-27b-vision", {}, (896, 896), 256),  # mm_tokens_per_image
        ("gemma-4-31b-vision", {"image_size": "448x224"}, (528, 1104), 253),
        (QWEN, {}, (980, 980), 1225),
        (QWEN, {"image_size": 1204}, (1204, 1204), 1849),
        (QWEN, {"image_size": "1280x720"}, (728, 1288), 1196),
        (QWEN, {"image_size": 1}, (28, 28), 1),
        ("qwen3-vl-8b", {"image_size": "640x320"}, (320, 640), 200),
        ("mistral-small-3.1-24b", {"image_size": 1540}, (1540, 1540), 3025),
    ],
)
def test_images_of_a_sequence(name: str, asked: dict[str, Any], pixels: tuple[int, int], tokens: int) -> None:
    tower = load_model(name).tower
    assert tower is not None
    images = images_of(tower, job(images_per_sequence=3, **asked))
    assert (images.height, images.width, images.tokens, images.all_tokens) == (*pixels, tokens, 3 * tokens)


# Towers as families publish them: llava-v1.6-mistral-7b, llava-onevision-qwen2-7b, InternVL3, Idefics3-8B-Llama3 and
# Llama-4-Scout.
TILED: dict[str, dict[str, Any]] = {
    "llava_next": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
    "llava_onevision": {
        "model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14, "vision_use_head": False,
    },
    "internvl": {"model_type": "internvl_vision"},
    "idefics3": {"model_type": "idefics3_vision", "image_size": 364, "patch_size": 14},
    "gemma4": {"model_type": "gemma4_vision"},
    "llama4": {
        "model_type": "llama4_vision_model", "image_size": 336, "patch_size": 14, "hidden_size": 1408,
        "vision_output_dim": 4096,
    },
}  # fmt: skip


@pytest.mark.parametrize("model_type", TILED)
def test_an_image_has_the_tiles_and_tokens_of_the_processor(model_type: str) -> None:
    text = {**ROWS[0]["given"]["text_config"], "model_type": "llama"}
    given = {"model_type": model_type, "text_config": text, "vision_config": TILED[model_type]}
    tower = model_of_config(given, "config.json").tower
    assert tower is not None
    for row in (row for row in DATA["tiles"] if row["model_type"] == model_type):
        height, width = row["size"]
        images = images_of(tower, job(image_size=f"{width}x{height}"))
        assert (images.tiles, images.tokens) == (row["tiles"], row["tokens"]), row["size"]


def problems(model: Model, asked: Job) -> list[tuple[str, str]]:
    return [(problem.path, problem.message) for problem in position_problems(model, asked)]


def test_images_that_a_model_cannot_take() -> None:
    qwen, llava, text = load_model(QWEN), load_model("llava-1.5-7b"), load_model("qwen2.5-7b")
    assert problems(qwen, job(images_per_sequence=3)) == []
    (path, words), *rest = problems(qwen, job(images_per_sequence=4))
    assert (path, rest) == ("`seq_len=`", [])
    assert "4,900 tokens" in words
    assert problems(llava, job(image_size=336)) == []
    assert problems(llava, job(image_size=448))[0][0] == "`image_size=`"
    for asked in ({"images_per_sequence": 1}, {"image_size": 448}, {"freeze": "vision"}):
        assert [path for path, _ in problems(text, job(**asked))] == [f"`{name}=`" for name in asked]


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"images_per_sequence": 0}, "images_per_sequence"),
        ({"image_size": "12by7"}, "image_size"),
        ({"image_size": 0}, "image_size"),
        ({"freeze": "tower"}, "freeze"),
    ],
)
def test_what_is_no_image_and_no_part(asked: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(**asked)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_frozen_parts_are_not_trained() -> None:
    model = load_model(QWEN)
    assert model.tower is not None
    encoder, projector = model.tower.encoder_parameters, model.tower.projector_parameters
    assert tower_parameters(model, job()) == (encoder + projector, 0)
    assert tower_parameters(model, job(freeze="vision")) == (projector, encoder)
    assert tower_parameters(model, job(freeze="projector+vision")) == (0, encoder + projector)
    assert tower_parameters(model, job(adapter="lora:8")) == (0, encoder + projector)
    assert tower_parameters(load_model("qwen2.5-7b"), job()) == (0, 0)


def test_flops_of_an_iteration_have_those_of_the_images() -> None:
    model, text = load_model(QWEN), load_model("qwen2.5-7b")
    assert model.tower is not None
    images = taken_of(model.tower, job())
    encoder, projector = image_flops(model.tower, images)
    patches = 2.0 * images.positions * model.tower.patch_values * model.tower.hidden  # pixels have no gradients
    merged = 2.0 * images.tokens * model.tower.projector[0].weights
    language, whole = job_flops(text, job()), 3 * (encoder + projector) - patches
    assert job_flops(model, job()) == pytest.approx(language + 8 * whole)
    assert job_flops(model, job(images_per_sequence=2)) == pytest.approx(language + 16 * whole)
    assert job_flops(model, job(freeze="vision")) == pytest.approx(language + 8 * (encoder + 3 * projector - merged))
    assert job_flops(model, job(freeze="vision+projector")) == pytest.approx(language + 8 * (encoder + projector))


def test_the_authors_config_of_internvl_is_that_of_transformers() -> None:
    """`internvl_chat`, the remote code of OpenGVLab/InternVL3-8B, beside `internvl` of InternVL3-8B-hf."""
    text = {**ROWS[0]["given"]["text_config"], "model_type": "qwen2", "tie_word_embeddings": False}
    sizes = {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56,
        "patch_size": 14,
    }  # fmt: skip
    ours = {**sizes, "model_type": "internvl_vision", "attention_bias": True}
    theirs = {
        **sizes, "model_type": "intern_vit_6b", "qkv_bias": True, "qk_normalization": False, "norm_type": "layer_norm",
    }  # fmt: skip
    authors = {
        "model_type": "internvl_chat", "llm_config": text, "vision_config": theirs, "downsample_ratio": 0.5,
        "dynamic_image_size": True, "use_thumbnail": True, "min_dynamic_patch": 1, "max_dynamic_patch": 12,
    }  # fmt: skip
    towers = [
        model_of_config(config, "config.json").tower
        for config in ({"model_type": "internvl", "text_config": text, "vision_config": ours}, authors)
    ]
    assert towers[0] == towers[1]
    untiled = model_of_config({**authors, "dynamic_image_size": False}, "config.json").tower
    assert untiled is not None
    assert images_of(untiled, job()).tokens == 4


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"image_grid_pinpoints": [[336, 500]]}, "image_grid_pinpoints"),
        ({"image_grid_pinpoints": [3]}, "image_grid_pinpoints"),
    ],
)
def test_grids_that_are_no_tiles_are_refused(change: dict[str, Any], field: str) -> None:
    given = {"model_type": "llava_next", "text_config": ROWS[0]["given"]["text_config"], **change}
    with pytest.raises(SpecError) as caught:
        model_of_config({**given, "vision_config": TILED["llava_next"]}, "config.json")
    assert [problem.path.rsplit(": ", 1)[-1] for problem in caught.value.problems] == [field]


SMOL = {"model_type": "smolvlm", "vision_config": {**TILED["idefics3"], "model_type": "smolvlm_vision"}}
FOUR = {"model_type": "llama4", "vision_config": TILED["llama4"]}
NESTED = {"image_processor": {"size": {"longest_edge": 728}, "max_image_size": {"longest_edge": 364}}}


@pytest.mark.parametrize(
    ("config", "file", "said", "tiles"),
    [
        (SMOL, "preprocessor_config.json", {}, 17),
        (SMOL, "preprocessor_config.json", NESTED["image_processor"], 5),
        (SMOL, "processor_config.json", NESTED, 5),
        (SMOL, "preprocessor_config.json", {"do_image_splitting": False}, 1),
        (FOUR, "preprocessor_config.json", {"max_patches": 4}, 5),
        (FOUR, "tokenizer_config.json", {"max_patches": 4}, 10),
    ],
)
def test_the_file_of_the_image_processor_says_how_images_are_cut(
    config: dict[str, Any], file: str, said: dict[str, Any], tiles: int, tmp_path: Path
) -> None:
    text = {**ROWS[0]["given"]["text_config"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text}))
    (tmp_path / file).write_text(json.dumps(said))
    tower = load_model(tmp_path).tower
    assert tower is not None
    assert images_of(tower, job(image_size=1000)).tiles == tiles


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"size": {"longest_edge": 1000}}, "size"),
        ({"max_image_size": {"longest_edge": 512}}, "max_image_size"),
        ({"size": {"longest_edge": "wide"}}, "longest_edge"),
    ],
)
def test_tiles_that_an_encoder_does_not_take_are_refused(said: dict[str, Any], field: str, tmp_path: Path) -> None:
    text = {**ROWS[0]["given"]["text_config"], "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps({**SMOL, "text_config": text}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(SpecError, match=field):
        load_model(tmp_path)


@pytest.mark.parametrize("row", DATA["texts"], ids=lambda row: row["config"]["model_type"])
def test_a_text_model_without_its_tower_has_as_many_weights_as_in_transformers(row: dict[str, Any]) -> None:
    model = model_of_config(row["config"], "config.json")
    assert model.tower is None and model.assumed[0] == TEXT_ALONE
    assert model.parameters == row["parameters"]


def test_the_outer_word_says_whether_the_output_is_tied() -> None:
    text = {**ROWS[0]["given"]["text_config"], "tie_word_embeddings": False}
    given = {"model_type": "janus", "text_config": text, "vision_config": {"model_type": "janus_vision_model"}}
    assert not model_of_config(given, "config.json").tied_embeddings
    assert model_of_config({**given, "tie_word_embeddings": True}, "config.json").tied_embeddings


def test_a_text_config_that_says_little_has_the_sizes_of_its_class() -> None:
    """llava-hf/llava-1.5-7b-hf leaves out what LlamaConfig assumes."""
    short = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
    }  # fmt: skip
    model = model_of_config({"model_type": "llava", "text_config": short, "vision_config": vision}, "config.json")
    assert model.parameters == load_model("llava-1.5-7b").parameters


def test_of_phi_4_multimodal_the_text_model_is_read() -> None:
    """Which is that of Phi-4-mini (arXiv 2503.01743 §2)."""
    sizes = {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 24, "num_key_value_heads": 8, "tie_word_embeddings": True,
    }  # fmt: skip
    towers = {"vision_config": {"hidden_size": 1152}, "audio_config": {"hidden_size": 1024}}
    model = model_of_config({"model_type": "phi4_multimodal", **sizes, **towers}, "config.json")
    assert (model.parameters, model.assumed) == (3_836_021_760, (TEXT_ALONE,))


def test_an_unknown_tower_leaves_the_text_model() -> None:
    text = next(row for row in ROWS if label(row) == "llava")["given"]["text_config"]
    for vision in ({"model_type": "dinov2"}, {"model_type": "siglip_vision_model"}):  # the latter with a pooling head
        model = model_of_config({"model_type": "llava", "text_config": text, "vision_config": vision}, "config.json")
        assert model.tower is None
        assert model.assumed == (TEXT_ALONE,) and "the text model alone" in model_line(model)


@pytest.mark.parametrize(
    ("vision", "place"),
    [
        ({"hidden_size": 50}, "hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"image_size": 70}, "mm_tokens_per_image"),
    ],
)
def test_a_tower_that_makes_no_sense(vision: dict[str, Any], place: str) -> None:
    given = next(row for row in ROWS if label(row) == "gemma3")["given"]
    with pytest.raises(SpecError) as caught:
        model_of_config({**given, "vision_config": {**given["vision_config"], **vision}}, "config.json")
    assert any(place in problem.path for problem in caught.value.problems)


def test_no_config_is_written_of_a_model_with_a_tower() -> None:
    with pytest.raises(SpecError, match="tower"):
        config_of_model(load_model(QWEN))


def kinds_that_see() -> list[str]:
    """Return the model types that transformers makes text of images with."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    return sorted(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


@pytest.mark.parametrize("part", [0, *nightly(range(1, 8))])
def test_no_tower_is_left_out_without_a_word(part: int) -> None:
    """Every model type that sees images has its tower, is refused, or says on the screen that it is the text alone."""
    mapping, seen = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING, 0
    for name in kinds_that_see()[part::8]:
        try:
            model = model_of_config(mapping[name]().to_dict(), name)
        except SpecError:
            continue
        seen += 1
        assert model.towers or "the text model alone" in model_line(model), name
    assert seen
