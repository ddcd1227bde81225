"""Fields of a Hugging Face `config.json` under their many spellings, validated, and which of them are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from shardwright.errors import Problem
from shardwright.records import record
from shardwright.spec.text.fields import Section, shown

MOST_SIZE, MOST_WIDTH, MOST_LAYERS = 100_000_000, 1_000_000, 10_000

# Spellings by family of models, the common one first.
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff")
DENSE_WIDTH = ("intermediate_size_mlp",)  # of layers without experts, where `intermediate_size` is that of experts
VOCAB = ("padded_vocab_size", "vocab_size")
HEAD_DIM = ("head_dim", "kv_channels")
POSITIONS = (
    "max_position_embeddings",
    "model_max_length",
    "n_positions",
    "seq_length",
    "max_sequence_length",
    "max_seq_len",
)
ACTIVATION = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function", "activation", "afn")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
SHARED_WIDTH = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
EPSILON = (
    "rms_norm_eps",
    "rms_norm_epsilon",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
)
PREDICTED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers")
ROTARY_BASE = ("rope_theta", "rotary_emb_base")
ROTARY_FRACTION = ("partial_rotary_factor", "rotary_pct", "rope_percent")
DROPOUT = (
    "dropout", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "residual_dropout", "embedding_dropout",
)  # fmt: skip
READ = frozenset(
    {
        *HIDDEN, *LAYERS, *HEADS, *KV_HEADS, *WIDTH, *DENSE_WIDTH,
        *VOCAB, *HEAD_DIM, *POSITIONS, *ACTIVATION, *EXPERTS, *TOP_K,
        *EXPERT_WIDTH, *SHARED_EXPERTS, *SHARED_WIDTH, *EPSILON, *PREDICTED,
        *ROTARY_BASE, *ROTARY_FRACTION, *DROPOUT,
        "add_bias_linear", "add_qkv_bias", "alibi", "architectures", "attention_bias", "attention_chunk_size",
        "attention_layers", "attention_multiplier", "attention_out_bias", "attention_types", "attn_config",
        "attn_logit_softcapping", "bias", "clip_qkv", "decoder_sparse_step", "dim_model_base", "do_layer_norm_before",
        "embedding_multiplier", "enable_bias", "expansion_ratio", "final_logit_softcapping", "first_k_dense_replace",
        "interleave_moe_layer_step", "kv_lora_rank", "layer_types", "lm_head_bias", "logit_scale", "logits_scaling",
        "mask_token_id", "max_window_layers",
        "mlp_bias", "mlp_layer_types", "mlp_only_layers", "model_type", "moe_layer_end_index",
        "moe_layer_freq", "moe_layer_interval", "moe_layer_start_index", "moe_layers", "multi_query",
        "multi_query_attention", "n_group", "new_decoder_architecture", "no_rope_layer_interval", "no_rope_layers",
        "norm_topk_prob", "num_dense_layers", "num_ln_in_parallel_attn", "original_max_position_embeddings",
        "parallel_attn", "post_layer_norm", "q_lora_rank", "qk_layernorm", "qk_nope_head_dim", "qk_rope_head_dim",
        "qkv_bias", "query_pre_attn_scalar", "residual_multiplier", "rmsnorm", "rope_interleave",
        "rope_local_base_freq", "rope_parameters", "rope_ratio", "rope_scaling", "rotary_dim", "routed_scaling_factor",
        "router_scaling_factor", "scale_depth", "scale_emb", "scale_embedding", "sliding_window",
        "sliding_window_pattern", "swiglu_alpha", "swiglu_limit", "tie_word_embeddings", "topk_group",
        "type_vocab_size", "use_bias", "use_parallel_residual", "use_qkv_bias", "use_sliding_window", "v_head_dim",
        "window_size", "word_embed_proj_dim",
        "attn_layer_indices", "block_auto_adjust_ff_dim", "block_ff_dim", "block_ffn_dim_multiplier",
        "block_multiple_of", "conv_L_cache", "conv_bias", "full_attention_interval", "full_attn_idxs",
        "linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
        "linear_value_head_dim", "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv", "mamba_d_head",
        "mamba_d_state", "mamba_expand", "tie_embedding", "mamba_n_groups", "mamba_n_heads", "mamba_proj_bias",
        "chunk_size", "conv_kernel", "expand", "hybrid_override_pattern", "layers_block_type",
        "linear_allow_neg_eigval", "mamba_head_dim", "mamba_num_heads", "moe_latent_size", "n_groups",
        "ssm_state_size", "time_step_min", "use_conv_bias",
        "attn_layer_offset", "attn_layer_period", "attn_type_list", "block_size", "expert_layer_offset",
        "expert_layer_period", "full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor",
        "linear_attn_beta_factor", "mamba_dt_rank", "mixer_rms_eps", "mlp_alpha_factor", "mlp_beta_factor",
        "state_size", "time_step_rank", "use_expert_bias",
        "attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "lm_head_multiplier", "mamba_d_ssm",
        "mamba_norm_before_gate", "mamba_rms_norm", "mlp_multipliers", "projectors_bias", "ssm_in_multiplier",
        "ssm_multipliers", "ssm_out_multiplier",
        "kda_lower_bound", "kda_safe_gate", "layer_group_size", "linear_attn_config", "linear_head_dim",
        "linear_num_heads", "moe_renormalize", "num_expert_group", "short_conv_kernel_size",
        "use_grouped_topk",
        "adapter_rank", "attention_head_dim", "attention_hidden_size", "mamba_ngroups", "n_mamba_heads",
        "num_mem_blocks", "use_mem_rope", "use_shared_attention_adapter",
    }
)  # fmt: skip
BESIDE = frozenset(
    {
        "activation_dropout", "attention_softmax_in_fp32", "auto_map", "aux_loss_alpha", "begin_suppress_tokens",
        "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "classifier_dropout_prob",
        "cache_implementation", "conv_type", "decoder_start_token_id", "directionality", "dtype", "emb_pdrop",
        "embed_dropout", "embedding_fraction", "embedding_initializer_range", "enable_moe_fp32_combine",
        "eod_token_id", "eos_token_id", "ep_size", "expert_selection_fn", "finetuning_task", "forced_bos_token_id",
        "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_device", "init_std", "initializer_factor",
        "initializer_range", "is_encoder_decoder", "keys_to_ignore_at_inference", "label2id", "label_names",
        "layerdrop", "learned_pos_emb", "masked_softmax_fusion", "moe_norm_min", "mtp_layer_types",
        "mtp_mlp_layer_types", "n_ctx", "name_or_path", "no_bias", "norm_type", "num_labels", "offset_alibi",
        "output_attentions", "output_hidden_states", "output_past", "output_router_logits", "pad_token_id",
        "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
        "prefix", "pretraining_tp", "problem_type", "qk_head_dim", "reorder_and_upcast_attn", "resid_dropout",
        "resid_pdrop", "return_dict", "router_aux_loss_coef", "router_jitter_noise", "input_jitter_noise", "save_step",
        "scale_attention_softmax_in_fp32", "sep_token_id", "seq_aux", "skip_bias_add", "skip_bias_add_qkv",
        "slow_but_exact", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
        "summary_use_proj", "task_specific_params", "text_config", "tokenizer_class", "torch_dtype",
        "transformers_version", "unk_index", "unk_token_id", "use_cache", "verbose", "vision_config", "vq_config",
        "mamba_dt_max", "mamba_dt_min", "num_logits_to_keep", "time_step_floor", "time_step_max",
        "use_mamba_kernels", "z_loss_coefficient", "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor",
        "linear_dt_max", "linear_dt_min", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
        "mtp_hybrid_override_pattern", "mtp_layers_block_type", "rescale_prenorm_residual", "residual_in_fp32",
        "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_mambapy",
        "audio_config", "image_token_id", "image_token_index", "boi_token_id", "eoi_token_id", "experts_implementation",
        "mtp_loss_scaling_factor",
        "hybrid_layer_ids", "mamba_headdim", "num_query_groups", "use_mem_eff_path",
    }
)  # fmt: skip


@record(kw_only=False)
class ConfigFields:
    """One config with the problems and assumptions found while it is read.

    A size that is missing or wrong is read as 1 where it is required: its problem is raised before anybody uses it.
    """

    section: Section
    assumed: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object], name: str) -> ConfigFields:
        return cls(Section(name, config, []))

    @property
    def problems(self) -> list[Problem]:
        return self.section.problems

    def has(self, names: tuple[str, ...]) -> str | None:
        """Return the first of `names` that is present and not null."""
        return next((name for name in names if self.section.fields.get(name) is not None), None)

    def size(self, *names: str, most: int = MOST_SIZE) -> int | None:
        """Return the whole number under the first of `names` that is present; None where all are missing."""
        name = self.has(names)
        return None if name is None else self.section.integer(name, most=most)

    def required(self, *names: str, most: int = MOST_SIZE) -> int:
        """Return the same; a missing number is a problem, and 1 stands in until it is raised."""
        if self.has(names) is None:
            spellings = " or ".join(names[1:])
            self.section.report(names[0], "is missing", f"{spellings} would do as well" if spellings else "add it")
            return 1
        return self.size(*names, most=most) or 1

    def count(self, *names: str, most: int = MOST_SIZE) -> int:
        """Return a whole number that may be zero or missing (then zero)."""
        name = self.has(names)
        return 0 if name is None else self.section.count(name, most=most)

    def fraction(self, *names: str, most: float = 1e15) -> float | None:
        """Return a number from 0 to `most` under the first of `names` that is present."""
        name = self.has(names)
        return None if name is None else self.section.number(name, zero=True, most=most)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return self.section.flag(name, default=default)

    def text(self, *names: str, default: str) -> str:
        """Return a text; a list of one text counts as that text."""
        name = self.has(names)
        value = default if name is None else self.section.fields[name]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            self.section.report(name or names[0], f"expected a text, got {shown(value)}", "write a name")
            return default
        return value

    def layer_list(self, name: str) -> tuple[object, ...]:
        """Return a list of values per layer, empty where missing."""
        listed = self.section.given(
            name,
            lambda value: isinstance(value, list) and len(value) <= MOST_LAYERS,
            "a list",
            "write one value for each layer",
        )
        return tuple(listed or ())

    def inner(self, name: str) -> ConfigFields | None:
        """Return the mapping under `name` as fields of their own, which share problems and assumptions."""
        section = self.section.inner(name)
        return None if section is None else ConfigFields(section, self.assumed, self.guessed)

    def over(self, fields: Mapping[str, object]) -> ConfigFields:
        """Return other fields that share problems, assumptions and guesses with these."""
        return replace(self, section=replace(self.section, fields=fields))

    def assume(self, words: str) -> None:
        """Record what the config leaves open, and a known family settles."""
        self.assumed.append(words)

    def guess(self, words: str) -> None:
        """Record what nobody knows: the user must accept it."""
        self.guessed.append(words)
