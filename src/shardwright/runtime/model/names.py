"""What Hugging Face calls each parameter, and in which form it keeps it.

Names are those of the files that `save_pretrained` writes (huggingface/transformers@v5.23), family by family.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.runtime.model.parameters import ModelParameter
from shardwright.spec.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """A tensor of a file that holds a parameter: `transposed`, as GPT-2 keeps matrices, and the `part`-th of `parts`
    equal parts along the parameter's first dimension."""

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1


LLAMA = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "moe.router": "mlp.gate",
    "moe.experts.gate": "mlp.experts.{}.gate_proj",
    "moe.experts.up": "mlp.experts.{}.up_proj",
    "moe.experts.down": "mlp.experts.{}.down_proj",
    "moe.shared.gate": "mlp.shared_expert.gate_proj",
    "moe.shared.up": "mlp.shared_expert.up_proj",
    "moe.shared.down": "mlp.shared_expert.down_proj",
    "moe.shared_weight": "mlp.shared_expert_gate",
}
MIXTRAL = LLAMA | {
    "moe.router": "block_sparse_moe.gate",
    "moe.experts.gate": "block_sparse_moe.experts.{}.w1",
    "moe.experts.up": "block_sparse_moe.experts.{}.w3",
    "moe.experts.down": "block_sparse_moe.experts.{}.w2",
}
GPT2 = {
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
GPT2_FUSED = {"attention.query": 0, "attention.key": 1, "attention.value": 2}
LLAMA_ENDS = {
    "embedding.tokens": "model.embed_tokens",
    "head.norm": "model.norm",
    "head": "lm_head",
}
GPT2_ENDS = {
    "embedding.tokens": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "head.norm": "transformer.ln_f",
    "head": "lm_head",
}


def source_of(model: Model, parameter: ModelParameter) -> TensorSource:
    """Return the tensor of a Hugging Face file that has a parameter."""
    gpt2 = model.family == "gpt2"
    owner, _, kind = parameter.name.rpartition(".")
    ends = GPT2_ENDS if gpt2 else LLAMA_ENDS
    if owner in ends:
        return TensorSource(name=f"{ends[owner]}.{kind}")
    _, layer, block = owner.split(".", 2)
    if gpt2:
        matrix = kind == "weight" and len(parameter.shape) > 1
        if block in GPT2_FUSED:
            name = f"transformer.h.{layer}.attn.c_attn.{kind}"
            return TensorSource(name=name, transposed=matrix, part=GPT2_FUSED[block], parts=3)
        return TensorSource(name=f"transformer.h.{layer}.{GPT2[block]}.{kind}", transposed=matrix)
    if parameter.expert is not None:
        block = block.replace(f".{parameter.expert}.", ".", 1)
    name = (MIXTRAL if model.family == "mixtral" else LLAMA)[block].format(parameter.expert)
    return TensorSource(name=f"model.layers.{layer}.{name}.{kind}")
