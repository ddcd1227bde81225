"""Counts the weights of adapters that PEFT makes of small models on the meta device, by the names that it is told.

    python tests/importers/count_with_peft.py

writes `peft_counts.json` with PEFT and transformers as installed; `test_adapters.py` holds what readers say against it.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("peft_counts.json")
RANK = 8
DENSE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {**DENSE, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4}
LATENT = {
    **{key: value for key, value in DENSE.items() if key != "num_key_value_heads"},
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: DENSE | {"head_dim": 16} for name in ("llama", "mistral", "qwen3", "gemma2", "gemma")},
    **dict.fromkeys(("qwen2", "phi3", "olmo2", "smollm3", "stablelm", "glm4"), DENSE),
    **dict.fromkeys(("qwen3_moe", "mixtral", "olmoe"), EXPERTS),
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 48},
    "deepseek_v3": LATENT,
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MODULES: tuple[list[str] | str | None, ...] = (
    None,
    "all-linear",
    ["q_proj", "v_proj"],
    ATTENTION,
    [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
    ["q_a_proj", "q_b_proj", "kv_b_proj"],
    ["self_attn.q_proj", "mlp.down_proj"],
    ["w1", "w2", "w3"],
    r".*\.q_proj",
    "q_proj",
)


def counts() -> list[dict[str, Any]]:
    """Return the configuration of each family, and the weights of the adapters beside each of `MODULES`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    rows = []
    for family, fields in FAMILIES.items():
        config = AutoConfig.for_model(family, **fields)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        weights = [[modules, _adapter_weights(model, modules)] for modules in MODULES]
        rows.append(
            {"config": fields | {"model_type": family, "architectures": [type(model).__name__]}, "weights": weights}
        )
    return rows


def _adapter_weights(model: Any, modules: list[str] | str | None) -> int | None:
    """Return the weights that are trained, None where PEFT refuses."""
    from peft import LoraConfig, get_peft_model

    try:
        adapted = get_peft_model(
            copy.deepcopy(model), LoraConfig(r=RANK, target_modules=modules, task_type="CAUSAL_LM")
        )
    except ValueError:
        return None
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(row) for row in counts())
    OUT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
