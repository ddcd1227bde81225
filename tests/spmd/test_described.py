"""The graphs that ship are those that tracing gives: same numbers, same products, same price of the best program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.spmd.draws import drawn
from tests.spmd.models import BATCH, SEQUENCE, VOCABULARY, Batch
from tests.spmd.steps import Traced, require_equal
from tests.synthesis.clusters import pair
from torch import Tensor, nn

from shardwright import load_model
from shardwright.spmd.check import eager
from shardwright.spmd.trace import trace
from shardwright.synthesis.graph import Graph, flops, product
from shardwright.synthesis.models.transformers import other_than, training_step
from shardwright.synthesis.rules.candidates import choices
from shardwright.synthesis.synthesize import search

pytest.importorskip("transformers")
HEADS, SIZE, LAYERS = 4, 6, 2
DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": HEADS * SIZE, "intermediate_size": 40, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": SEQUENCE, "head_dim": SIZE,
}  # fmt: skip
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], **DECODER},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], **DECODER},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], **DECODER, "tie_word_embeddings": True},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], **DECODER, **EXPERTS, "norm_topk_prob": False,
        "shared_expert_intermediate_size": 20,
    },
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], **DECODER, **EXPERTS, "norm_topk_prob": True},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": SEQUENCE, "n_ctx": SEQUENCE,
        "n_embd": HEADS * SIZE, "n_layer": LAYERS, "n_head": HEADS, "bos_token_id": 0, "eos_token_id": 0,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    },
}  # fmt: skip
OURS = {
    "wte": "embedding", "wpe.weight": "positions", "ln_f": "norm", "ln_1": "attention.norm", "ln_2": "mlp.norm",
    "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out", "c_fc": "up", "mlp.c_proj": "mlp.down",
    "lm_head": "head", "embed_tokens": "embedding", "input_layernorm": "attention.norm", "o_proj": "out",
    "post_attention_layernorm": "mlp.norm", "self_attn": "attention", "_proj": "", "model.": "",
    "transformer.": "", "h.": "layers.",
}  # fmt: skip
ROUTED = {
    "mlp.gate.weight": "experts.router.weight", "mlp.shared_expert_gate": "experts.shared.weight",
    "mlp.shared_expert": "experts.shared", "mlp.experts": "experts", "mlp.norm": "experts.norm",
}  # fmt: skip


KINDS = [
    kind if kind in ("llama", "gpt2", "qwen2_moe") else pytest.param(kind, marks=pytest.mark.nightly)
    for kind in CONFIGS
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_of_a_graph_that_ships_equals_the_module(tmp_path: Path, kind: str) -> None:
    module, graph, batch = built(kind), shipped(kind, tmp_path), tokens()
    parameters = renamed(dict(module.named_parameters()), kind)
    assert parameters.keys() == graph.parameters.keys()
    values = {**{name: one.detach() for name, one in parameters.items()}, **batch, **angles()}
    leaves = {name: ref for table in (graph.parameters, graph.inputs, graph.buffers) for name, ref in table.items()}
    found = eager(module, batch, mean_loss)
    gradients = {name.removeprefix("gradient "): one for name, one in found.items() if name.startswith("gradient ")}
    expected = {"loss": found["loss"], **{f"gradient {name}": one for name, one in renamed(gradients, kind).items()}}
    case = Traced(graph=graph, leaves={ref.node: values[name] for name, ref in leaves.items()}, expected=expected)
    require_equal(case, drawn(graph, choices(graph), 3, Random(5)))
    assert product_flops(graph) == product_flops(trace(module, batch, mean_loss))


FUSED = {"gpt2": {"activation_function": "gelu_pytorch_tanh"}}  # one operator, where gelu_new is composed of nine


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2", "mixtral"])
@pytest.mark.parametrize("network", [1e7, 1e8])
def test_tracing_gives_the_same_price(tmp_path: Path, kind: str, network: float) -> None:
    net = pair(2.0, network)
    module = built(kind, **FUSED.get(kind, {}))
    found, expected = search(shipped(kind, tmp_path), net), search(trace(module, tokens(), mean_loss), net)
    assert found.choice.seconds.total == pytest.approx(expected.choice.seconds.total, rel=0.05)


def tokens() -> Batch:
    torch.manual_seed(1)
    labels = torch.randint(VOCABULARY, (BATCH * SEQUENCE,))
    return {"tokens": torch.randint(VOCABULARY, (BATCH, SEQUENCE)), "labels": labels}


def mean_loss(module: nn.Module, batch: Batch) -> Tensor:
    logits = module(input_ids=batch["tokens"], use_cache=False).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"])


def built(kind: str, **changes: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = {name: value for name, value in CONFIGS[kind].items() if name != "architectures"} | changes
    module: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    return module.train()


def shipped(kind: str, folder: Path) -> Graph:
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}))
    model = load_model(str(folder / "config.json"))
    assert not other_than(model, SEQUENCE)
    return training_step(model, batch=BATCH, seq_len=SEQUENCE, dtype="float32")


def renamed(theirs: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors of a module of `transformers` as the graph that ships has them: GPT-2's, which lie the other
    way round, turned, and queries, keys and values apart."""
    found: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for part, word in (OURS | (ROUTED if "num_experts_per_tok" in CONFIGS[kind] else {})).items():
            name = name.replace(part, word)
        turned = kind == "gpt2" and tensor.dim() == 2 and "layers" in name
        tensor = tensor.t().contiguous() if turned else tensor
        if "qkv" in name:
            found |= {name.replace("qkv", one): x for one, x in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    return found


def angles() -> dict[str, Tensor]:
    """Return cosines and sines of Llama's rotary positions."""
    turns = torch.arange(SEQUENCE)[:, None] * 10000.0 ** -(torch.arange(0, SIZE, 2) / SIZE)
    both = turns.repeat(1, 2)
    return {"rotary.cos": both.cos(), "rotary.sin": both.sin()}


def product_flops(graph: Graph) -> float:
    values = graph.values()
    return sum(flops(node, tuple(values[ref] for ref in node.inputs)) for node in graph.nodes if product(node))
