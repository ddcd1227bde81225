"""The `config.json` of a model: the way back from `huggingface`, so that other tools open its weights.

A config is written by the names that transformers has for the family, and read again at once: what does not come back
as it was is refused by name, so that no file describes another model than its weights are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.spec.forward_pass import ForwardPass
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.mixers import Mamba, Mamba2, ShortConvolution
from shardwright.spec.model import Model
from shardwright.spec.read.families import FAMILIES, TRAINED, ModelFamily
from shardwright.spec.read.forward_pass import STREAMS
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.mixers import fields_of

Config = dict[str, Any]
# What families call sizes, where it is not as most do. All of these are also attributes by the common name.
GPT2 = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "hidden_act": "activation_function",
        "norm_eps": "layer_norm_epsilon"}  # fmt: skip
NEO = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "hidden_act": "activation_function",
       "norm_eps": "layer_norm_epsilon"}  # fmt: skip
STATE = {"norm_eps": "layer_norm_epsilon", "mamba_d_state": "state_size", "mamba_n_groups": "n_groups",
         "mamba_d_conv": "conv_kernel", "mamba_expand": "expand", "mamba_proj_bias": "use_bias",
         "mamba_conv_bias": "use_conv_bias", "mamba_chunk_size": "chunk_size"}  # fmt: skip
OF_LAYER_NORM = ("gpt_neox", "phi", "bert", "stablelm", "persimmon", "cohere", "cohere2", "biogpt")
NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("gpt2", "gpt_bigcode", "gptj", "codegen"), GPT2),
        "openai-gpt": {**GPT2, "hidden_act": "afn"},
        "gpt_neo": NEO,
        "bloom": {
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "norm_eps": "layer_norm_epsilon",
        },
        "falcon": {
            "norm_eps": "layer_norm_epsilon",
            "intermediate_size": "ffn_hidden_size",
            "hidden_act": "activation",
        },
        "mpt": {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                "max_position_embeddings": "max_seq_len", "norm_eps": "layer_norm_epsilon"},
        "opt": {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        "starcoder2": {"norm_eps": "norm_epsilon"},
        **{family: {**STATE, "mamba_dt_rank": "time_step_rank"} for family in ("falcon_mamba", "mamba")},
        "mamba2": {**STATE, "mamba_n_heads": "num_heads", "mamba_d_head": "head_dim"},
        "nemotron_h": {**STATE, "hidden_act": "mlp_hidden_act", "mamba_n_heads": "mamba_num_heads",
                       "mamba_d_head": "mamba_head_dim", "mamba_d_state": "ssm_state_size",
                       "layer_types": "layers_block_type"},
        **{key: {"norm_eps": "norm_eps"} for key in ("nemotron", "jais2", "lfm2", "lfm2_moe")},
        **{family: {"norm_eps": "layer_norm_eps"} for family in OF_LAYER_NORM},
        **{key: {"hidden_act": "hidden_activation"} for key in ("gemma", "gemma2", "gemma3_text", "vaultgemma")},
    }
)  # fmt: skip
EPSILONS = {"norm_eps": "rms_norm_eps"}
EXPERTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "mixtral": {"experts": "num_local_experts", "width": "intermediate_size"},
        "jamba": {"experts": "num_experts", "width": "intermediate_size"},
        "minimax": {"experts": "num_local_experts", "width": "intermediate_size"},
        "gpt_oss": {"experts": "num_local_experts", "width": "intermediate_size"},
        **{
            key: {"experts": "num_local_experts", "width": "intermediate_size"}
            for key in ("granitemoe", "granitemoehybrid", "granitemoeshared")
        },
        "olmoe": {"experts": "num_experts", "width": "intermediate_size"},
        "flex_olmo": {"experts": "num_experts", "width": "intermediate_size"},
        "minimax_m2": {"experts": "num_local_experts", "width": "intermediate_size"},
        **{
            key: {"experts": "n_routed_experts", "width": "moe_intermediate_size", "shared": "n_shared_experts"}
            for key in ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1", "solar_open")
        },
        **{
            key: {
                "experts": "num_experts",
                "width": "moe_intermediate_size",
                "top_k": "num_experts_per_token",
                "shared": "num_shared_experts",
            }
            for key in ("bailing_hybrid", "kimi_linear")
        },
        "ernie4_5_moe": {
            "experts": "moe_num_experts",
            "width": "moe_intermediate_size",
            "top_k": "moe_k",
            "shared": "moe_num_shared_experts",
        },
        "nemotron_h": {
            "experts": "n_routed_experts",
            "width": "moe_intermediate_size",
            "shared_width": "moe_shared_expert_intermediate_size",
            "latent": "moe_latent_size",
        },
        "lfm2_moe": {
            "experts": "num_experts",
            "width": "moe_intermediate_size",
            "leading": "num_dense_layers",
            "balance": "use_expert_bias",
        },
        "hunyuan_v1_moe": {
            "experts": "num_experts",
            "width": "moe_intermediate_size",
            "top_k": "moe_topk",
            "shared": "num_shared_expert",
        },
    }
)
# Families that pad by a token of their own vocabulary unless they are told otherwise.
PADDED: Mapping[str, int | None] = MappingProxyType(
    {
        **dict.fromkeys(
            ("bailing_hybrid", "phi3", "glm", "glm4", "flex_olmo", "kimi_linear", "olmo_hybrid", "smollm3")
        ),
        "emu3_text_model": 0,
    }
)
# Classes of families that have several, or that no automatic class knows.
CLASSES = MappingProxyType({"bert": "BertForMaskedLM", "emu3_text_model": "Emu3ForCausalLM"})
QWEN_EXPERTS = {
    "experts": "num_experts",
    "width": "moe_intermediate_size",
    "shared_width": "shared_expert_intermediate_size",
}


def config_of_model(model: Model) -> Config:
    """Return the `config.json` of a model. Raises SpecError for one whose config does not come back as the same."""
    family = FAMILIES.get(model.family)
    if family is None:
        raise bad(model.name, f"{model.family} has no config.json of Hugging Face", "write one by hand")
    if model.family not in TRAINED and any(kind.mixer for kind in model.kinds):
        raise bad(model.name, "config.json is not written for layers without plain attention", "copy the original's")
    names = {**EPSILONS, **NAMES.get(model.family, {})}
    config = {names.get(key, key): value for key, value in _fields(model, family) if value is not None}
    config |= {"pad_token_id": PADDED[model.family]} if model.family in PADDED else {}
    try:
        again = model_of_config(config, model.name)
    except SpecError as error:
        raise bad(
            model.name, f"its config.json is not known: {error.problems[0].message}", "copy the original's"
        ) from None
    other = [field.name for field in fields(Model) if field.name not in SOURCES and _differs(model, again, field.name)]
    if other:
        message = f"its config.json is not known: {', '.join(other)} would not come back as described"
        raise bad(model.name, message, "copy the original's")
    return config


SOURCES = ("name", "guesses", "assumed", "max_position", "dropout", "norm_epsilon")


def _differs(model: Model, again: Model, name: str) -> bool:
    return bool(getattr(model, name) != getattr(again, name))


def _fields(model: Model, family: ModelFamily) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a config."""
    attention = model.attention
    experts = next((kind.moe for kind in reversed(model.layers) if kind.moe), None)
    dense = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    yield "model_type", model.family
    if model.family in CLASSES:
        yield "architectures", [CLASSES[model.family]]
    sizes = {
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.heads if attention else None,
        "max_position_embeddings": model.max_position or None,
        "hidden_act": "gelu" if model.family == "openai-gpt" else model.activation,
        "norm_eps": model.norm_epsilon,
        "intermediate_size": dense.width if dense else None,
    }
    yield from sizes.items()
    yield "tie_word_embeddings", model.tied_embeddings
    if attention and not attention.latent:
        yield from _heads(model, family, attention)
    yield from _positions(model, family)
    yield from _traits(model, family)
    if experts:
        yield from _experts(model, family, experts)
    yield from _windows(model, family)
    yield from _mixers(model)
    if attention and attention.latent:
        yield from (("num_key_value_heads", attention.heads), ("num_nextn_predict_layers", model.mtp_layers))
        yield from (("q_lora_rank", attention.latent.query_rank), ("kv_lora_rank", attention.latent.kv_rank))
        yield "qk_nope_head_dim", attention.latent.nope_head_dim
        yield from (("qk_rope_head_dim", attention.latent.rope_head_dim), ("v_head_dim", attention.value_head_dim))
    yield from _dropout(model)
    yield from _particular(model)
    if model.family == "falcon_h1":
        yield from _falcon_h1(model, model.computed)
    elif model.family == "minimax":
        for kind, (kept, added) in zip(STREAMS, model.computed.stream_scales or (), strict=True):
            yield from ((f"{kind}_alpha_factor", kept), (f"{kind}_beta_factor", added))


def _heads(model: Model, family: ModelFamily, attention: Attention) -> Iterator[tuple[str, Any]]:
    if model.family == "gpt_bigcode":
        yield "multi_query", attention.kv_heads == 1
    elif model.family == "falcon":
        new = attention.kv_heads not in (1, attention.heads)
        yield from (("new_decoder_architecture", new), ("multi_query", attention.kv_heads == 1 or new))
        yield from (("parallel_attn", model.parallel_block), ("alibi", model.position == "alibi"))
        yield "num_kv_heads", attention.kv_heads if new else None
        yield "num_ln_in_parallel_attn", model.layers[0].norms if new else None
    elif model.family not in ("gpt2", "gpt_neox", "bloom", "openai-gpt", "gptj", "codegen", "gpt_neo", "opt", "biogpt",
                              "mpt", "bert", "persimmon"):  # fmt: skip
        yield "num_key_value_heads", attention.kv_heads
        if (
            attention.head_dim * attention.heads != model.hidden
            or "head_dim" in family.sizes
            or family.blocks == "halves"
        ):
            yield "head_dim", attention.head_dim


def _positions(model: Model, family: ModelFamily) -> Iterator[tuple[str, Any]]:
    if model.position == "none" and family.position == "rope":
        yield "rope_parameters", {"rope_type": "default", "rope_theta": None}
    if model.position != "rope":
        return
    fraction = model.rotary_fraction
    if model.family in ("gptj", "codegen"):
        yield "rotary_dim", round(fraction * model.self_attention.head_dim)
        return
    parameters: Config = {"rope_type": "default", "rope_theta": model.rotary_base}
    if fraction != 1.0:
        yield "partial_rotary_factor", fraction
        parameters["partial_rotary_factor"] = fraction
    if model.family == "gpt_neox":
        yield from (("rotary_pct", fraction), ("rotary_emb_base", model.rotary_base))
    yield "rope_theta", model.rotary_base
    scaling = model.rotary_scaling
    if scaling is not None:
        named = {
            "rope_type": scaling.kind, "factor": scaling.factor, "attention_factor": scaling.attention_factor,
            "original_max_position_embeddings": scaling.original_positions if scaling.kind != "linear" else None,
            "beta_fast": scaling.fast_turns, "beta_slow": scaling.slow_turns, "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all, "truncate": scaling.whole_bounds,
            "low_freq_factor": scaling.low_factor if scaling.kind == "llama3" else None,
            "high_freq_factor": scaling.high_factor if scaling.kind == "llama3" else None,
            "short_factor": list(scaling.short_factors) if scaling.short_factors else None,
            "long_factor": list(scaling.long_factors) if scaling.long_factors else None,
        }  # fmt: skip
        parameters |= {key: value for key, value in named.items() if value is not None}
        if scaling.kind == "longrope":
            yield "original_max_position_embeddings", scaling.original_positions
    base = model.computed.window_rotary_base
    if base is not None:
        inner = {"rope_type": "default", "rope_theta": base}
        yield "rope_parameters", {"full_attention": parameters, "sliding_attention": inner}
        return
    yield "rope_parameters", parameters


def _traits(model: Model, family: ModelFamily) -> Iterator[tuple[str, Any]]:
    """Yield the fields by which a config may state a trait of its family."""
    attention = model.attention
    dense = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    values = {
        "mlp_bias": dense.bias if dense else False, "head_bias": model.head_bias, "parallel": model.parallel_block,
    }  # fmt: skip
    if attention:
        values |= {name: getattr(attention, name) for name in ("qkv_bias", "out_bias", "qk_norm")}
    for name, value in values.items():
        trait = getattr(family, name)
        if not isinstance(trait, bool):
            yield trait[0], value


def _experts(model: Model, family: ModelFamily, moe: Moe) -> Iterator[tuple[str, Any]]:
    names = EXPERTS.get(model.family, QWEN_EXPERTS)
    yield from ((names["experts"], moe.experts), (names["width"], moe.expert_width))
    yield names.get("top_k", "num_experts_per_tok"), moe.top_k
    yield "norm_topk_prob", not moe.pre_softmax if model.family not in ("mixtral", "gpt_oss") else None
    if "shared" in names:
        yield names["shared"], moe.shared_width // moe.expert_width
    elif "shared_width" in names and moe.shared_width:
        yield names["shared_width"], moe.shared_width
    elif model.family in ("granitemoehybrid", "granitemoeshared"):
        yield "shared_intermediate_size", moe.shared_width
    if model.family == "hunyuan_v1_moe":  # whose class takes the width of experts from the common field
        yield "intermediate_size", moe.expert_width
    if "latent" in names:
        yield names["latent"], moe.latent
    if "shared" in names or "latent" in names:
        yield from (("n_group", moe.router_groups or 1), ("topk_group", moe.router_top_groups or 1))
    if model.family == "deepseek_v2":
        yield "topk_method", "group_limited_greedy" if moe.router_groups else "greedy"
    yield "routed_scaling_factor", moe.router_scaling if moe.router_scaling or "shared" not in names else 1.0
    if "balance" in names:
        yield names["balance"], moe.router_bias
    if family.blocks == "whole":
        yield from _sparse(model, names.get("leading") or ("first_k_dense_replace" if "shared" in names else None))


def _sparse(model: Model, counted: str | None) -> Iterator[tuple[str, Any]]:
    """Yield which layers have experts; dense ones before them are `counted` under a name, or all listed."""
    sparse = [kind.moe is not None for kind in model.layers]
    if model.family == "jamba":
        yield from _period("expert_layer", [number for number, there in enumerate(sparse) if there], len(sparse))
        return
    if model.family == "ernie4_5_moe":
        last = len(sparse) - 1 - sparse[::-1].index(True)
        yield from (
            ("moe_layer_start_index", sparse.index(True)),
            ("moe_layer_end_index", last),
            ("moe_layer_interval", 1),
        )
        return
    leading = sparse.index(True)
    if leading and all(sparse[leading:]):
        yield (counted, leading) if counted else ("mlp_only_layers", list(range(leading)))
    elif not all(sparse):
        yield "mlp_only_layers", [number for number, there in enumerate(sparse) if not there]
    elif counted:
        yield counted, 0


def _windows(model: Model, family: ModelFamily) -> Iterator[tuple[str, Any]]:
    windows = [layer.window for layer in model.layers]
    size = next((window for window in windows if window), None)
    if model.family == "gpt_neo":
        kinds = ["local" if window else "global" for window in windows]
        yield from (("attention_types", [[kinds, 1]]), ("attention_layers", kinds), ("window_size", size))
        return
    if family.windows == "none" and size is None:
        return
    yield "sliding_window", size
    if family.windows == "later":
        yield "use_sliding_window", size is not None
    if family.windows != "all" or len(set(windows)) > 1:
        yield "layer_types", ["sliding_attention" if window else "full_attention" for window in windows]


def _mixers(model: Model) -> Iterator[tuple[str, Any]]:
    """Yield the sizes of what mixes tokens beside attention, and which layers have it."""
    mixer = next((kind.mixer for kind in model.kinds if kind.mixer), None)
    if mixer is not None:
        yield from fields_of(mixer, model.hidden)
    attending = [number for number, layer in enumerate(model.layers) if layer.attention]
    if model.family == "bamba":
        yield "attn_layer_indices", attending
    elif model.family == "jamba":
        yield from _period("attn_layer", attending, len(model.layers))
    elif model.family in ("zamba", "zamba2"):
        yield from _shared_blocks(model)
    elif mixer is not None and FAMILIES[model.family].feeds_forward and model.family != "falcon_h1":
        yield "layer_types", [_word(layer) for layer in model.layers]
    if isinstance(mixer, Mamba2) and model.family == "nemotron_h":
        yield "time_step_min", mixer.least_step or 0.0
    if model.family == "granitemoehybrid":
        dense = model.layers[0].mlp
        yield "position_embedding_type", "rope" if model.position == "rope" else "nope"
        if dense is not None:
            yield from (("num_local_experts", 0), ("num_experts_per_tok", 0), ("shared_intermediate_size", dense.width))


def _shared_blocks(model: Model) -> Iterator[tuple[str, Any]]:
    layer, mixer = model.shared_layer, model.layers[0].mixer
    yield "layers_block_type", ["hybrid" if kind.shared else "mamba" for kind in model.layers]
    yield "num_mem_blocks", model.shared_blocks
    if layer is not None:
        yield "attention_head_dim", layer.self_attention.head_dim
    if layer is not None and layer.shared is not None and layer.shared.feed_rank is not None:
        yield "adapter_rank", layer.shared.feed_rank
        yield "use_shared_attention_adapter", layer.shared.attention_rank is not None
        yield "use_mem_rope", model.position == "rope"
    if isinstance(mixer, Mamba2):
        yield from (("n_mamba_heads", mixer.heads), ("mamba_ngroups", mixer.groups), ("chunk_size", mixer.chunk))
        yield from (("add_bias_linear", mixer.bias), ("time_step_min", mixer.least_step or 0.0))
    elif isinstance(mixer, Mamba):
        yield "n_mamba_heads", mixer.heads or 1


def _period(name: str, numbers: list[int], layers: int) -> Iterator[tuple[str, Any]]:
    """Yield the period and the first of equally distant layers."""
    first, second = [*numbers, layers, layers][:2]
    yield from ((f"{name}_offset", first), (f"{name}_period", second - first or layers))


def _word(layer: Layer) -> str:
    """Return what transformers calls a block."""
    if layer.mixer is not None:
        return "conv" if isinstance(layer.mixer, ShortConvolution) else "linear_attention"
    return "full_attention" if layer.attention else "mlp" if layer.mlp else "moe"


def _dropout(model: Model) -> Iterator[tuple[str, Any]]:
    """Weights are opened to be evaluated or trained on; which rates they were trained with no model says."""
    if not model.dropout and model.family in NAMES and "n_embd" in NAMES[model.family].values():
        yield from ((name, 0.0) for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"))
    elif not model.dropout and model.family in ("gpt_neo", "opt"):
        yield "attention_dropout", 0.0
        yield ("resid_dropout", 0.0) if model.family == "gpt_neo" else ("dropout", 0.0)


def _particular(model: Model) -> Iterator[tuple[str, Any]]:
    """Yield what tells the forward pass of families whose sizes do not."""
    computed = model.computed
    if model.family in ("granite", "granitemoe", "granitemoehybrid", "granitemoeshared"):
        yield from (
            ("embedding_multiplier", computed.embedding_scale),
            ("residual_multiplier", computed.residual_scale),
        )
        yield from (("attention_multiplier", computed.score_scale), ("logits_scaling", 1.0 / computed.logit_scale))
    elif model.family == "hyperclovax":
        yield from (
            ("embedding_multiplier", computed.embedding_scale),
            ("residual_multiplier", computed.residual_scale),
        )
        yield from (("attention_multiplier", computed.score_scale), ("logits_scaling", computed.logit_scale))
    elif model.family == "minicpm3":
        yield from (
            ("scale_emb", computed.embedding_scale),
            ("dim_model_base", round(computed.logit_scale * model.hidden)),
        )
        yield "scale_depth", computed.residual_scale * len(model.layers) ** 0.5
    elif model.family in ("gemma2", "gemma3_text", "vaultgemma"):
        yield "query_pre_attn_scalar", _scalar(computed.score_scale, model.self_attention.head_dim)
        yield from (("attn_logit_softcapping", computed.score_cap), ("final_logit_softcapping", computed.logit_cap))
    elif model.family in ("cohere", "cohere2"):
        yield "logit_scale", computed.logit_scale
    elif model.family in ("olmo", "olmoe"):
        yield "clip_qkv", computed.qkv_clip
    elif model.family == "smollm3":
        yield "no_rope_layers", [int(number not in computed.unrotated) for number in range(len(model.layers))]
    elif model.family == "opt":
        yield from (("do_layer_norm_before", computed.norms == "before"), ("word_embed_proj_dim", model.hidden))
    elif model.family == "biogpt":
        yield "scale_embedding", computed.embedding_scale != 1.0
    elif model.family == "bert":
        yield from (("type_vocab_size", computed.token_types), ("mask_token_id", computed.mask_token))
    elif model.family in ("bailing_hybrid", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"):
        yield "rope_interleave", computed.latent_interleaved


def _falcon_h1(model: Model, computed: ForwardPass) -> Iterator[tuple[str, Any]]:
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Mamba2) and computed.branch_scales and computed.stream_scales, "as its config is read"
    yield from (("mamba_d_ssm", mixer.inner), ("mamba_rms_norm", mixer.gated_norm), ("mamba_norm_before_gate", False))
    yield from (("projectors_bias", mixer.out_bias), ("embedding_multiplier", computed.embedding_scale))
    yield from (("lm_head_multiplier", computed.logit_scale), ("ssm_multipliers", list(computed.mixer_scales or ())))
    yield "mlp_multipliers", [computed.gate_scale, computed.stream_scales[2][1]]
    yield "key_multiplier", computed.key_scale
    for name, scales in zip(("attention", "ssm"), computed.branch_scales, strict=True):
        yield from ((f"{name}_in_multiplier", scales[0]), (f"{name}_out_multiplier", scales[1]))


def _scalar(scale: float | None, head_dim: int) -> float:
    """Return the number whose root divides scores, whole where it is."""
    value = float(head_dim) if scale is None else scale**-2
    return round(value) if abs(value - round(value)) < 1e-9 else value
