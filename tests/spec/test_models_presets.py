"""The presets added to those of `test_model_counts`: published counts, names, and what a plan file makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.errors import Problem
from shardwright.plans.codec import decode, encode
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.model import load_model
from shardwright.spec.read.presets import FORMATS, _plain, _presets, find_preset, preset_model, preset_names

# Totals of the safetensors files on the models' Hugging Face pages; Pythia's as in the README of EleutherAI/pythia.
EXACT = {
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-large-123b": 122_610_069_504,
    "mixtral-8x22b-instruct": 140_630_071_296,
    "qwen2-0.5b": 494_032_768,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-3b": 3_085_938_688,
    "gemma-2b": 2_506_172_416,
    "phi-4": 14_659_507_200,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "bloom-560m": 559_214_592,
    "bloom-7.1b": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "starcoder2-15b": 15_957_889_024,
    "chatglm3-6b": 6_243_584_000,
    "glm-4-32b": 32_566_081_536,
}
# In billions, to the digits that arXiv 2104.04473 table 1 and the models' reports print.
ROUNDED = {
    "gpt-1.7b": 1.7, "gpt-3.6b": 3.6, "gpt-7.5b": 7.5, "gpt-18b": 18.4, "gpt-39b": 39.1, "gpt-76b": 76.1,
    "gpt-145b": 145.6, "gpt-310b": 310.1, "gpt-530b": 529.6, "gpt-1t": 1008.0, "nemotron-4-340b": 341.0,
}  # fmt: skip
# Totals with SigLIP-400m and the projection into the text model.
GEMMA_3 = {"gemma-3-4b": 4_300_079_472, "gemma-3-12b": 12_187_325_040, "gemma-3-27b": 27_432_406_640}
SIGLIP_PARAMETERS, SIGLIP_WIDTH = 416_866_032, 1152
# Falcon's files hold the output projection although it is tied to the embedding.
FALCON = {"falcon-7b": 7_217_189_760, "falcon-180b": 179_522_565_120}


@pytest.mark.parametrize(("name", "published"), EXACT.items())
def test_count_is_the_published_one(name: str, published: int) -> None:
    assert load_model(name).parameters == published


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_count_rounds_to_the_published_one(name: str, billions: float) -> None:
    assert abs(load_model(name).parameters / 1e9 - billions) <= 0.0501


@pytest.mark.parametrize(("name", "published"), GEMMA_3.items())
def test_text_model_of_gemma_3(name: str, published: int) -> None:
    model = load_model(name)
    projection = SIGLIP_WIDTH * model.hidden + SIGLIP_WIDTH
    assert model.parameters + SIGLIP_PARAMETERS + projection == published


@pytest.mark.parametrize(("name", "published"), FALCON.items())
def test_falcon_with_its_projection_stored_twice(name: str, published: int) -> None:
    model = load_model(name)
    assert model.parameters + model.vocab * model.hidden == published


def test_bert_for_pre_training() -> None:
    """The checkpoint of bert-large-uncased has the heads of both objectives."""
    config = {**_presets()["bert-large"]["config"], "architectures": ["BertForPreTraining"]}
    assert model_of_config(config, "config.json").parameters == 336_226_108


@pytest.mark.parametrize("name", preset_names())
def test_a_plan_file_keeps_every_preset(name: str) -> None:
    model, problems = load_model(name), list[Problem]()
    written = json.loads(json.dumps(encode(model, Model)))
    assert decode(written, Model, "model", problems) == model
    assert problems == []


def test_the_narrow_embedding_of_opt_350m() -> None:
    model = load_model("opt-350m")
    assert model.embedding_width == 512
    assert model.extra_parameters == 0
    assert model.token_table_parameters == 50272 * 512


def test_no_two_presets_go_by_one_name() -> None:
    known = [
        (_plain(name, FORMATS), preset)
        for preset, entry in _presets().items()
        for name in {_plain(name, FORMATS) for name in (preset, *entry.get("also", ()))}
    ]
    assert len({name for name, _ in known}) == len(known)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama2-70B", "llama-2-70b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama_3_70b", "llama-3-70b"),
        ("Llama-3.3-70B", "llama-3.1-70b"),
        ("GPT-2", "gpt2"),
        ("gpt-175b", "gpt3-175b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("mistralai/Mixtral-8x22B-v0.1", "mixtral-8x22b"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-instruct"),
        ("Mistral-7B-Instruct-v0.1", "mistral-7b"),
        ("Mistral-7B-Instruct-v0.2x", None),
        ("mistralai/Mistral-7B-v0.3", "mistral-7b-v0.3"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("bert-large-uncased", "bert-large"),
        ("bigscience/bloom", "bloom-176b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("llama-3.18b", None),
        ("", None),
        ("-hf", None),
    ],
)
def test_published_names_find_their_preset(name: str, preset: str | None) -> None:
    assert find_preset(name) == preset


def test_a_folder_with_a_config_goes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**_presets()["gpt2"]["config"], "n_layer": 2}
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(load_model("gpt2").layers) == 12
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(config))
    assert len(load_model("gpt2").layers) == 2


WITHOUT_EPSILON = ("opt", "glm-130b")  # configs and papers that name none


def test_presets_say_the_epsilon_of_their_norms() -> None:
    """Trainers' own defaults are of another model by a constant: 1e-5 in Megatron-LM, 1e-6 in Qwen's configs."""
    silent = {name for name in preset_names() if preset_model(name).norm_epsilon is None}
    assert silent == {name for name in preset_names() if name.startswith(WITHOUT_EPSILON)}
