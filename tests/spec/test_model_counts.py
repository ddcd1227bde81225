"""Parameter counts of real models against the published ones."""

from __future__ import annotations

import pytest

from shardwright.spec.read.model import load_model
from shardwright.spec.read.presets import preset_names, preset_source

# Totals of the safetensors files on the models' Hugging Face pages.
EXACT = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.2-11b-vision": 10_670_220_835,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "falcon-7b": 6_921_720_704,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-1.4b": 1_414_647_808,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "glm-4-9b": 9_399_951_360,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
}
# Text models alone, as transformers' classes have them on the meta device.
OF_CLASSES = {"gemma-3n-e2b": 4_435_182_688, "gemma-3n-e4b": 6_835_235_568}
# Counts that are published rounded, in billions.
ROUNDED = {
    "llama-65b": 65.2,
    "llama-3.2-90b-vision": 88.6,
    "falcon-180b": 180.0,
    "gpt-22b": 22.0,
    "gpt3-175b": 175.0,
    "gpt-530b": 529.6,
    "gpt-1t": 1008.0,
    "opt-175b": 175.0,
}
# Parameters that one token uses, in billions, as the models' cards have them.
ACTIVE = {"mixtral-8x7b": 12.9, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22.0, "deepseek-v2": 21.0, "deepseek-v3": 37.0}


@pytest.mark.parametrize(("name", "published"), [*EXACT.items(), *OF_CLASSES.items()])
def test_count_is_the_published_one(name: str, published: int) -> None:
    assert load_model(name).parameters == published


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_count_is_near_the_rounded_one(name: str, billions: float) -> None:
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_count_is_near_the_published_one(name: str, billions: float) -> None:
    assert load_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_whole(name: str) -> None:
    model = load_model(name)
    unlimited = model.position == "relative" or any(kind.mixer for kind in model.kinds)
    assert model.max_position > 0 or unlimited
    assert model.assumed == ()
    assert len(model.kind_of_layer) == len(model.layers)
    assert preset_source(name).endswith(")")


def test_names_are_forgiving() -> None:
    assert load_model("Llama-2-70B") == load_model("meta-llama/Llama-2-70b-hf") == load_model("llama-2-70b")
