"""Weights by Megatron-LM's names, from transformers' own state dicts by a mapping of its own: head by head, as
Megatron-LM's tools/checkpoint/loader_llama_mistral.py and Megatron-Bridge's `merge_qkv_weights` lay them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.cli.running import run
from tests.runtime.families import Config, first_of_each
from tests.runtime.storage.megatron_core import logits, megatron_core

from shardwright import Model, SpecError
from shardwright.runtime.storage.weights import megatron_tensors, open_weights, save_megatron
from shardwright.spec.read.huggingface import model_of_config

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
CONFIGS = first_of_each()
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "gpt2")
Tensors = dict[str, torch.Tensor]


def weights(config: Config, folder: Path) -> tuple[Model, Tensors, Tensors]:
    """Return a model, its weights by transformers' names, and by Megatron-LM's as we write them."""
    torch.manual_seed(3)
    settings = transformers.CONFIG_MAPPING[config["model_type"]](**config)
    theirs = transformers.AutoModelForCausalLM.from_config(settings)
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    theirs.save_pretrained(folder)
    model, files = model_of_config(theirs.config.to_dict(), "config.json"), open_weights(folder)
    by_name = {name: file.tensor(name) for name, file in files.files.items()}
    return model, by_name, megatron_tensors(model, lambda parameter: files.whole(model, parameter).float())


def interleaved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
    """Return heads one after another: the queries of a group, then its key and its value."""
    size = q.shape[0] // heads
    rows = []
    for group in range(groups):
        shared = heads // groups
        rows += [q[head * size : (head + 1) * size] for head in range(group * shared, (group + 1) * shared)]
        rows += [k[group * size : (group + 1) * size], v[group * size : (group + 1) * size]]
    return torch.cat(rows)


def expected_llama(state: Tensors, model: Model, config: Config) -> Tensors:
    """Return what GPTModel has of a family that is named as Llama."""
    attention = model.layers[0].self_attention
    wanted: Tensors = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": state["model.norm.weight"],
    }
    if not model.tied_embeddings:
        wanted["output_layer.weight"] = state["lm_head.weight"]
    for number in range(len(model.layers)):
        here, there = f"model.layers.{number}.", f"decoder.layers.{number}."
        for kind in ("weight", "bias"):
            if f"{here}self_attn.q_proj.{kind}" in state:
                q, k, v = (state[f"{here}self_attn.{part}_proj.{kind}"] for part in "qkv")
                qkv = interleaved(q, k, v, attention.heads, attention.kv_heads)
                wanted[f"{there}self_attention.linear_qkv.{kind}"] = qkv
        wanted[f"{there}self_attention.linear_qkv.layer_norm_weight"] = state[f"{here}input_layernorm.weight"]
        wanted[f"{there}self_attention.linear_proj.weight"] = state[f"{here}self_attn.o_proj.weight"]
        for part in "qk":
            if (name := f"{here}self_attn.{part}_norm.weight") in state:
                wanted[f"{there}self_attention.{part}_layernorm.weight"] = state[name]
        second = state[f"{here}post_attention_layernorm.weight"]
        if config["model_type"] == "mixtral":
            wanted[f"{there}pre_mlp_layernorm.weight"] = second
            wanted |= expected_experts(state, here, there)
        else:
            gate, up = (state[f"{here}mlp.{part}_proj.weight"] for part in ("gate", "up"))
            wanted[f"{there}mlp.linear_fc1.layer_norm_weight"] = second
            wanted[f"{there}mlp.linear_fc1.weight"] = torch.cat([gate, up])
            wanted[f"{there}mlp.linear_fc2.weight"] = state[f"{here}mlp.down_proj.weight"]
    return wanted


def expected_experts(state: Tensors, here: str, there: str) -> Tensors:
    moe = next(f"{here}{name}" for name in ("block_sparse_moe", "mlp") if f"{here}{name}.gate.weight" in state)
    wanted = {f"{there}mlp.router.weight": state[f"{moe}.gate.weight"]}
    for expert in range(len(state[f"{moe}.gate.weight"])):
        gate, down, up = (state[f"{moe}.experts.{expert}.w{part}.weight"] for part in (1, 2, 3))
        wanted[f"{there}mlp.experts.linear_fc1.weight{expert}"] = torch.cat([gate, up])
        wanted[f"{there}mlp.experts.linear_fc2.weight{expert}"] = down
    return wanted


def expected_gpt2(state: Tensors, model: Model, config: Config) -> Tensors:
    """Return what GPTModel has of GPT-2, whose matrices transformers keeps turned."""
    heads = model.layers[0].self_attention.heads
    at = "transformer."
    wanted = {
        "embedding.word_embeddings.weight": state[f"{at}wte.weight"],
        "embedding.position_embeddings.weight": state[f"{at}wpe.weight"],
        "decoder.final_layernorm.weight": state[f"{at}ln_f.weight"],
        "decoder.final_layernorm.bias": state[f"{at}ln_f.bias"],
    }
    for number in range(len(model.layers)):
        here, there = f"{at}h.{number}.", f"decoder.layers.{number}."
        for kind in ("weight", "bias"):
            q, k, v = state[f"{here}attn.c_attn.{kind}"].t().chunk(3)
            wanted[f"{there}self_attention.linear_qkv.{kind}"] = interleaved(q, k, v, heads, heads)
            wanted[f"{there}self_attention.linear_qkv.layer_norm_{kind}"] = state[f"{here}ln_1.{kind}"]
            wanted[f"{there}self_attention.linear_proj.{kind}"] = state[f"{here}attn.c_proj.{kind}"].t()
            wanted[f"{there}mlp.linear_fc1.layer_norm_{kind}"] = state[f"{here}ln_2.{kind}"]
            wanted[f"{there}mlp.linear_fc1.{kind}"] = state[f"{here}mlp.c_fc.{kind}"].t()
            wanted[f"{there}mlp.linear_fc2.{kind}"] = state[f"{here}mlp.c_proj.{kind}"].t()
    return wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_lies_as_megatron_keeps_it(family: str, tmp_path: Path) -> None:
    model, theirs, ours = weights(CONFIGS[family], tmp_path)
    expected = (expected_gpt2 if family == "gpt2" else expected_llama)(theirs, model, CONFIGS[family])
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        rows = len(value)
        assert torch.equal(ours[name][:rows], value), name
        assert not ours[name][rows:].any(), "what is added to the vocabulary is empty"
    assert len(ours["embedding.word_embeddings.weight"]) % 128 == 0


def test_the_folder_is_that_of_a_checkpoint(tmp_path: Path) -> None:
    model, _, ours = weights(CONFIGS["llama"], tmp_path / "theirs")
    files = open_weights(tmp_path / "theirs")
    save_megatron(tmp_path / "out", model, 7, lambda parameter: files.whole(model, parameter))
    assert (tmp_path / "out/latest_checkpointed_iteration.txt").read_text() == "7"
    state = torch.load(tmp_path / "out/iter_0000007/mp_rank_00/model_optim_rng.pt", weights_only=True)
    assert state["checkpoint_version"] == 3.0 and state["iteration"] == 7
    assert all(torch.equal(state["model"][name], value) for name, value in ours.items())


def test_blocks_that_megatron_has_no_place_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="has no place in Megatron-LM's GPTModel"):
        weights(CONFIGS["gemma2"], tmp_path)


def test_a_plan_is_needed_for_names_of_others() -> None:
    for names in ("megatron", "huggingface"):
        outcome = run(["checkpoint", "export", "run", "-o", "out", "--names", names])
        assert outcome.code == 2 and "add --plan PLAN" in outcome.err


@pytest.mark.parametrize("family", FAMILIES)
def test_megatron_core_has_the_logits_of_transformers_with_them(family: str, tmp_path: Path) -> None:
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        pytest.skip("Megatron-Core is not installed: pip install --no-deps megatron-core==0.16.1")
    model, _, ours = weights(CONFIGS[family], tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(0, model.vocab, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), megatron_core(tmp_path):
        found = logits(model, theirs.config, ours, tokens)[..., : model.vocab]
        torch.testing.assert_close(found, theirs(tokens).logits, rtol=1e-4, atol=1e-5)
