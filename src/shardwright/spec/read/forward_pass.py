"""The forward pass that a Hugging Face config describes, beside sizes: scales, caps, placements of norms, routers.

Rows follow the model classes of Hugging Face transformers 5.23 (`models/*/modeling_*.py`); tests compare each family's
logits and gradients with its class. What a config says of the forward pass that is not known here goes into
`ForwardPass.unknown`, so that nobody trains another model than it describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from shardwright.records import record
from shardwright.spec.forward_pass import PLAIN, ForwardPass
from shardwright.spec.layer import Layer
from shardwright.spec.read.config_fields import BESIDE, READ, ConfigFields
from shardwright.spec.read.families import ModelFamily
from shardwright.spec.text.fields import shown


@record
class Described:
    """What is known of a model when its forward pass is read."""

    fields: ConfigFields
    family: ModelFamily
    hidden: int
    layers: tuple[Layer, ...]

    def number(self, name: str, usual: float | None) -> float | None:
        """Return a positive number of the config, None where it is null or zero, `usual` where it is missing."""
        given = self.fields.section.fields
        return self.fields.fraction(name) or None if name in given else usual

    def factor(self, name: str, usual: float = 1.0) -> float:
        return self.number(name, usual) or usual

    def factors(self, name: str, count: int) -> tuple[float, ...]:
        """Return a list of so many positive numbers, 1 each where it is missing."""
        listed = self.fields.layer_list(name) or (1.0,) * count
        numbers = tuple(float(value) for value in listed if isinstance(value, int | float) and value > 0)
        if len(listed) == count == len(numbers):
            return numbers
        self.fields.section.report(name, f"is no list of {count} positive numbers", "write one for each part")
        return (1.0,) * count


Told = dict[str, Any]
STREAMS = ("full_attn", "linear_attn", "mlp")  # what MiniMax calls what adds to the residual
Reader = Callable[[Described], Told]


def _embedding_root(source: Described) -> Told:
    return {"embedding_scale": source.hidden**0.5}


def _granite(source: Described) -> Told:
    return {
        "embedding_scale": source.factor("embedding_multiplier"),
        "residual_scale": source.factor("residual_multiplier"),
        "score_scale": source.number("attention_multiplier", 1.0),
        "logit_scale": 1.0 / source.factor("logits_scaling"),
    }


def _hyperclovax(source: Described) -> Told:
    scale = source.number("attention_multiplier", None)
    return _granite(source) | {"score_scale": scale, "logit_scale": source.factor("logits_scaling")}


def _minicpm3(source: Described) -> Told:
    depth = source.number("scale_depth", None)
    base = source.number("dim_model_base", None)
    return {
        "embedding_scale": source.factor("scale_emb"),
        "residual_scale": 1.0 if depth is None else depth / len(source.layers) ** 0.5,
        "logit_scale": 1.0 if base is None else base / source.hidden,
    }


def _gemma2(source: Described) -> Told:
    return _embedding_root(source) | {
        "score_scale": (source.number("query_pre_attn_scalar", 256.0) or 256.0) ** -0.5,
        "score_cap": source.number("attn_logit_softcapping", 50.0),
        "logit_cap": source.number("final_logit_softcapping", 30.0),
    }


def _gemma3(source: Described) -> Told:
    return _gemma2(source) | {
        "score_cap": source.number("attn_logit_softcapping", None),
        "logit_cap": source.number("final_logit_softcapping", None),
        "window_rotary_base": _window_base(source, source.factor("rope_local_base_freq", 10000.0)),
    }


def _window_base(source: Described, usual: float | None) -> float | None:
    """Return the base of rotary positions in layers with a window, where these have parameters of their own."""
    nested = source.fields.inner("rope_parameters")
    inner = nested.inner("sliding_attention") if nested is not None and nested.has(("sliding_attention",)) else None
    return usual if inner is None else inner.section.number("rope_theta") or usual


def _windows_apart(source: Described) -> Told:
    return {"window_rotary_base": _window_base(source, None)}


def _mellum(source: Described) -> Told:
    return {"window_rotary_base": _window_base(source, 10000.0)}


def _unrotated(source: Described, *, full: bool) -> Told:
    """Return which layers have no rotary positions: those of full attention, where there are others."""
    numbers = (number for number, layer in enumerate(source.layers) if full and layer.window is None)
    return {"unrotated": tuple(numbers)}


def _cohere(source: Described) -> Told:
    return {"logit_scale": source.factor("logit_scale", 0.0625)}


def _cohere2(source: Described) -> Told:
    return _cohere(source) | _unrotated(source, full=True)


def _exaone4(source: Described) -> Told:
    return _unrotated(source, full=source.fields.has(("sliding_window",)) is not None)


def _smollm3(source: Described) -> Told:
    every = source.fields.size("no_rope_layer_interval") or 4
    listed = source.fields.layer_list("no_rope_layers")
    rotated: Sequence[object] = listed or [(number + 1) % every != 0 for number in range(len(source.layers))]
    return {"unrotated": tuple(number for number, there in enumerate(rotated) if not there)}


def _clipped(source: Described) -> Told:
    return {"qkv_clip": source.number("clip_qkv", None)}


def _gpt_oss(source: Described) -> Told:
    limit, slope = source.number("swiglu_limit", 7.0), source.number("swiglu_alpha", 1.702)
    return {"gate_limit": limit, "gate_slope": slope, "router_bias_learned": True}


def _sigmoid(source: Described) -> Told:
    return {"router_scores": "sigmoid"}


def _interleaved(source: Described) -> Told:
    return {"latent_interleaved": source.fields.flag("rope_interleave", default=True)}


def _after_rotation(source: Described) -> Told:
    return {"norm_after_rotation": True}


def _opt(source: Described) -> Told:
    before = source.fields.flag("do_layer_norm_before", default=True)
    return {"norms": "before" if before else "sum"}


def _bert(source: Described) -> Told:
    mask = source.fields.count("mask_token_id") if source.fields.has(("mask_token_id",)) else None
    types = source.fields.size("type_vocab_size") or 2
    return {"norms": "sum", "token_types": types, "head_transform": True, "mask_token": mask}


def _scaled_where_said(source: Described) -> Told:
    return _embedding_root(source) if source.fields.flag("scale_embedding", default=True) else {}


def _mpt(source: Described) -> Told:
    inner = source.fields.inner("attn_config")
    if inner is None:
        return {}
    scale = inner.section.number("softmax_scale") if inner.has(("softmax_scale",)) else None
    clip = inner.section.number("clip_qkv") if inner.has(("clip_qkv",)) else None
    return {"score_scale": scale, "qkv_clip": clip}


def _unscaled_scores(source: Described) -> Told:
    return {"score_scale": 1.0}


def _minimax(source: Described) -> Told:
    """Factors of the residual and of what is added to it, which are 1 where they are not given."""
    scales = [tuple(source.factor(f"{kind}_{name}_factor") for name in ("alpha", "beta")) for kind in STREAMS]
    return {"stream_scales": tuple(scales)}


def _of_half_a_head(source: Described) -> Told:
    """A head is as wide as two of the hidden state's (ZambaAttention)."""
    attention = next((layer.attention for layer in source.layers if layer.attention), None)
    return {"score_scale": (attention.head_dim / 2) ** -0.5} if attention else {}


def _falcon_h1(source: Described) -> Told:
    gate, down = source.factors("mlp_multipliers", 2)
    branches = (("attention_in_multiplier", "attention_out_multiplier"), ("ssm_in_multiplier", "ssm_out_multiplier"))
    return {
        "embedding_scale": source.factor("embedding_multiplier"),
        "branch_scales": tuple(tuple(map(source.factor, names)) for names in branches),
        "mixer_scales": source.factors("ssm_multipliers", 5),
        "key_scale": source.factor("key_multiplier"),
        "gate_scale": gate,
        "stream_scales": ((1.0, 1.0), (1.0, 1.0), (1.0, down)),
        "logit_scale": source.factor("lm_head_multiplier"),
    }


def _mixers_normed_before(source: Described) -> Told:
    return {"mixer_norms": "before"}


def _norms(placement: str) -> Reader:
    return lambda source: {"norms": placement}


ROWS: Mapping[str, tuple[Reader, ...]] = MappingProxyType(
    {
        "bailing_hybrid": (_sigmoid, _interleaved),
        "bert": (_bert,),
        "biogpt": (_scaled_where_said,),
        "cohere": (_cohere,),
        "cohere2": (_cohere2,),
        "deepseek_v2": (_interleaved,),
        "deepseek_v3": (_sigmoid, _interleaved),
        "dots1": (_sigmoid,),
        "exaone4": (_norms("after"), _exaone4),
        "falcon_h1": (_falcon_h1,),
        "falcon_mamba": (),
        "flex_olmo": (_norms("after"),),
        "gemma": (_embedding_root,),
        "gemma2": (_norms("both"), _gemma2),
        "gemma3_text": (_norms("both"), _gemma3),
        "glm4": (_norms("both"),),
        "glm4_moe": (_sigmoid,),
        "glm4_moe_lite": (_sigmoid, _interleaved),
        "gpt_neo": (_unscaled_scores,),
        "gpt_oss": (_gpt_oss,),
        "granite": (_granite,),
        "granitemoe": (_granite,),
        "granitemoehybrid": (_granite,),
        "granitemoeshared": (_granite,),
        "hunyuan_v1_dense": (_after_rotation,),
        "hunyuan_v1_moe": (_after_rotation,),
        "hyperclovax": (_norms("both"), _hyperclovax),
        "kimi_linear": (_sigmoid,),
        "lfm2_moe": (_sigmoid,),
        "mellum": (_mellum,),
        "minicpm3": (_minicpm3,),
        "minimax": (_norms("stream"), _minimax),
        "minimax_m2": (_sigmoid,),
        "mpt": (_mpt,),
        "nemotron_h": (_sigmoid,),
        "olmo": (_clipped,),
        "olmo2": (_norms("after"),),
        "olmo3": (_norms("after"), _windows_apart),
        "olmo_hybrid": (_norms("after"), _mixers_normed_before),
        "olmoe": (_clipped,),
        "openai-gpt": (_norms("sum"),),
        "opt": (_opt,),
        "smollm3": (_smollm3,),
        "solar_open": (_sigmoid,),
        "vaultgemma": (_gemma2,),
        "youtu": (_interleaved,),
        **dict.fromkeys(("zamba", "zamba2"), (_of_half_a_head,)),
    }
)
"""What is read for each family that has more than its sizes tell, in order."""

# The value with which a field changes nothing; any other is said in `ForwardPass.unknown`.
NEUTRAL: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "add_cross_attention": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "attn_temperature_tuning": (False,),
        "is_decoder": (False, True),
        "hidden_mamba_act": ("silu",),
        "layer_norm_elementwise_affine": (True,),
        "mamba_hidden_act": ("silu",),
        "mamba_use_mlp": (True,),
        "mla_use_nope": (True,),
        "moe_router_activation_func": ("sigmoid",),
        "position_embedding_type": ("absolute", "nope", "rope"),
        "attn_config.alibi": (True,),
        "prefix_lm": (False,),
        "qk_ln": (False,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "scale_attn_weights": (True,),
        "scoring_func": ("softmax", "sigmoid"),
        "time_step_limit": ([0.0, math.inf], [0.0, {"__float__": "Infinity"}]),
        "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
        "use_bidirectional_attention": (False,),
        "use_long_context": (False,),
        "use_post_norm": (True,),
        "use_qk_norm": (False, True),
        "use_shared_mlp_adapter": (True,),
    }
)


def forward_pass_of(
    fields: ConfigFields, family: ModelFamily, model_type: str, hidden: int, layers: tuple[Layer, ...]
) -> ForwardPass | None:
    """Return the forward pass that a config describes, None where its sizes tell all of it."""
    traits: Told = {"sinks": family.sinks, "expert_bias": family.expert_bias}
    if family.qk_norm_over == "projection" and any(layer.attention and layer.attention.qk_norm for layer in layers):
        traits["query_key_norm"] = "each" if family.norm == "layernorm" else "projection"
    source = Described(fields=fields, family=family, hidden=hidden, layers=layers)
    for read in ROWS.get(model_type, ()):
        traits |= read(source)
    unknown = tuple(dict.fromkeys(_unknown(fields, family, model_type)))
    forward_pass = replace(PLAIN, **traits, unknown=unknown)
    return None if forward_pass == PLAIN and model_type not in ROWS else forward_pass


def _unknown(fields: ConfigFields, family: ModelFamily, model_type: str) -> Iterator[str]:
    """Yield what the config says of the forward pass that nothing of it has."""
    given = fields.section.fields
    for name, value in given.items():
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            yield f"{name} {shown(value)}"
        if not (name in NEUTRAL or name in READ or name in BESIDE or name.startswith("_")) and _says(value):
            yield f"the field {name}"
    nested = fields.inner("attn_config")
    for name, value in {} if nested is None else nested.section.fields.items():
        if value is not None and value not in NEUTRAL.get(name, NEUTRAL.get(f"attn_config.{name}", (value,))):
            yield f"attn_config.{name} {shown(value)}"
    wanted = "sigmoid" if _sigmoid in ROWS.get(model_type, ()) else "softmax"
    refused = {
        f"scoring_func {shown(given.get('scoring_func'))}": given.get("scoring_func") not in (None, wanted),
        "a class other than BertForMaskedLM": model_type == "bert"
        and given.get("architectures") != ["BertForMaskedLM"],
        "norm_topk_prob true": model_type == "deepseek_v2" and fields.flag("norm_topk_prob", default=False),
        "ALiBi in the precision of Falcon": model_type == "falcon" and family.position == "alibi",
        "new_decoder_architecture without parallel_attn": model_type == "falcon"
        and fields.flag("new_decoder_architecture", default=False)
        and not fields.flag("parallel_attn", default=True),
        "mamba_norm_before_gate true beside mamba_rms_norm": model_type == "falcon_h1"
        and fields.flag("mamba_rms_norm", default=False)
        and fields.flag("mamba_norm_before_gate", default=True),
        "qk_layernorm true: a norm for each head": model_type == "stablelm"
        and fields.flag("qk_layernorm", default=False),
        "num_experts by layer": isinstance(given.get("num_experts"), list),
    }
    yield from (words for words, there in refused.items() if there)


def _says(value: object) -> bool:
    return value not in (None, False, "", 0, 0.0) and value != [] and value != {}
