"""The `config.json` of a model: the way back from `huggingface`, so that other tools open its weights.

A config is written by the names that transformers has for the family, and read again at once: what does not come back
as it was is refused by name, so that no file describes another model than its weights are of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.rows import stated
from shardwright.spec.forward_pass import ForwardPass, RotaryScaling
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.mixers import Mamba, Mamba2, Mixer, ShortConvolution
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
# Families whose classes have no number of heads for keys and values.
WITHOUT_HEADS = ("gpt2", "gpt_neox", "bloom", "openai-gpt", "gptj", "codegen", "gpt_neo", "opt", "biogpt", "mpt",
                 "bert", "persimmon")  # fmt: skip
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
    config = {names.get(key, key): value for key, value in _fields(model, family).items()}
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


def _fields(model: Model, family: ModelFamily) -> Config:
    """Return the fields of a config that say something."""
    attention = model.attention
    experts = next((kind.moe for kind in reversed(model.layers) if kind.moe), None)
    dense = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    sizes = {
        "model_type": model.family,
        "architectures": [CLASSES[model.family]] if model.family in CLASSES else None,
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.heads if attention else None,
        "max_position_embeddings": model.max_position or None,
        "hidden_act": "gelu" if model.family == "openai-gpt" else model.activation,
        "norm_eps": model.norm_epsilon,
        "intermediate_size": dense.width if dense else None,
        "tie_word_embeddings": model.tied_embeddings,
    }
    parts = (
        sizes,
        _heads(model, family, attention) if attention and not attention.latent else {},
        _positions(model, family),
        _traits(model, family),
        _experts(model, family, experts) if experts else {},
        _windows(model, family),
        _mixers(model),
        _latent(model, attention) if attention else {},
        _dropout(model),
        _particular(model),
    )
    return {key: value for part in parts for key, value in part.items() if value is not None}


def _latent(model: Model, attention: Attention) -> Config:
    latent = attention.latent
    if latent is None:
        return {}
    return {
        "num_key_value_heads": attention.heads,
        "num_nextn_predict_layers": model.mtp_layers,
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_head_dim,
        "qk_rope_head_dim": latent.rope_head_dim,
        "v_head_dim": attention.value_head_dim,
    }


def _heads(model: Model, family: ModelFamily, attention: Attention) -> Config:
    if model.family == "gpt_bigcode":
        return {"multi_query": attention.kv_heads == 1}
    if model.family == "falcon":
        new = attention.kv_heads not in (1, attention.heads)
        return {
            "new_decoder_architecture": new,
            "multi_query": attention.kv_heads == 1 or new,
            "parallel_attn": model.parallel_block,
            "alibi": model.position == "alibi",
            "num_kv_heads": attention.kv_heads if new else None,
            "num_ln_in_parallel_attn": model.layers[0].norms if new else None,
        }
    if model.family in WITHOUT_HEADS:
        return {}
    uneven = attention.head_dim * attention.heads != model.hidden
    stated = uneven or "head_dim" in family.sizes or family.blocks == "halves"
    return {"num_key_value_heads": attention.kv_heads, "head_dim": attention.head_dim if stated else None}


def _positions(model: Model, family: ModelFamily) -> Config:
    if model.position != "rope":
        plain = {"rope_type": "default", "rope_theta": None}
        return {"rope_parameters": plain} if model.position == "none" and family.position == "rope" else {}
    fraction, scaling, base = model.rotary_fraction, model.rotary_scaling, model.computed.window_rotary_base
    if model.family in ("gptj", "codegen"):
        return {"rotary_dim": round(fraction * model.self_attention.head_dim)}
    partly = fraction if fraction != 1.0 else None
    parameters = stated(
        {
            "rope_type": "default",
            "rope_theta": model.rotary_base,
            "partial_rotary_factor": partly,
            **({} if scaling is None else _scaling(scaling)),
        }
    )
    inner = {"rope_type": "default", "rope_theta": base}
    return {
        "partial_rotary_factor": partly,
        "rotary_pct": fraction if model.family == "gpt_neox" else None,
        "rotary_emb_base": model.rotary_base if model.family == "gpt_neox" else None,
        "rope_theta": model.rotary_base,
        "original_max_position_embeddings": scaling.original_positions
        if scaling is not None and scaling.kind == "longrope"
        else None,
        "rope_parameters": parameters if base is None else {"full_attention": parameters, "sliding_attention": inner},
    }


def _scaling(scaling: RotaryScaling) -> Config:
    return {
        "rope_type": scaling.kind, "factor": scaling.factor, "attention_factor": scaling.attention_factor,
        "original_max_position_embeddings": scaling.original_positions if scaling.kind != "linear" else None,
        "beta_fast": scaling.fast_turns, "beta_slow": scaling.slow_turns, "mscale": scaling.mscale,
        "mscale_all_dim": scaling.mscale_all, "truncate": scaling.whole_bounds,
        "low_freq_factor": scaling.low_factor if scaling.kind == "llama3" else None,
        "high_freq_factor": scaling.high_factor if scaling.kind == "llama3" else None,
        "short_factor": list(scaling.short_factors) if scaling.short_factors else None,
        "long_factor": list(scaling.long_factors) if scaling.long_factors else None,
    }  # fmt: skip


def _traits(model: Model, family: ModelFamily) -> Config:
    """Return the fields by which a config may state a trait of its family."""
    attention = model.attention
    dense = next((kind.mlp for kind in model.kinds if kind.mlp), None)
    values = {
        "mlp_bias": dense.bias if dense else False, "head_bias": model.head_bias, "parallel": model.parallel_block,
    }  # fmt: skip
    if attention:
        values |= {name: getattr(attention, name) for name in ("qkv_bias", "out_bias", "qk_norm")}
    traits = ((getattr(family, name), value) for name, value in values.items())
    return {trait[0]: value for trait, value in traits if not isinstance(trait, bool)}


def _experts(model: Model, family: ModelFamily, moe: Moe) -> Config:
    names = EXPERTS.get(model.family, QWEN_EXPERTS)
    grouped = "shared" in names or "latent" in names
    leading = names.get("leading") or ("first_k_dense_replace" if "shared" in names else None)
    method = "group_limited_greedy" if moe.router_groups else "greedy"
    return {
        names["experts"]: moe.experts,
        names["width"]: moe.expert_width,
        names.get("top_k", "num_experts_per_tok"): moe.top_k,
        "norm_topk_prob": not moe.pre_softmax if model.family not in ("mixtral", "gpt_oss") else None,
        **_shared_experts(model, names, moe),
        # The class of HunYuan takes the width of experts from the common field.
        **({"intermediate_size": moe.expert_width} if model.family == "hunyuan_v1_moe" else {}),
        **({names["latent"]: moe.latent} if "latent" in names else {}),
        "n_group": moe.router_groups or 1 if grouped else None,
        "topk_group": moe.router_top_groups or 1 if grouped else None,
        "topk_method": method if model.family == "deepseek_v2" else None,
        "routed_scaling_factor": moe.router_scaling if moe.router_scaling or "shared" not in names else 1.0,
        **({names["balance"]: moe.router_bias} if "balance" in names else {}),
        **(_sparse(model, leading) if family.blocks == "whole" else {}),
    }


def _shared_experts(model: Model, names: Mapping[str, str], moe: Moe) -> Config:
    if "shared" in names:
        return {names["shared"]: moe.shared_width // moe.expert_width}
    if "shared_width" in names and moe.shared_width:
        return {names["shared_width"]: moe.shared_width}
    granite = model.family in ("granitemoehybrid", "granitemoeshared")
    return {"shared_intermediate_size": moe.shared_width} if granite else {}


def _sparse(model: Model, counted: str | None) -> Config:
    """Return which layers have experts; dense ones before them are `counted` under a name, or all listed."""
    sparse = [kind.moe is not None for kind in model.layers]
    if model.family == "jamba":
        return _period("expert_layer", [number for number, there in enumerate(sparse) if there], len(sparse))
    if model.family == "ernie4_5_moe":
        last = len(sparse) - 1 - sparse[::-1].index(True)
        return {
            "moe_layer_start_index": sparse.index(True),
            "moe_layer_end_index": last,
            "moe_layer_interval": 1,
        }
    leading = sparse.index(True)
    if leading and all(sparse[leading:]):
        return {counted: leading} if counted else {"mlp_only_layers": list(range(leading))}
    if not all(sparse):
        return {"mlp_only_layers": [number for number, there in enumerate(sparse) if not there]}
    return {counted: 0} if counted else {}


def _windows(model: Model, family: ModelFamily) -> Config:
    windows = [layer.window for layer in model.layers]
    size = next((window for window in windows if window), None)
    if model.family == "gpt_neo":
        kinds = ["local" if window else "global" for window in windows]
        return {"attention_types": [[kinds, 1]], "attention_layers": kinds, "window_size": size}
    if family.windows == "none" and size is None:
        return {}
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    return {
        "sliding_window": size,
        "use_sliding_window": size is not None if family.windows == "later" else None,
        "layer_types": types if family.windows != "all" or len(set(windows)) > 1 else None,
    }


def _mixers(model: Model) -> Config:
    """Return the sizes of what mixes tokens beside attention, and which layers have it."""
    mixer = next((kind.mixer for kind in model.kinds if kind.mixer), None)
    sizes = {} if mixer is None else stated(fields_of(mixer, model.hidden))
    if isinstance(mixer, Mamba2) and model.family == "nemotron_h":
        return sizes | _mixing(model, mixer) | {"time_step_min": mixer.least_step or 0.0}
    if model.family != "granitemoehybrid":
        return sizes | _mixing(model, mixer)
    dense = model.layers[0].mlp
    position = {"position_embedding_type": "rope" if model.position == "rope" else "nope"}
    without = {"num_local_experts": 0, "num_experts_per_tok": 0}
    experts = {} if dense is None else without | {"shared_intermediate_size": dense.width}
    return sizes | _mixing(model, mixer) | position | experts


def _mixing(model: Model, mixer: Mixer | None) -> Config:
    """Return which layers attend, and which mix tokens otherwise."""
    attending = [number for number, layer in enumerate(model.layers) if layer.attention]
    if model.family == "bamba":
        return {"attn_layer_indices": attending}
    if model.family == "jamba":
        return _period("attn_layer", attending, len(model.layers))
    if model.family in ("zamba", "zamba2"):
        return _shared_blocks(model)
    listed = mixer is not None and FAMILIES[model.family].feeds_forward and model.family != "falcon_h1"
    return {"layer_types": [_word(layer) for layer in model.layers]} if listed else {}


def _shared_blocks(model: Model) -> Config:
    layer, mixer = model.shared_layer, model.layers[0].mixer
    shared = None if layer is None else layer.shared
    ranks = (
        {}
        if shared is None or shared.feed_rank is None
        else {
            "adapter_rank": shared.feed_rank,
            "use_shared_attention_adapter": shared.attention_rank is not None,
            "use_mem_rope": model.position == "rope",
        }
    )
    sizes: Config = {}
    if isinstance(mixer, Mamba2):
        sizes = {
            "n_mamba_heads": mixer.heads,
            "mamba_ngroups": mixer.groups,
            "chunk_size": mixer.chunk,
            "add_bias_linear": mixer.bias,
            "time_step_min": mixer.least_step or 0.0,
        }
    elif isinstance(mixer, Mamba):
        sizes = {"n_mamba_heads": mixer.heads or 1}
    return {
        "layers_block_type": ["hybrid" if kind.shared else "mamba" for kind in model.layers],
        "num_mem_blocks": model.shared_blocks,
        "attention_head_dim": None if layer is None else layer.self_attention.head_dim,
        **ranks,
        **sizes,
    }


def _period(name: str, numbers: list[int], layers: int) -> Config:
    """Return the period and the first of equally distant layers."""
    first, second = [*numbers, layers, layers][:2]
    return {f"{name}_offset": first, f"{name}_period": second - first or layers}


def _word(layer: Layer) -> str:
    """Return what transformers calls a block."""
    if layer.mixer is not None:
        return "conv" if isinstance(layer.mixer, ShortConvolution) else "linear_attention"
    return "full_attention" if layer.attention else "mlp" if layer.mlp else "moe"


def _dropout(model: Model) -> Config:
    """Weights are opened to be evaluated or trained on; which rates they were trained with no model says."""
    if not model.dropout and model.family in NAMES and "n_embd" in NAMES[model.family].values():
        return dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    others = {"gpt_neo": ("attention_dropout", "resid_dropout"), "opt": ("attention_dropout", "dropout")}
    return {} if model.dropout else dict.fromkeys(others.get(model.family, ()), 0.0)


def _particular(model: Model) -> Config:
    """Return what tells the forward pass of families whose sizes do not."""
    fields_of_family = PARTICULAR.get(model.family)
    return {} if fields_of_family is None else fields_of_family(model, model.computed)


def _falcon_h1(model: Model, computed: ForwardPass) -> Config:
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Mamba2) and computed.branch_scales and computed.stream_scales, "as its config is read"
    attention, branch = computed.branch_scales
    return {
        "mamba_d_ssm": mixer.inner,
        "mamba_rms_norm": mixer.gated_norm,
        "mamba_norm_before_gate": False,
        "projectors_bias": mixer.out_bias,
        "embedding_multiplier": computed.embedding_scale,
        "lm_head_multiplier": computed.logit_scale,
        "ssm_multipliers": list(computed.mixer_scales or ()),
        "mlp_multipliers": [computed.gate_scale, computed.stream_scales[2][1]],
        "key_multiplier": computed.key_scale,
        "attention_in_multiplier": attention[0],
        "attention_out_multiplier": attention[1],
        "ssm_in_multiplier": branch[0],
        "ssm_out_multiplier": branch[1],
    }


def _minimax(model: Model, computed: ForwardPass) -> Config:
    return {
        f"{kind}_{part}_factor": scale
        for kind, scales in zip(STREAMS, computed.stream_scales or (), strict=True)
        for part, scale in zip(("alpha", "beta"), scales, strict=True)
    }


def _multipliers(model: Model, computed: ForwardPass) -> Config:
    return {
        "embedding_multiplier": computed.embedding_scale,
        "residual_multiplier": computed.residual_scale,
        "attention_multiplier": computed.score_scale,
        "logits_scaling": computed.logit_scale if model.family == "hyperclovax" else 1.0 / computed.logit_scale,
    }


def _minicpm3(model: Model, computed: ForwardPass) -> Config:
    return {
        "scale_emb": computed.embedding_scale,
        "dim_model_base": round(computed.logit_scale * model.hidden),
        "scale_depth": computed.residual_scale * len(model.layers) ** 0.5,
    }


def _capped(model: Model, computed: ForwardPass) -> Config:
    return {
        "query_pre_attn_scalar": _scalar(computed.score_scale, model.self_attention.head_dim),
        "attn_logit_softcapping": computed.score_cap,
        "final_logit_softcapping": computed.logit_cap,
    }


def _smollm3(model: Model, computed: ForwardPass) -> Config:
    return {"no_rope_layers": [int(number not in computed.unrotated) for number in range(len(model.layers))]}


def _scalar(scale: float | None, head_dim: int) -> float:
    """Return the number whose root divides scores, whole where it is."""
    value = float(head_dim) if scale is None else scale**-2
    return round(value) if abs(value - round(value)) < 1e-9 else value


PARTICULAR: Mapping[str, Callable[[Model, ForwardPass], Config]] = {
    **dict.fromkeys(("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "hyperclovax"), _multipliers),
    "minicpm3": _minicpm3,
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma"), _capped),
    **dict.fromkeys(("cohere", "cohere2"), lambda model, computed: {"logit_scale": computed.logit_scale}),
    **dict.fromkeys(("olmo", "olmoe"), lambda model, computed: {"clip_qkv": computed.qkv_clip}),
    "smollm3": _smollm3,
    "opt": lambda model, computed: {
        "do_layer_norm_before": computed.norms == "before",
        "word_embed_proj_dim": model.hidden,
    },
    "biogpt": lambda model, computed: {"scale_embedding": computed.embedding_scale != 1.0},
    "bert": lambda model, computed: {"type_vocab_size": computed.token_types, "mask_token_id": computed.mask_token},
    **dict.fromkeys(
        ("bailing_hybrid", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"),
        lambda model, computed: {"rope_interleave": computed.latent_interleaved},
    ),
    "falcon_h1": _falcon_h1,
    "minimax": _minimax,
}
