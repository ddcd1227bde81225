"""Every family's model equals Hugging Face's for the same weights, loaded from and saved to its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.nightly import nightly
from tests.runtime.families import VOCAB, Config, counted, first_of_each
from tests.runtime.samples import plan_of, replica, stage

from shardwright import Model, SpecError, load_model
from shardwright.plans.plan import Recompute
from shardwright.plans.trainable import untrainable_model
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.model.chunk import Chunk, logits_of, table_of
from shardwright.runtime.model.chunk import forward as run
from shardwright.runtime.model.details import details_of
from shardwright.runtime.model.names import FAMILIES
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import ModelParameter, unit_parameters
from shardwright.runtime.storage.weights import (
    HuggingFaceWeights,
    open_weights,
    save_weights,
    write_config,
    write_index,
)
from shardwright.spec.read.families import FAMILIES as READ
from shardwright.spec.read.families import TRAINED
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.huggingface_config import config_of_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
LENGTH, SMALL_PART = 16, 1e-4
DEFAULT, ALL = first_of_each(), dict(counted())


def hugging_face(config: Config) -> Any:
    """Return a model of transformers with random weights: biases, norms and what balances too, so that none can hide."""
    transformers.logging.set_verbosity_error()
    torch.manual_seed(3)
    settings = transformers.CONFIG_MAPPING[config["model_type"]](**config)
    named = (config.get("architectures") or [""])[0]
    build = getattr(transformers, named)._from_config if named else transformers.AutoModelForCausalLM.from_config
    model = build(settings, attn_implementation="eager").eval()
    balances = [buffer for name, buffer in model.named_buffers() if "correction_bias" in name]
    with torch.no_grad():
        for weight in (*model.parameters(), *balances):
            weight.add_(torch.randn_like(weight) * 0.05)
    return model


def whole_chunk(model: Model, config: Config, files: HuggingFaceWeights) -> Chunk:
    details = details_of(model, config)
    weights = {p.name: files.whole(model, p).clone().requires_grad_() for p in parameters_of(model)}
    return Chunk(
        units=tuple(range(len(model.layers) + 2)), weights=weights, model=model, details=details,
        tensor=TensorGroup(), recompute=Recompute(), positions=torch.arange(LENGTH),
        table=table_of(model, details, torch.arange(LENGTH)),
    )  # fmt: skip


def parameters_of(model: Model) -> list[ModelParameter]:
    return [p for unit in range(len(model.layers) + 2) for p in unit_parameters(model, unit, model.vocab)]


def gradients_of(theirs: Any, folder: Path) -> HuggingFaceWeights:
    """Return the gradients of a model of transformers as files of weights, under the names that it writes."""
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        for name, buffer in theirs.named_buffers():
            if "correction_bias" in name:
                buffer.zero_()
    theirs.save_pretrained(folder)
    return open_weights(folder)


def require_like_transformers(config: Config, folder: Path) -> None:
    """Raise AssertionError where logits or a gradient differ by more than a relative 1e-5 in fp32. Of a gradient that
    vanishes in theory rounding is left: what is below a small part of the largest gradient counts as such a part."""
    theirs = hugging_face(config)
    theirs.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    model = model_of_config(written, "config.json")
    assert list(untrainable_model(model)) == []
    assert details_of(model, None) == details_of(model, written), "a plan made of it knows as much"
    chunk = whole_chunk(model, written, open_weights(folder))
    tokens = torch.randint(1, VOCAB, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    body = Chunk(**{f: getattr(chunk, f) for f in chunk.__dataclass_fields__} | {"units": chunk.units[:-1]})
    expected = theirs(tokens[:, :-1]).logits
    with torch.no_grad():
        found = logits_of(chunk, run(body, tokens[:, :-1]))
    assert float((found - expected).detach().norm()) <= 1e-5 * float(expected.detach().norm())
    run(chunk, tokens[:, :-1], tokens[:, 1:]).backward()
    torch.nn.functional.cross_entropy(
        expected.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1), reduction="sum"
    ).backward()
    files = gradients_of(theirs, folder / "gradients")
    whole = {p.name: files.whole(model, p) for p in parameters_of(model)}
    largest = max(float(gradient.norm()) for gradient in whole.values())
    for name, gradient in whole.items():
        own = chunk.weights[name].grad
        difference = float((gradient if own is None else own - gradient).detach().norm())
        assert difference <= 1e-5 * (float(gradient.norm()) + SMALL_PART * 10 * largest), name


@pytest.mark.parametrize("name", DEFAULT)
def test_logits_and_gradients_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    require_like_transformers(DEFAULT[name], tmp_path)


@pytest.mark.parametrize("name", nightly(ALL))
def test_further_configs_equal_transformers(name: str, tmp_path: Path) -> None:
    require_like_transformers(ALL[name], tmp_path)


def test_families_have_names_exactly_where_they_are_said_to_be_trained() -> None:
    assert set(FAMILIES) == TRAINED
    assert {config["model_type"] for config in DEFAULT.values()} == TRAINED
    assert len(TRAINED) >= 45


@pytest.mark.parametrize("family", sorted(set(READ) - TRAINED))
def test_other_families_are_refused_by_name(family: str) -> None:
    from tests.spec.test_models_transformers import COUNTS

    row = next((row for row in COUNTS if row["given"]["model_type"] == family), None)
    if row is None:
        # Of these transformers has none, or with a tower alone.
        alone = ("glm4v_moe_text", "mllama_text_model", "phi4_multimodal")
        assert family in ("chatglm", "rwkv7", "internlm2", *alone)
        return
    model = model_of_config(row["config"], "config.json")
    plan = plan_of(model, replica(stage((0, len(model.layers))), micro_batches=1))
    assert any(family in problem.message for problem in unrunnable(plan))


SAVED = (
    "mixtral", "gpt2", "gpt_neox", "falcon", "phi3", "gpt_oss", "granitemoeshared", "deepseek_v3", "codegen", "ernie4_5_moe", "bamba",
    "granitemoehybrid", "lfm2", "qwen3_next", "falcon_h1", "kimi_linear", "bailing_hybrid",
    "zamba", "zamba2, two blocks",
)  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_saved_weights_are_those_that_transformers_reads(name: str, tmp_path: Path) -> None:
    theirs = hugging_face(DEFAULT[name])
    theirs.save_pretrained(tmp_path / "given")
    config = json.loads((tmp_path / "given" / "config.json").read_text())
    model = model_of_config(config, "config.json")
    files = open_weights(tmp_path / "given")
    saved = tmp_path / "saved"

    def whole(parameter: ModelParameter) -> torch.Tensor:
        return files.whole(model, parameter)

    for units in (range(0, 9, 2), range(1, 9, 2)):  # as two ranks would
        save_weights(saved, model, (unit for unit in units if unit < len(model.layers) + 2), whole, torch.float32)
    write_index(saved, model, torch.float32)
    (saved / "config.json").write_text(json.dumps(config))
    again = transformers.AutoModelForCausalLM.from_pretrained(saved)
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_olmo_hybrid_with_values_wider_than_keys(tmp_path: Path) -> None:
    """As in the files that it came with; transformers 5.24 reads these, and writes the convolution in equal thirds."""
    widths = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 12,
    }
    theirs = hugging_face(DEFAULT["olmo_hybrid"] | widths)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, taps in theirs.state_dict().items():
        if name.endswith("conv1d.weight"):
            for part, value in zip("qkv", torch.split(taps, [12, 12, 24]), strict=True):
                tensors[name.replace("conv1d", f"{part}_conv1d")] = value.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    written = json.loads((tmp_path / "config.json").read_text())
    model = model_of_config(written, "config.json")
    chunk = whole_chunk(model, written, open_weights(tmp_path))
    body = Chunk(**{f: getattr(chunk, f) for f in chunk.__dataclass_fields__} | {"units": chunk.units[:-1]})
    tokens = torch.randint(1, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, expected = logits_of(chunk, run(body, tokens)), theirs(tokens).logits
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())


def logits_with(config: Config, weights: Any, tokens: torch.Tensor) -> torch.Tensor:
    settings = transformers.CONFIG_MAPPING[config["model_type"]](**config)
    named = (config.get("architectures") or [""])[0]
    build = getattr(transformers, named)._from_config if named else transformers.AutoModelForCausalLM.from_config
    model = build(settings, attn_implementation="eager").eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        return torch.as_tensor(model(tokens).logits)


@pytest.mark.parametrize("name", DEFAULT)
def test_the_config_of_a_model_is_one_with_its_logits(name: str) -> None:
    """Written from the model alone, as a plan knows it."""
    config = DEFAULT[name]
    theirs = hugging_face(config)
    written = json.loads(theirs.config.to_json_string())
    own = config_of_model(model_of_config(written | {"architectures": config.get("architectures")}, "config.json"))
    tokens = torch.randint(1, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert torch.allclose(logits_with(own, theirs.state_dict(), tokens), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "gpt2", "gemma2", "deepseek_v3"])
def test_a_folder_of_weights_opens(name: str, tmp_path: Path) -> None:
    theirs = hugging_face(DEFAULT[name])
    theirs.save_pretrained(tmp_path / "given")
    model = model_of_config(json.loads((tmp_path / "given" / "config.json").read_text()), "config.json")
    files, saved = open_weights(tmp_path / "given"), tmp_path / "saved"
    save_weights(saved, model, range(len(model.layers) + 2), lambda p: files.whole(model, p), torch.float32)
    write_index(saved, model, torch.float32)
    write_config(saved, model, None, torch.float32)
    opened = transformers.AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager")
    tokens = torch.randint(1, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(opened(tokens).logits, theirs(tokens).logits)


def test_a_family_without_a_config_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"unheard has no config\.json"):
        config_of_model(replace(load_model("llama-3.1-8b"), family="unheard"))
    with pytest.raises(SpecError, match="final_norm would not come back"):
        config_of_model(replace(load_model("llama-3.1-8b"), final_norm=False))
