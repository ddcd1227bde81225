"""The presets added to those of `test_model_counts`: published counts, names, and what a plan file makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright import Model, load_model
from shardwright.errors import Problem
from shardwright.plans.codec import decode, encode
from shardwright.spec.read.huggingface import model_of_config
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
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-nano-12b-v2": 12_310_001_152,
    "nemotron-3-nano-30b-a3b": 31_577_940_288,
    "jamba-v0.1": 51_570_323_328,
    "granite-4.0-h-tiny": 6_939_037_248,
    "granite-4.0-h-micro": 3_191_396_096,
    "falcon-h1-0.5b": 521_411_104,
    "zamba2-1.2b": 1_215_064_704,
    "falcon-h1-34b": 33_642_516_224,
    "mamba-130m": 129_135_360,
    "mamba-370m": 371_516_416,
    "mamba-790m": 793_204_224,
    "mamba-1.4b": 1_372_178_432,
    "mamba-2.8b": 2_768_345_600,
    "mamba2-130m": 128_989_632,
    "mamba2-2.7b": 2_702_599_680,
    "mamba-codestral-7b": 7_285_403_648,
    "falcon-mamba-7b": 7_272_665_088,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "minimax-text-01": 456_089_655_296,
    "lfm2-350m": 354_483_968,
    "lfm2-700m": 742_489_344,
    "lfm2-1.2b": 1_170_340_608,
    "lfm2-2.6b": 2_569_272_320,
    "recurrentgemma-2b": 2_682_862_080,
    "rwkv-7-0.1b": 191_034_624,
    "rwkv-7-0.4b": 450_767_872,
    "rwkv-7-1.5b": 1_527_404_544,
    "rwkv-7-2.9b": 2_947_735_040,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "minimax-m2": 228_689_764_864,
    "olmo-3-7b": 7_298_011_136,
    "olmo-3-32b": 32_233_522_176,
    "olmo-2-13b": 13_716_198_400,
    "olmoe-1b-7b": 6_919_161_856,
    "smollm3-3b": 3_075_098_624,
    "seed-oss-36b": 36_151_104_512,
    "llava-1.5-7b": 7_063_427_072,
    "llava-v1.6-mistral-7b": 7_566_747_648,
    "internvl2.5-8b": 8_075_365_376,
    "internvl3-8b": 7_944_373_760,
    "internvl3-78b": 78_408_318_336,
    "glm-4.1v-9b": 10_292_777_472,
    "paligemma-3b-224": 2_923_466_480,
    "smolvlm-2b": 2_246_272_880,
    "llama-4-scout-vision": 108_641_793_536,
    "llama-4-maverick-vision": 401_583_781_376,
    "qwen2-audio-7b": 8_397_094_912,
    "voxtral-mini-3b": 4_676_271_104,
    "voxtral-small-24b": 24_261_800_960,
    "qwen2.5-omni-7b": 8_931_813_888,  # the thinker
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "gemma-3-4b-vision": 4_300_079_472,
    "gemma-3-12b-vision": 12_187_325_040,
    "gemma-3-27b-vision": 27_432_406_640,
    "mistral-small-3.1-24b": 24_011_361_280,
    "gemma-4-26b-a4b-vision": 25_805_936_206 - 30 - 2 * 1152,  # files hold numbers that are no weights, too
    "gemma-4-31b-vision": 31_273_088_876 - 60 - 2 * 1152,
}
# In billions, to the digits that arXiv 2104.04473 table 1 and the models' reports print.
ROUNDED = {
    "gpt-1.7b": 1.7, "gpt-3.6b": 3.6, "gpt-7.5b": 7.5, "gpt-18b": 18.4, "gpt-39b": 39.1, "gpt-76b": 76.1,
    "gpt-145b": 145.6, "gpt-310b": 310.1, "gpt-530b": 529.6, "gpt-1t": 1008.0, "nemotron-4-340b": 341.0,
    "nemotron-h-8b": 8.1, "nemotron-3-super-120b-a12b": 120.7, "jamba-1.5-large": 398.6, "granite-4.0-h-small": 32.2, "granite-4.0-h-1b": 1.5, "falcon-h1-7b": 7.6, "bamba-9b": 9.8, "mamba2-370m": 0.37, "mamba2-780m": 0.78, "mamba2-1.3b": 1.3, "kimi-linear-48b-a3b": 49.1, "recurrentgemma-9b": 8.6, "deepseek-v3.2": 671.9, "llama-4-scout": 107.8, "llama-4-maverick": 400.7,
    "gemma-4-26b-a4b": 25.2, "gemma-4-31b": 30.7, "zamba2-2.7b": 2.7, "zamba2-7b": 7.4,
}  # fmt: skip
# Named by whole billions; Qwen's with the layer of multi-token prediction, which no count here has.
WHOLE = {
    "qwen3.5-9b": 9, "qwen3.5-27b": 27, "qwen3.5-35b-a3b": 35, "qwen3.5-122b-a10b": 122, "qwen3.5-397b-a17b": 397, "olmo-hybrid-7b": 7, "glm-5": 744, "zamba-7b-v1": 7,
}  # fmt: skip
# In billions, what one token uses, where the names or reports of models say it.
ACTIVE = {
    "nemotron-3-nano-30b-a3b": 3.6, "nemotron-3-super-120b-a12b": 12.7, "jamba-v0.1": 12, "jamba-1.5-large": 94,
    "qwen3-next-80b-a3b": 3.9, "qwen3.5-397b-a17b": 17, "kimi-linear-48b-a3b": 3, "minimax-text-01": 46,
    "llama-4-scout": 17, "llama-4-maverick": 17, "granite-4.0-h-small": 9, "lfm2-8b-a1b": 1.5,
    "gemma-4-26b-a4b": 3.8,
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


@pytest.mark.parametrize(("name", "billions"), WHOLE.items())
def test_count_is_what_the_name_says(name: str, billions: float) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.01, abs=0.5)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_count_is_the_published_one(name: str, billions: float) -> None:
    """Reports differ in whether embeddings count."""
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.06, abs=0.5)


def test_lfm2_8b_without_its_balancing_biases() -> None:
    assert load_model("lfm2-8b-a1b").parameters - 22 * 32 == 8_339_929_856


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


WITHOUT_EPSILON = ("opt", "glm-130b", "bart", "mbart", "whisper")  # configs and papers that name none


def test_presets_say_the_epsilon_of_their_norms() -> None:
    """Trainers' own defaults are of another model by a constant: 1e-5 in Megatron-LM, 1e-6 in Qwen's configs."""
    silent = {name for name in preset_names() if preset_model(name).norm_epsilon is None}
    assert silent == {name for name in preset_names() if name.startswith(WITHOUT_EPSILON)}
