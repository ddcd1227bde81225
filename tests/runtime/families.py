"""A small config of every family that `shardwright train` runs, and further ones of what families have beside that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.spec.count_with_transformers import CASES as COUNTED

from shardwright.spec.read.families import TRAINED

Config = dict[str, Any]
LAYERS, VOCAB, WINDOW = 3, 67, 5
SMALL: Config = {
    "vocab_size": VOCAB, "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 48, "ffn_dim": 40,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "word_embed_proj_dim": 32,
    "moe_intermediate_size": 16, "sliding_window": WINDOW, "window_size": WINDOW, "first_k_dense_replace": 1,
    "num_local_experts": 4, "num_experts": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "moe_topk": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 2,
    "mamba_d_head": 8, "attention_types": [[["global", "local"], 1], [["global"], 1]],
}  # fmt: skip
YARN: Config = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7,
}  # fmt: skip
LLAMA3: Config = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONGROPE: Config = {
    "rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 64, "factor": 4.0,
}  # fmt: skip
BETWEEN = ["linear_attention", "full_attention", "linear_attention"]
# With wide keys the gradients of decays, here and in transformers, are twice the tolerance from those in double precision.
# Of OLMo Hybrid transformers 5.24 writes the convolution in equal thirds, whatever the widths of keys and values.
OWN_SIZES: dict[str, Config] = {
    "qwen3_5_moe_text": {"linear_key_head_dim": 4},
    "falcon_h1": {"mamba_d_ssm": 64},
    "kimi_linear": {"layer_types": BETWEEN},
    "lfm2_moe": {"num_dense_layers": 1},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 3, "mamba_dt_rank": 6},
    "nemotron_h": {"n_routed_experts": 4, "chunk_size": 4},
    "minimax": {"layer_types": BETWEEN, "block_size": 5, "num_local_experts": 4},
    "olmo_hybrid": {
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 12,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 6,
    },
}
SHARING: Config = {"layers_block_type": ["hybrid", "linear_attention", "hybrid"], "chunk_size": 5}
OWN_SIZES |= {"zamba": SHARING | {"mamba_dt_rank": 3}, "zamba2": SHARING | {"n_mamba_heads": 4, "adapter_rank": 6}}
FACTORS: Config = {
    "embedding_multiplier": 5.0, "lm_head_multiplier": 0.4, "key_multiplier": 0.3, "mlp_multipliers": [0.7, 0.6],
    "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.5,
    "ssm_multipliers": [0.9, 0.6, 0.7, 0.8, 0.4], "mamba_chunk_size": 5,
}  # fmt: skip
LINEAR: Config = {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}
BESIDE: dict[str, tuple[str, Config]] = {
    "llama, scaled as in Llama 3.1, tied": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama, scaled linearly": ("llama", {"rope_parameters": LINEAR}),
    "qwen2, YaRN": ("qwen2", {"rope_parameters": YARN}),
    "deepseek_v3, YaRN": ("deepseek_v3", {"rope_parameters": YARN}),
    "gpt_oss, YaRN that is not truncated": ("gpt_oss", {"rope_parameters": YARN | {"truncate": False}}),
    "phi3, longrope": ("phi3", {"rope_parameters": LONGROPE}),
    "phi3, longrope, long": (
        "phi3", {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 8}}
    ),
    "phi3, partial rotary": ("phi3", {"partial_rotary_factor": 0.5}),
    "deepseek_v2, groups": ("deepseek_v2", {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}),
    "granite, all scaled": (
        "granite",
        {"embedding_multiplier": 6.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1, "logits_scaling": 3.0},
    ),
    "gemma3, another window base": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}},
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 17},
    ),
    "gemma2, low caps": ("gemma2", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.5}),
    "cohere, a norm for each head": ("cohere", {"use_qk_norm": True}),
    "olmo, clipped": ("olmo", {"clip_qkv": 0.05}),
    "cohere2, two windows": ("cohere2", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "bamba, short chunks": ("bamba", {"mamba_chunk_size": 4}),
    "granite hybrid, dense": (
        "granitemoehybrid", {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope", "mamba_chunk_size": 8}
    ),
    "mamba, biases": ("mamba", {"time_step_rank": 6, "use_bias": True, "tie_word_embeddings": False, "use_conv_bias": False}),
    "minimax, scaled": ("minimax", {"full_attn_alpha_factor": 1.5, "full_attn_beta_factor": 0.5,
                                    "linear_attn_alpha_factor": 0.8, "mlp_beta_factor": 1.2, "mlp_alpha_factor": 1.1}),
    "nemotron_h, experts": ("nemotron_h", {"hybrid_override_pattern": "MEM*EME", "moe_latent_size": 16}),
    "nemotron_h, biases, long steps": ("nemotron_h", {"use_bias": True, "mlp_bias": True, "time_step_min": 0.7}),
    "olmo_hybrid, no rotation": (
        "olmo_hybrid", {"rope_parameters": {"rope_theta": None, "rope_type": "default"}, "linear_allow_neg_eigval": False}
    ),
    "falcon_h1, scaled": ("falcon_h1", FACTORS),
    "falcon_h1, norms and biases": (
        "falcon_h1", FACTORS | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "projectors_bias": True, "mamba_proj_bias": True,
                                "attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False}
    ),
    "bailing_hybrid, unbounded decays": (
        "bailing_hybrid", {"kda_safe_gate": False, "q_lora_rank": 24, "num_expert_group": 2, "topk_group": 1}
    ),
    "zamba, one head": (
        "zamba", {"n_mamba_heads": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "attention_head_dim": 12, "num_key_value_heads": 2}
    ),
    "zamba2, two blocks": (
        "zamba2", {"layers_block_type": ["hybrid"] * 3, "num_mem_blocks": 2, "use_shared_attention_adapter": True, "use_mem_rope": True,
                   "mamba_ngroups": 2, "add_bias_linear": True, "rms_norm_eps": 1e-3, "time_step_min": 0.6}
    ),
    "lfm2, biases": ("lfm2", {"conv_bias": True}),
    "smollm3, one not rotated": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
}  # fmt: skip
# Three that transformers itself cannot run, or that are refused: the precision of Falcon's ALiBi, a norm for each head, one
# before a gate that its fused kernels put after it (Falcon-H1).
LEFT_OUT: dict[str, Config] = {
    "falcon": {"alibi": True}, "stablelm": {"qk_layernorm": True}, "opt": {"word_embed_proj_dim": 32},
    "falcon_h1": {"mamba_rms_norm": True},
}  # fmt: skip


def small(family: str, fields: Config) -> Config:
    """Return a config with small sizes in place of its own."""
    listed = {
        name: value[:LAYERS] for name, value in fields.items() if value and name in ("mlp_layer_types", "layer_types")
    }
    given = fields | {name: SMALL[name] for name in fields if SMALL.get(name) and fields[name]} | listed
    given |= {"num_key_value_heads": 4} if fields.get("num_key_value_heads") == 8 else {}
    given = {name: value for name, value in given.items() if name != "mlp_only_layers"}
    if "n_routed_experts" in given:  # one number of experts, by whatever names
        names = {"num_experts", "num_local_experts"} & given.keys()
        given |= dict.fromkeys(names, given["n_routed_experts"])
    given |= {"mask_token_id": 3} if family == "bert" else {}
    given |= (
        {"layer_types": BETWEEN} if family in ("olmo_hybrid", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_text") else {}
    )
    given |= {"attn_layer_indices": [1]} if family == "bamba" else {}
    given |= OWN_SIZES.get(family, {})
    if family == "nemotron_h":
        given["hybrid_override_pattern"] = "M*E" if "E" in fields["hybrid_override_pattern"] else "M-*"
    return {"model_type": family, "pad_token_id": 0, "num_nextn_predict_layers": 0, **given}


def counted() -> Iterator[tuple[str, Config]]:
    """Yield the name and the small config of each case whose parameters are counted, where `train` runs it."""
    for number, (family, fields) in enumerate(COUNTED):
        refused = family in LEFT_OUT and all(fields.get(name) == value for name, value in LEFT_OUT[family].items())
        broken = family == "falcon" and fields.get("new_decoder_architecture") and not fields.get("parallel_attn", True)
        if family in TRAINED and not refused and not broken and _whole(fields):
            yield f"{family} {number}", small(family, fields)


def _whole(fields: Config) -> bool:
    """Whether a config names no class, or the one with the output projection."""
    return fields.get("architectures", ["ForCausalLM"])[0].endswith(("ForCausalLM", "ForMaskedLM"))


def first_of_each() -> dict[str, Config]:
    """Return a config of each family, and the further ones."""
    found: dict[str, Config] = {}
    for _, config in counted():
        found.setdefault(config["model_type"], config)
    return found | {name: small(family, dict(_plain(family)) | fields) for name, (family, fields) in BESIDE.items()}


def _plain(family: str) -> Config:
    return next(fields for name, fields in COUNTED if name == family)
