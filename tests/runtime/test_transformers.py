"""The model equals Hugging Face's for the same weights, loaded from and saved to its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.plans.plan import Recompute
from shardwright.runtime.model.chunk import Chunk, logits_of, table_of
from shardwright.runtime.model.chunk import forward as run
from shardwright.runtime.model.details import details_of
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import ModelParameter, unit_parameters
from shardwright.runtime.storage.weights import open_weights, save_weights, write_index
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **COMMON},
    "llama3": {"model_type": "llama", **COMMON, "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "llama-linear": {"model_type": "llama", **COMMON, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "mistral-window": {"model_type": "mistral", **COMMON, "sliding_window": 5, "head_dim": 16},
    "qwen2": {"model_type": "qwen2", **COMMON},
    "qwen3": {"model_type": "qwen3", **COMMON, "head_dim": 16, "tie_word_embeddings": True},
    "mixtral": {"model_type": "mixtral", **COMMON, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3-moe": {"model_type": "qwen3_moe", **COMMON, **MOE, "norm_topk_prob": True, "head_dim": 8},
    "qwen2-moe": {"model_type": "qwen2_moe", **COMMON, **MOE, "shared_expert_intermediate_size": 40},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 67, "n_positions": 64},
}  # fmt: skip


def hugging_face(config: dict[str, Any]) -> Any:
    torch.manual_seed(3)
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():  # biases and norms too, so that none can hide
            weight.add_(torch.randn_like(weight) * 0.05)
    return model


def chunk_of(model: Model, config: dict[str, Any], whole: Any) -> Chunk:
    details = details_of(model, config)
    weights = {
        p.name: whole(p).clone().requires_grad_()
        for unit in range(len(model.layers) + 2)
        for p in unit_parameters(model, unit, model.vocab)
    }
    return Chunk(
        units=tuple(range(len(model.layers) + 2)), weights=weights, model=model, details=details,
        tensor=TensorGroup(), recompute=Recompute(), positions=torch.arange(32),
        table=table_of(model, details, torch.arange(32)),
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = hugging_face(CASES[name])
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = model_of_config(config, "config.json")
    told, known = details_of(model, None), details_of(model, config)
    mixture = any(kind.moe for kind in model.kinds)
    assert told == (known if mixture else replace(known, renormalise=True)), "a plan made of it knows as much"
    files = open_weights(tmp_path)
    chunk = chunk_of(model, config, lambda p: files.whole(model, p))
    tokens = torch.randint(67, (2, 33), generator=torch.Generator().manual_seed(1))
    body = Chunk(**{f: getattr(chunk, f) for f in chunk.__dataclass_fields__} | {"units": chunk.units[:-1]})
    with torch.no_grad():
        expected = theirs(tokens[:, :-1]).logits
        found = logits_of(chunk, run(body, tokens[:, :-1]))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    loss = run(chunk, tokens[:, :-1], tokens[:, 1:]) / 64
    loss.backward()
    logits = theirs(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.view(-1, 67), tokens[:, 1:].reshape(-1)).backward()
    embedding = chunk.weights["embedding.tokens.weight"].grad
    torch.testing.assert_close(embedding, theirs.get_input_embeddings().weight.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3-moe", "gpt2"])
def test_saved_weights_are_those_that_transformers_reads(name: str, tmp_path: Path) -> None:
    theirs = hugging_face(CASES[name])
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
