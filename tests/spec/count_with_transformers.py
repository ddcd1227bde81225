"""Counts parameters with Hugging Face transformers, and writes `transformers_counts.json` beside this file.

Run by hand where transformers and torch are installed, after a release of transformers or a new case:

    python tests/spec/count_with_transformers.py

The models are small and are built on the meta device, so nothing is downloaded or allocated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).with_name("transformers_counts.json")
BOILERPLATE = (
    "transformers_version", "output_hidden_states", "output_attentions", "return_dict", "dtype", "id2label", "label2id",
    "chunk_size_feed_forward", "problem_type", "initializer_range", "init_std", "use_cache", "pad_token_id",
    "bos_token_id", "eos_token_id", "_name_or_path",
)  # fmt: skip
BASE: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
ENCODER: dict[str, Any] = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
GPT2: dict[str, Any] = {"vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 128}
OPT: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "ffn_dim": 200,
    "max_position_embeddings": 128, "word_embed_proj_dim": 64,
}  # fmt: skip
FALCON: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
NEW_FALCON = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
DEEPSEEK: dict[str, Any] = BASE | {
    "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 2, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 40, "first_k_dense_replace": 2,
}  # fmt: skip
GLM_MOE: dict[str, Any] = BASE | {
    "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}  # fmt: skip
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", BASE),
    ("llama", BASE | {"tie_word_embeddings": True, "head_dim": 16}),
    ("llama", BASE | {"attention_bias": True, "mlp_bias": True}),
    ("mistral", BASE),
    ("mistral", BASE | {"head_dim": 24, "sliding_window": None}),
    ("mixtral", BASE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2", BASE),
    ("qwen2", BASE | {"tie_word_embeddings": True}),
    ("qwen2", BASE | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}),
    ("qwen2_moe", BASE | EXPERTS | {"shared_expert_intermediate_size": 80}),
    ("qwen2_moe", BASE | EXPERTS | {"shared_expert_intermediate_size": 80, "decoder_sparse_step": 2}),
    ("qwen2_moe", BASE | EXPERTS | {"shared_expert_intermediate_size": 80, "mlp_only_layers": [1], "qkv_bias": False}),
    ("qwen3", BASE | {"head_dim": 16}),
    ("qwen3", BASE | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_moe", BASE | EXPERTS | {"head_dim": 16}),
    ("qwen3_moe", BASE | EXPERTS | {"head_dim": 16, "mlp_only_layers": [0, 5], "attention_bias": True}),
    ("deepseek_v2", DEEPSEEK),
    ("deepseek_v2", DEEPSEEK | {"q_lora_rank": None, "first_k_dense_replace": 0}),
    ("deepseek_v3", DEEPSEEK),
    ("deepseek_v3", DEEPSEEK | {"attention_bias": True}),
    ("deepseek_v3", DEEPSEEK | {"q_lora_rank": None, "attention_bias": True}),
    ("gemma", BASE | {"head_dim": 32}),
    ("gemma2", BASE | {"head_dim": 32}),
    ("gemma3_text", BASE | {"head_dim": 32}),
    ("gemma3_text", BASE | {"head_dim": 32, "attention_bias": True}),
    ("phi", BASE),
    ("phi", BASE | {"qk_layernorm": True}),
    ("phi3", BASE | {"sliding_window": 31}),
    ("falcon", FALCON),
    ("falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon", NEW_FALCON),
    ("falcon", NEW_FALCON | {"parallel_attn": False, "ffn_hidden_size": 100}),
    ("falcon", NEW_FALCON | {"num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}),
    ("gpt2", GPT2),
    ("gpt2", GPT2 | {"n_inner": 100, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}),
    ("gpt_neox", ENCODER),
    ("gpt_neox", ENCODER | {"attention_bias": False, "tie_word_embeddings": True, "use_parallel_residual": False}),
    ("opt", OPT),
    ("opt", OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("opt", OPT | {"word_embed_proj_dim": 32, "tie_word_embeddings": False}),
    ("opt", OPT | {"enable_bias": False}),
    ("opt", OPT | {"_remove_final_layer_norm": True}),
    ("glm", BASE | {"head_dim": 16}),
    ("glm", BASE | {"head_dim": 16, "attention_bias": False}),
    ("glm4", BASE | {"head_dim": 16}),
    ("glm4", BASE | {"head_dim": 16, "attention_bias": False}),
    ("glm4_moe", GLM_MOE),
    ("glm4_moe", GLM_MOE | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True}),
    ("bloom", {"vocab_size": 1000, "hidden_size": 64, "n_layer": 3, "n_head": 8}),
    ("nemotron", BASE | {"head_dim": 16}),
    ("nemotron", BASE | {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("starcoder2", BASE),
    ("starcoder2", BASE | {"use_bias": False, "tie_word_embeddings": False}),
    ("granite", BASE),
    ("bert", ENCODER | {"architectures": ["BertModel"]}),
    ("bert", ENCODER | {"architectures": ["BertForMaskedLM"], "type_vocab_size": 3}),
    ("bert", ENCODER | {"architectures": ["BertForPreTraining"]}),
)


def counted() -> Iterator[dict[str, Any]]:
    """Yield config and parameters of each case. The bias that balances experts is a buffer there, and counts."""
    import torch
    import transformers  # type: ignore[import-not-found]

    for model_type, fields in CASES:
        config = transformers.CONFIG_MAPPING[model_type](**{"pad_token_id": 0, **fields})
        named = (fields.get("architectures") or [""])[0]
        build = getattr(transformers, named) if named else transformers.AutoModelForCausalLM.from_config
        with torch.device("meta"):
            model = build(config)
        model.tie_weights()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        parameters += sum(b.numel() for name, b in model.named_buffers() if "e_score_correction_bias" in name)
        written = {key: value for key, value in config.to_dict().items() if key not in BOILERPLATE}
        yield {"given": {"model_type": model_type, **fields}, "config": written, "parameters": parameters}


def main() -> None:
    import transformers

    lines = ",\n".join("  " + json.dumps(row) for row in counted())
    OUT.write_text(f'{{"transformers": "{transformers.__version__}", "models": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
