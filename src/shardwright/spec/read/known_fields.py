"""Fields of a Hugging Face `config.json`: which are read, and which say nothing of the forward pass."""

from __future__ import annotations

from shardwright.spec.read import config_fields as spelled

READ = frozenset(
    {
        *spelled.HIDDEN, *spelled.LAYERS, *spelled.HEADS, *spelled.KV_HEADS, *spelled.WIDTH, *spelled.DENSE_WIDTH,
        *spelled.VOCAB, *spelled.HEAD_DIM, *spelled.POSITIONS, *spelled.ACTIVATION, *spelled.EXPERTS, *spelled.TOP_K,
        *spelled.EXPERT_WIDTH, *spelled.SHARED_EXPERTS, *spelled.SHARED_WIDTH, *spelled.EPSILON, *spelled.PREDICTED,
        *spelled.ROTARY_BASE, *spelled.ROTARY_FRACTION, *spelled.DROPOUT,
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
    }
)  # fmt: skip
BESIDE = frozenset(
    {
        "activation_dropout", "attention_softmax_in_fp32", "auto_map", "aux_loss_alpha", "begin_suppress_tokens",
        "block_size", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "classifier_dropout_prob",
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
        "audio_config", "image_token_id", "image_token_index", "boi_token_id", "eoi_token_id", "experts_implementation",
    }
)  # fmt: skip
