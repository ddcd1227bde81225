"""Layers that attend to images in place of the sequence (Llama 3.2 Vision), against transformers' classes: what they keep
by the tensors that autograd saves, and FLOPs of a step by PyTorch's own counter."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.cost.test_frozen_parts import TOKENS, built, described, has_the_weights_and_the_flops, saved, shard
from tests.nightly import nightly

from shardwright import SpecError, load_model, make_job
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.exporters.hugging_face import adapter_config
from shardwright.spec.adapter import adapter_parameters, parse_adapter
from shardwright.spec.images import image_problems, taken_of
from shardwright.spec.read.huggingface import model_of_config

TILES = 4
TEXT: dict[str, Any] = {
    "model_type": "mllama_text_model", "vocab_size": 500, "hidden_size": 128, "intermediate_size": 344,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION: dict[str, Any] = {
    "model_type": "mllama_vision_model", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "attention_heads": 4, "image_size": 56, "patch_size": 14, "num_global_layers": 2, "vision_output_dim": 96,
    "intermediate_layers_indices": [0],
}  # fmt: skip
FROZEN = [("vision",), ("vision", "projector")]
FEW, MORE = [1], [1, 2]  # layers that attend to images, of two and of three


def config(crossing: list[int]) -> dict[str, Any]:
    layers = {"num_hidden_layers": 1 + len(crossing), "cross_attention_layers": crossing}
    return {
        "model_type": "mllama", "text_config": {**TEXT, **layers}, "vision_config": VISION, "image_token_index": 5,
    }  # fmt: skip


def loss_of(model: Any) -> Any:
    import torch

    pixels = torch.zeros(1, 1, TILES, 3, VISION["image_size"], VISION["image_size"], dtype=model.dtype)
    image = {
        "pixel_values": pixels, "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, TILES), "cross_attention_mask": torch.ones(1, TOKENS, 1, TILES),
    }  # fmt: skip
    return model(input_ids=torch.full((1, TOKENS), 7), **image, use_cache=False).logits.float().sum()


@pytest.mark.parametrize("frozen", [(), *FROZEN[:1], *nightly((parts,) for parts in FROZEN[1:])], ids="+".join)
def test_a_step_has_the_weights_and_the_flops_of_pytorch(frozen: tuple[str, ...]) -> None:
    """Where the language model is frozen, its layers before the first that reads images need no gradient, which is not
    counted (3 of 40)."""
    has_the_weights_and_the_flops(config(FEW), frozen, loss_of)


@pytest.mark.parametrize(
    "frozen", [(), *nightly((parts,) for parts in [*FROZEN, ("vision", "language")])], ids="+".join
)
def test_a_layer_keeps_as_much_as_pytorch_saves(frozen: tuple[str, ...]) -> None:
    model, job = described(config(FEW), frozen)
    kept = layer_activation_bytes(model, shard(flash=True), job).kept
    assert float(kept[2][0]) == pytest.approx(
        saved(config(MORE), frozen, loss_of) - saved(config(FEW), frozen, loss_of), rel=0.03
    )


def test_images_take_no_place_in_the_sequence() -> None:
    """As published: four tiles of 560 × 560 pixels, 1,601 tokens each, whatever the length of the sequence."""
    model = load_model("llama-3.2-11b-vision")
    assert model.tower is not None
    job = make_job(global_batch=8, seq_len=512, framework="fsdp")
    assert not list(image_problems(model, job, "job.seq_len"))
    taken = taken_of(model.tower, job)
    assert (taken.count, taken.positions, taken.tokens) == (1, 4 * 1608, 4 * 1601)


def test_adapters_stand_beside_cross_attention_too() -> None:
    """PEFT is told by an expression, and has as many weights as are counted."""
    torch = pytest.importorskip("torch")
    model, _ = described(config(FEW), ())
    adapter = parse_adapter("lora:4", "linear")
    pattern = adapter_config(model, adapter)["target_modules"]
    named = {
        name: module for name, module in built(config(FEW), ()).named_modules() if isinstance(module, torch.nn.Linear)
    }
    chosen = {name: module for name, module in named.items() if re.fullmatch(pattern, name)}
    assert {name.split(".")[-2] for name in chosen} == {"self_attn", "cross_attn", "mlp"}
    weights = sum(4 * (module.in_features + module.out_features) for module in chosen.values())
    assert adapter_parameters(model, adapter) == weights


@pytest.mark.parametrize(
    ("place", "changed", "words"),
    [
        ("text_config", {"cross_attention_layers": [2]}, "2 is no layer of 2"),
        ("vision_config", {"vision_output_dim": 100}, "is 100, the last layer and 1 others give 96"),
        ("vision_config", {"attention_heads": 5}, "48 is no multiple of 5 heads"),
    ],
)
def test_what_does_not_fit_is_refused(place: str, changed: dict[str, Any], words: str) -> None:
    given = config(FEW)
    with pytest.raises(SpecError) as caught:
        model_of_config({**given, place: given[place] | changed}, "config.json")
    assert words in str(caught.value)


def test_without_its_tower_it_is_refused() -> None:
    with pytest.raises(SpecError, match="vision_config: is missing"):
        model_of_config({**config(FEW)["text_config"]}, "config.json")
