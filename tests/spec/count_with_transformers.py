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

from shardwright.spec.read.families import FAMILIES, SYNONYMS

OUT = Path(__file__).with_name("transformers_counts.json")
BOILERPLATE = (
    "transformers_version", "output_hidden_states", "output_attentions", "return_dict", "dtype", "id2label", "label2id",
    "chunk_size_feed_forward", "problem_type", "initializer_range", "init_std", "use_cache", "pad_token_id",
    "bos_token_id", "eos_token_id", "_name_or_path",
)  # fmt: skip
BALANCING = ("e_score_correction_bias", "expert_bias")
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
SHARED = {"shared_expert_intermediate_size": 80}
GEMMA4: dict[str, Any] = BASE | {
    "head_dim": 16, "global_head_dim": 32, "vocab_size_per_layer_input": 900, "hidden_size_per_layer_input": 0,
}  # fmt: skip
GEMMA3N: dict[str, Any] = BASE | {
    "head_dim": 16, "vocab_size_per_layer_input": 900, "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 0,
    "laurel_rank": 12,
}  # fmt: skip
ZAMBA: dict[str, Any] = BASE | {"num_key_value_heads": 8}
LOCAL: dict[str, Any] = BASE | {"num_local_experts": 6, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = BASE | {
    "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}  # fmt: skip
GPTJ: dict[str, Any] = {
    "vocab_size": 1000, "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 128, "rotary_dim": 4
}  # fmt: skip
ERNIE_MOE: dict[str, Any] = BASE | {
    "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40, "moe_num_shared_experts": 2,
    "moe_layer_start_index": 2, "moe_layer_end_index": 4,
}  # fmt: skip
SPARSE = ["dense", *["sparse"] * 5]
LLAMA4: dict[str, Any] = LOCAL | {
    "head_dim": 16, "intermediate_size": 40, "intermediate_size_mlp": 172, "interleave_moe_layer_step": 2,
    "attention_chunk_size": 32,
}  # fmt: skip
HYBRID: dict[str, Any] = BASE | {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 24, "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip
NEMOTRON_H: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16, "ssm_state_size": 24, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "n_groups": 2, "conv_kernel": 4, "expand": 2, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 40, "moe_shared_expert_intermediate_size": 80,
}  # fmt: skip
JAMBA: dict[str, Any] = BASE | {
    "mamba_d_state": 8, "mamba_dt_rank": 6, "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1,
}  # fmt: skip
STATE: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 3, "state_size": 8}
DELTA: dict[str, Any] = BASE | {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
}  # fmt: skip
KIMI: dict[str, Any] = BASE | {
    "num_key_value_heads": 8, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
    "num_experts": 6, "num_experts_per_token": 2, "moe_intermediate_size": 40, "num_shared_experts": 1,
    "num_expert_group": 1, "topk_group": 1, "mlp_layer_types": SPARSE,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] + ["linear_attention"] * 2,
}  # fmt: skip
INDEXED: dict[str, Any] = DEEPSEEK | {"index_topk": 32, "index_n_heads": 4, "index_head_dim": 16}
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
    ("gemma4_text", GEMMA4 | {"num_global_key_value_heads": 1, "attention_k_eq_v": True}),
    ("gemma4_text", GEMMA4 | {
        "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    }),
    ("gemma4_text", GEMMA4 | {
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 6,
        "top_k_experts": 2, "moe_intermediate_size": 40,
    }),
    ("gemma3n_text", GEMMA3N),
    ("gemma3n_text", GEMMA3N | {
        "num_kv_shared_layers": 3, "layer_types": ["sliding_attention", "full_attention"] * 3, "altup_num_inputs": 2,
        "intermediate_size": [172, 172, 172, 96, 96, 200], "attention_bias": True,
    }),
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
    ("apertus", BASE),
    ("apertus", BASE | {"attention_bias": True}),
    ("arcee", BASE),
    ("arcee", BASE | {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("aria_text", BASE | {"moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 2}),
    ("axk1", DEEPSEEK | {"mlp_layer_types": SPARSE}),
    ("biogpt", ENCODER),
    ("codegen", GPTJ),
    ("cohere", BASE),
    ("cohere", BASE | {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False}),
    ("cohere2", BASE | {"head_dim": 16, "sliding_window": 32}),
    ("cohere2_moe", BASE | {"head_dim": 16, "sliding_window": 32, "num_experts": 6, "num_experts_per_tok": 2}),
    ("cwm", BASE | {"head_dim": 16, "sliding_window": 32}),
    ("dots1", GLM_MOE | {"head_dim": 16, "n_group": 2, "topk_group": 1}),
    ("emu3_text_model", BASE | {"architectures": ["Emu3ForCausalLM"]}),
    ("ernie4_5", BASE | {"head_dim": 16}),
    ("ernie4_5", BASE | {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False}),
    ("ernie4_5_moe", ERNIE_MOE),
    ("ernie4_5_moe", ERNIE_MOE | {"use_bias": False, "moe_layer_interval": 2}),
    ("exaone4", BASE | {"sliding_window": 32}),
    ("exaone_moe", BASE | EXPERTS | {"num_shared_experts": 1, "sliding_window": 32, "mlp_layer_types": SPARSE}),
    ("flex_olmo", BASE | {"num_experts": 6, "num_experts_per_tok": 2}),
    ("flint", BASE | EXPERTS | SHARED | {
        "head_dim": 16, "mlp_only_layers": [0, 1], "sliding_window": 32,
        "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 3 + ["full_attention"],
    }),
    ("glm4_moe_lite", LATENT | EXPERTS | {"n_routed_experts": 6, "n_shared_experts": 1, "mlp_layer_types": SPARSE}),
    ("gpt_bigcode", GPT2),
    ("gpt_bigcode", GPT2 | {"multi_query": False, "n_inner": 100}),
    ("gpt_neo", {"vocab_size": 1000, "hidden_size": 64, "num_layers": 4, "num_heads": 8, "window_size": 32,
                 "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 128}),
    ("gpt_oss", LOCAL | {"head_dim": 16, "sliding_window": 32}),
    ("gptj", GPTJ),
    ("granite_swa", BASE | {"sliding_window": 32}),
    ("granitemoe", LOCAL),
    ("granitemoe_swa", LOCAL | {"sliding_window": 32}),
    ("granitemoeshared", LOCAL | {"shared_intermediate_size": 80, "tie_word_embeddings": True}),
    ("helium", BASE | {"head_dim": 8}),
    ("hunyuan_v1_dense", BASE | {"head_dim": 16}),
    ("hunyuan_v1_moe", BASE | {"head_dim": 16, "num_experts": 6, "moe_topk": [2] * 6}),
    ("hy_v3", BASE | EXPERTS | {"head_dim": 16, "num_shared_experts": 1, "mlp_layer_types": SPARSE}),
    ("hyperclovax", BASE),
    ("internlm3", BASE | {"head_dim": 16}),
    ("iquestcoder", BASE | {"head_dim": 16}),
    ("jais2", BASE | {"head_dim": 16}),
    ("jais2", BASE | {"head_dim": 16, "attention_bias": False, "mlp_bias": False}),
    ("kolibri1", LOCAL | SHARED | {"head_dim": 16, "moe_intermediate_size": 40, "sliding_window": 32}),
    ("llama4_text", LLAMA4),
    ("llama4_text", LLAMA4 | {"interleave_moe_layer_step": 1, "attention_bias": True}),
    ("mellum", LOCAL | {"head_dim": 16, "moe_intermediate_size": 40}),
    ("minicpm3", LATENT),
    ("minimax_m2", LOCAL | {"head_dim": 16}),
    ("ministral", BASE | {"head_dim": 16, "sliding_window": 32}),
    ("ministral3", BASE | {"head_dim": 16}),
    ("mpt", {"vocab_size": 1000, "d_model": 64, "n_layers": 3, "n_heads": 8, "max_seq_len": 128}),
    ("nanochat", BASE),
    ("olmo", BASE),
    ("olmo2", BASE | {"attention_bias": True}),
    ("olmo3", BASE | {"sliding_window": 32}),
    ("olmoe", BASE | {"num_experts": 6, "num_experts_per_tok": 2}),
    ("openai-gpt", GPT2),
    ("persimmon", ENCODER),
    ("persimmon", ENCODER | {"qk_layernorm": False}),
    ("phimoe", LOCAL | {"sliding_window": 32}),
    ("phimoe", LOCAL | {"attention_bias": True, "lm_head_bias": True}),
    ("seed_oss", BASE | {"head_dim": 16}),
    ("smollm3", BASE),
    ("solar_open", GLM_MOE | {"head_dim": 16, "first_k_dense_replace": 0}),
    ("stablelm", BASE),
    ("stablelm", BASE | {"qk_layernorm": True, "use_qkv_bias": True, "use_parallel_residual": True}),
    ("vaultgemma", BASE | {"head_dim": 32, "sliding_window": 32}),
    ("xglm", {"vocab_size": 1000, "d_model": 64, "num_layers": 3, "attention_heads": 8, "ffn_dim": 200}),
    ("youtu", LATENT),
    ("afmoe", BASE | EXPERTS | {"head_dim": 16, "sliding_window": 32, "num_shared_experts": 1, "num_dense_layers": 2}),
    ("bailing_hybrid", KIMI | {
        "head_dim": 12, "layer_types": None, "layer_group_size": 3, "num_nextn_predict_layers": 0,
    }),
    ("bamba", HYBRID | {"attn_layer_indices": [1, 4]}),
    ("bamba", HYBRID | {"attn_layer_indices": [3], "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True}),
    ("deepseek_v32", INDEXED),
    ("deepseek_v32", INDEXED | {"attention_bias": True}),
    ("falcon_h1", HYBRID | {"mamba_d_ssm": 128}),
    ("falcon_h1", HYBRID | {"mamba_d_ssm": 128, "mamba_rms_norm": True, "projectors_bias": True}),
    ("falcon_mamba", STATE | {"time_step_rank": 6}),
    ("glm_moe_dsa", INDEXED),
    ("glm_moe_dsa", INDEXED | {"indexer_types": ["full", "shared", "shared"] * 2}),
    ("granitemoehybrid", HYBRID | {
        "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 80, "intermediate_size": 40,
        "layer_types": ["linear_attention", "full_attention"] * 3,
    }),
    ("granitemoehybrid", HYBRID | {
        "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 80,
        "layer_types": ["linear_attention", "full_attention"] * 3, "position_embedding_type": "rope",
    }),
    ("jamba", JAMBA),
    ("jamba", JAMBA | {"expert_layer_period": 3, "expert_layer_offset": 2, "mamba_proj_bias": True}),
    ("kimi_linear", KIMI | {"linear_num_heads": 4, "linear_head_dim": 12}),
    ("lara_mini", DELTA | EXPERTS | SHARED | {
        "layer_types": ["linear_attention", "sliding_attention", "full_attention"] * 2, "sliding_window": 32,
    }),
    ("lfm2", BASE | {"layer_types": ["conv", "full_attention"] * 3}),
    ("lfm2", BASE | {"full_attn_idxs": [2, 5], "conv_bias": True, "block_auto_adjust_ff_dim": False}),
    ("lfm2_moe", BASE | EXPERTS | {"num_dense_layers": 2, "layer_types": ["conv", "full_attention"] * 3}),
    ("mamba", STATE),
    ("mamba", STATE | {"time_step_rank": 6, "use_bias": True, "tie_word_embeddings": False}),
    ("mamba2", STATE | {"num_heads": 8, "head_dim": 16, "n_groups": 2}),
    ("mamba2", STATE | {"num_heads": 8, "head_dim": 16, "n_groups": 1, "use_bias": True, "use_conv_bias": False}),
    ("minimax", LOCAL | {"head_dim": 16}),
    ("nemotron_h", NEMOTRON_H | {"hybrid_override_pattern": "M-M*-M-"}),
    ("nemotron_h", NEMOTRON_H | {"hybrid_override_pattern": "MEM*EME", "moe_latent_size": 32}),
    ("olmo_hybrid", DELTA),
    ("qwen3_5_moe_text", DELTA | EXPERTS | SHARED),
    ("qwen3_5_text", DELTA | {"tie_word_embeddings": True}),
    ("qwen3_next", DELTA | EXPERTS | SHARED),
    ("qwen3_next", DELTA | EXPERTS | SHARED | {"mlp_only_layers": [0], "attention_bias": True}),
    ("recurrent_gemma", BASE | {"intermediate_size": 176, "lru_width": 80, "attention_window_size": 32}),
    ("zamba", ZAMBA | {"num_hidden_layers": 14}),
    ("zamba", ZAMBA | {"num_hidden_layers": 11, "attn_layer_period": 3, "attn_layer_offset": 0}),
    ("zamba", ZAMBA | {
        "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "mamba", "mamba"], "attention_head_dim": 12,
        "num_key_value_heads": 2, "n_mamba_heads": 1, "mamba_dt_rank": 5, "mamba_proj_bias": True,
        "mamba_conv_bias": False,
    }),
    ("zamba2", ZAMBA | {"layers_block_type": ["mamba", "hybrid", "mamba"] * 2}),
    ("zamba2", ZAMBA | {
        "layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid", "hybrid", "hybrid"], "num_mem_blocks": 2,
        "use_shared_attention_adapter": True, "adapter_rank": 12, "use_mem_rope": True, "n_mamba_heads": 16,
        "mamba_ngroups": 2, "mamba_d_state": 24, "add_bias_linear": True,
    }),
    ("zamba2", ZAMBA | {
        "layers_block_type": ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"], "num_mem_blocks": 3,
        "num_key_value_heads": 4, "intermediate_size": None, "use_conv_bias": False, "tie_word_embeddings": False,
    }),
    ("zamba2", {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 54, "num_attention_heads": 8}),
)  # fmt: skip


def cases() -> Iterator[dict[str, Any]]:
    """Yield config and parameters of each case."""
    import transformers  # type: ignore[import-not-found]

    for model_type, fields in CASES:
        config = transformers.CONFIG_MAPPING[model_type](**{"pad_token_id": 0, **fields})
        named = (fields.get("architectures") or [""])[0]
        yield {
            "given": {"model_type": model_type, **fields},
            "config": written(config),
            "parameters": parameters(config, named),
        }


def defaults() -> Iterator[dict[str, Any]]:
    """Yield every causal language model that transformers builds without being told a size: its config, and its
    parameters where we read the family."""
    import transformers
    from transformers.models.auto.modeling_auto import (  # type: ignore[import-not-found]
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    for model_type in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        row: dict[str, Any] = {"model_type": model_type}
        if SYNONYMS.get(model_type, model_type) in FAMILIES:
            try:
                config = transformers.CONFIG_MAPPING[model_type]()
                row |= {"parameters": parameters(config, ""), "config": written(config)}
            except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:  # its own code rejects it
                row["unbuilt"] = type(error).__name__
        yield row


def parameters(config: Any, named: str) -> int:
    """Return the parameters of a model on the meta device. The bias that balances experts is a buffer there, and
    counts."""
    import torch
    import transformers

    build = getattr(transformers, named) if named else transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = build(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters()) + balancing(model)


def balancing(model: Any) -> int:
    """Return the elements of the buffers that balance experts."""
    return sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith(BALANCING))


def written(config: Any) -> dict[str, Any]:
    """Return what transformers writes into `config.json`, without what says nothing of the model."""
    return {key: value for key, value in config.to_dict().items() if key not in BOILERPLATE}


def main() -> None:
    import transformers

    models, causal = (",\n".join("  " + json.dumps(row) for row in rows) for rows in (cases(), defaults()))
    text = f'{{"transformers": "{transformers.__version__}", "models": [\n{models}\n], "causal": [\n{causal}\n]}}\n'
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
