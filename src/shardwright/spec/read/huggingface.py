"""Reading of a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from shardwright.errors import Problem, SpecError, bad, reject
from shardwright.spec.forward_pass import RotaryScaling
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model
from shardwright.spec.read import config_fields as spelled
from shardwright.spec.read.block_patterns import LISTS, PATTERNS, block_words
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_WIDTH, ConfigFields
from shardwright.spec.read.encoder_decoders import ENCODER_DECODERS, encoder_decoder
from shardwright.spec.read.families import FAMILIES, SYNONYMS, ModelFamily, reject_refused
from shardwright.spec.read.forward_pass import forward_pass_of
from shardwright.spec.read.gemma import gemma3n_config, gemma3n_layers, gemma4_config, gemma4_layers
from shardwright.spec.read.huggingface_layers import layers_of, stated
from shardwright.spec.read.mllama import MORE_TOKENS, mllama_layers
from shardwright.spec.read.sound_towers import AUDIO, sound_tower_of
from shardwright.spec.read.towers import TEXT_SIZES, VISION, tied_of, tower_of
from shardwright.spec.read.zamba import shared_blocks, zamba2_config, zamba2_layers, zamba_config, zamba_layers
from shardwright.spec.text.fields import shown

TEXT_ALONE = "only the text model of a multimodal one is described"
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
THINKER = "thinker_config"


def model_of_config(config: object, name: str, *, title: str | None = None, accept_guess: bool = False) -> Model:
    """Return the model that a config describes; of a multimodal one whose tower is not known, the text model.

    With `accept_guess` an unknown `model_type` is read by the fields it has, and `Model.guesses` has each
    guess. Raises SpecError with every problem, for a family whose layers cannot be costed, and for an unknown one;
    `name` is the place they name.
    """
    if not isinstance(config, Mapping):
        raise bad(name, f"expected a mapping of fields, got {shown(config)}", "give a Hugging Face config.json")
    whole = _thinker(ConfigFields.of(config, name))
    if (kind := whole.text("model_type", default="")) in ENCODER_DECODERS:
        if not whole.flag("is_encoder_decoder", default=True):
            message = f"is false: {kind} is read with its encoder alone"
            raise bad(f"{name}: is_encoder_decoder", message, "give the config of the whole model")
        model = encoder_decoder(whole, kind, title or name)
        reject(dict.fromkeys(whole.problems))
        return model
    if config.get("is_encoder_decoder") is True:
        known = f"give a model of a known kind: {', '.join(ENCODER_DECODERS)}"
        raise bad(f"{name}: is_encoder_decoder", f"the encoder and decoder of {kind} are not known", known)
    fields = _text_fields(whole)
    model_type = fields.text("model_type", default="")
    model_type = SYNONYMS.get(model_type, model_type)
    reject_refused(fields, model_type)
    family = FAMILIES.get(model_type) or guessed_family(fields, model_type)
    fields = _with_usual_sizes(fields, family, model_type)
    family, fields = _with_config(fields, family, model_type)
    fields = _with_blocks(fields, model_type)
    model = _with_tower(_model(fields, family, model_type or "unknown", title or name), whole)
    if model.tower is None and any(layer.cross for layer in model.kinds):
        fields.section.report(VISION, "is missing", "give the config of the whole model: its layers attend to images")
    reject(dict.fromkeys(fields.problems))
    return replace(model, guesses=settle_guesses(fields, accept=accept_guess))


def _thinker(fields: ConfigFields) -> ConfigFields:
    """Return the fields of the part of a model that writes text, where another that speaks is in its config, too."""
    thinker = fields.inner(THINKER) if fields.has((THINKER,)) else None
    if thinker is None:
        return fields
    fields.assume("the thinker alone is described, without what speaks")
    return thinker


def _text_fields(fields: ConfigFields) -> ConfigFields:
    """Return the fields of the text model: those of the config itself, unless it holds them in one of their own."""
    nested = fields.has(TEXT_CONFIGS)
    if nested is None or (fields.has(spelled.HIDDEN) and fields.has(spelled.LAYERS)):
        return fields
    inner = fields.inner(nested)
    if inner is None:
        raise SpecError(*fields.problems)
    outer = {key: fields.section.fields[key] for key in ("model_type", "tie_word_embeddings") if fields.has((key,))}
    kinds = (fields.text("model_type", default=""), inner.text("model_type", default="llama"))
    usual = next((TEXT_SIZES[kind] for kind in kinds if kind in TEXT_SIZES), {}) if fields.has((VISION, AUDIO)) else {}
    return inner.over({**usual, **outer, **inner.section.fields, **tied_of(fields, inner)})


def _with_tower(model: Model, whole: ConfigFields) -> Model:
    """Return a model with the towers of its config, or with what is left out of it."""
    tower, audio = tower_of(whole, model.hidden), sound_tower_of(whole, model.hidden)
    assumed = list(model.assumed)
    if tower is None and audio is None:
        assumed[:0] = [TEXT_ALONE] if whole.has((*TEXT_CONFIGS, VISION, AUDIO)) else []
    else:
        there = {VISION: tower, AUDIO: audio}
        assumed += [f"its {name} is left out" for name, read in there.items() if read is None and whole.has((name,))]
    return replace(model, tower=tower, audio=audio, assumed=tuple(assumed))


def _with_usual_sizes(fields: ConfigFields, family: ModelFamily, model_type: str) -> ConfigFields:
    """Return the fields with the sizes that a config of this family may leave out, and say which."""
    missing = {key: size for key, size in family.sizes.items() if fields.section.fields.get(key) is None}
    for key, size in missing.items():
        fields.assume(f"{key} {size}, the default of {model_type}")
    if not missing:
        return fields
    return fields.over({**fields.section.fields, **missing})


def _with_config(fields: ConfigFields, family: ModelFamily, model_type: str) -> tuple[ModelFamily, ConfigFields]:
    """Return traits and fields after what is particular to a family."""
    overlay: Mapping[str, object] = {}
    if model_type == "falcon":
        new = fields.flag("new_decoder_architecture", default=False)
        parallel = fields.flag("parallel_attn", default=True)
        shared = fields.flag("multi_query", default=True)
        inputs = fields.size("num_ln_in_parallel_attn") or (2 if new else 1)
        alibi = fields.flag("alibi", default=False)
        family = replace(
            family,
            norms=2 if inputs == 2 or not parallel else 1,
            parallel=new or parallel,
            position="alibi" if alibi else "rope",
        )
        if not new:
            overlay = dict.fromkeys(spelled.KV_HEADS) | ({"num_key_value_heads": 1} if shared else {})
    elif model_type == "chatglm":
        if not fields.flag("multi_query_attention", default=False):
            overlay = dict.fromkeys(spelled.KV_HEADS)
        norm = fields.flag("rmsnorm", default=True)
        final = fields.flag("post_layer_norm", default=True)
        family = replace(family, norm="rmsnorm" if norm else "layernorm", final_norm=final)
    elif model_type == "opt":
        removed = fields.flag("_remove_final_layer_norm", default=False)
        family = replace(family, final_norm=fields.flag("do_layer_norm_before", default=True) and not removed)
    elif model_type == "bert":
        family = replace(family, head_bias=_bert_heads(fields)[0])
    elif model_type in ("gpt_neox", "gpt2", "bloom"):
        overlay = dict.fromkeys(spelled.KV_HEADS)
    elif model_type in CONFIGURED:
        family, overlay = CONFIGURED[model_type](fields, family)
    return family, fields.over({**fields.section.fields, **overlay})


def _with_blocks(fields: ConfigFields, model_type: str) -> ConfigFields:
    """Return the fields with a word for every layer where a family has blocks without attention."""
    if model_type not in PATTERNS:
        return fields
    words = block_words(fields, model_type)
    count = fields.size(*spelled.LAYERS, most=MOST_LAYERS)
    if count is not None and count != len(words):
        name = fields.has((*LISTS, "hybrid_override_pattern")) or "layer_types"
        fields.section.report(
            name, f"lists {len(words)} layers, the model has {count}", "write one type for each layer"
        )
        words = (words * count)[:count]
    return fields.over({**fields.section.fields, "num_hidden_layers": len(words), "layer_types": list(words)})


def _gpt_bigcode(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    return family, {"num_key_value_heads": 1 if fields.flag("multi_query", default=True) else None}


def _gpt_neo(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Global and local attention take turns unless `attention_layers` says otherwise."""
    count = fields.size(*spelled.LAYERS, most=MOST_LAYERS) or 1
    kinds = fields.layer_list("attention_layers") or ("global", "local") * (count // 2) + ("global",) * (count % 2)
    types = ["sliding_attention" if kind == "local" else "full_attention" for kind in kinds]
    return family, {"layer_types": types, "sliding_window": fields.size("window_size") or 256}


def _stablelm(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    return replace(family, norms=1 if stated(fields, family.parallel) else 2), {}


def _hunyuan(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Sizes may be listed by layer; equal entries are one size."""
    names = ("moe_topk", "moe_intermediate_size", "num_shared_expert")
    listed = {name: fields.section.fields.get(name) for name in names}
    same = {
        name: sizes[0]
        for name, sizes in listed.items()
        if isinstance(sizes, list) and sizes and sizes == sizes[:1] * len(sizes)
    }
    return family, same


def _granite_hybrid(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Without experts the shared block is the feed-forward block."""
    rotary = fields.text("position_embedding_type", default="none") == "rope"
    dense = not fields.count("num_local_experts")
    overlay: dict[str, object] = {"intermediate_size": fields.size("shared_intermediate_size")}
    overlay |= dict.fromkeys(("shared_intermediate_size", "num_local_experts", "num_experts_per_tok"))
    return replace(family, position="rope" if rotary else "none"), overlay if dense else {}


def _olmo_hybrid(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """There are no rotary positions where their base is null."""
    nested = fields.inner("rope_parameters")
    unrotated = nested is not None and "rope_theta" in nested.section.fields and nested.has(("rope_theta",)) is None
    return replace(family, position="none" if unrotated else "rope"), {}


def _falcon_h1(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    return family, {name: fields.flag(name, default=False) for name in ("mamba_rms_norm", "projectors_bias")}


def _jamba(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """A layer with a single expert is a dense one."""
    period, offset = fields.size("expert_layer_period") or 2, 1
    if fields.has(("expert_layer_offset",)):
        offset = fields.count("expert_layer_offset")
    return family, {"expert_layer_period": period, "expert_layer_offset": offset}


def _lfm2_moe(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    return replace(family, router_bias=fields.flag("use_expert_bias", default=True)), {}


def _lfm2(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """The feed-forward width is two thirds of what is written, times a factor, rounded up (Lfm2MLP)."""
    width = fields.size("block_ff_dim", "intermediate_size", most=MOST_WIDTH)
    if width is not None and fields.flag("block_auto_adjust_ff_dim", default=True):
        width = int(2 * width / 3)
        multiple = fields.size("block_multiple_of") or 256
        factor = (
            1.0
            if "block_ffn_dim_multiplier" not in fields.section.fields
            else fields.fraction("block_ffn_dim_multiplier")
        )
        width = width if factor is None else -(-int(factor * width) // multiple) * multiple
    tied = fields.flag("tie_embedding", default=fields.flag("tie_word_embeddings", default=True))
    return family, {"intermediate_size": width, "tie_word_embeddings": tied}


def _recurrent_gemma(fields: ConfigFields, family: ModelFamily) -> tuple[ModelFamily, Mapping[str, object]]:
    """Both branches of the feed-forward block together are as wide as is written (RecurrentGemmaMlp)."""
    width = fields.size("intermediate_size", most=MOST_WIDTH)
    return family, {"intermediate_size": None if width is None else width // 2}


CONFIGURED: Mapping[str, Callable[[ConfigFields, ModelFamily], tuple[ModelFamily, Mapping[str, object]]]] = (
    MappingProxyType(
        {
            "gpt_bigcode": _gpt_bigcode,
            "gpt_neo": _gpt_neo,
            "stablelm": _stablelm,
            "hunyuan_v1_moe": _hunyuan,
            "granitemoehybrid": _granite_hybrid,
            "olmo_hybrid": _olmo_hybrid,
            "lfm2": _lfm2,
            "recurrent_gemma": _recurrent_gemma,
            "falcon_h1": _falcon_h1,
            "jamba": _jamba,
            "lfm2_moe": _lfm2_moe,
            "gemma4_text": gemma4_config,
            "gemma3n_text": gemma3n_config,
            "zamba": zamba_config,
            "zamba2": zamba2_config,
        }
    )
)


LAYERED: Mapping[str, Callable[[ConfigFields, tuple[Layer, ...], int], tuple[Layer, ...]]] = MappingProxyType(
    {
        "gemma3n_text": gemma3n_layers,
        "gemma4_text": gemma4_layers,
        "mllama_text_model": mllama_layers,
        "zamba": zamba_layers,
        "zamba2": zamba2_layers,
    }
)
"""What is particular to the layers of a family."""


def _model(fields: ConfigFields, family: ModelFamily, model_type: str, title: str) -> Model:
    hidden = fields.required(*spelled.HIDDEN, most=MOST_WIDTH)
    vocab = fields.required(*spelled.VOCAB)
    count = fields.required(*spelled.LAYERS, most=MOST_LAYERS)
    layers = layers_of(fields, family, hidden, count)
    if model_type in LAYERED:
        layers = LAYERED[model_type](fields, layers, hidden)
    learned = family.position == "learned"
    positions = fields.required(*spelled.POSITIONS) if learned else fields.size(*spelled.POSITIONS) or 0
    rates = [fields.fraction(name, most=1.0) for name in spelled.DROPOUT if fields.has((name,))]
    heads = next((layer.attention for layer in layers if layer.attention), None)
    base, fraction = _rotary(fields, family, heads.head_dim if heads else 0)
    latent = any(layer.latent for layer in layers)
    predicted = fields.count(*spelled.PREDICTED, most=MOST_LAYERS)
    last = layers[-1]
    if predicted and (last.mixer is not None or last.attention is None or (last.mlp is None and last.moe is None)):
        message = f"is {predicted}, but which blocks predict tokens beside the last one is not known"
        fields.section.report(fields.has(spelled.PREDICTED) or "", message, "write 0 to plan without them")
    return Model(
        name=title,
        family=model_type,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        norm=family.norm,
        position=family.position,
        rotary_base=base,
        rotary_fraction=1.0 if latent or family.position != "rope" else fraction,
        max_position=positions,
        learned_positions=positions + family.position_offset if learned else 0,
        tied_embeddings=fields.flag("tie_word_embeddings", default=family.tied),
        final_norm=family.final_norm,
        embedding_norm=family.embedding_norm,
        head_bias=stated(fields, family.head_bias),
        dropout=any(rates) if rates else family.dropout > 0.0,
        mtp_layers=predicted,
        activation=_activation(fields, family, model_type),
        extra_parameters=_extra_parameters(fields, model_type, family, hidden, layers),
        embedding_width=_embedding_width(fields, model_type, hidden),
        layer_vocab=fields.size("vocab_size_per_layer_input") or vocab if layers[0].embedded else None,
        shared_blocks=shared_blocks(fields, layers),
        parallel_block=stated(fields, family.parallel),
        norm_vectors=family.norm_vectors,
        norm_epsilon=fields.fraction(*spelled.EPSILON, most=1.0),
        norm_about_one=True if family.norm_about_one else None,
        norm_form=family.norm_form,
        fused_qkv=True if family.fused_qkv else None,
        rotary_scaling=_rotary_scaling(fields),
        rotary_interleaved=True if family.rotary_interleaved else None,
        particular=family.particular,
        forward_pass=forward_pass_of(fields, family, model_type, hidden, layers),
        assumed=tuple(dict.fromkeys(fields.assumed)),
    )


def _activation(fields: ConfigFields, family: ModelFamily, model_type: str) -> str:
    """Return the activation. Two families mean the approximation by tanh where they say gelu (GemmaConfig and `ACT_FNS`
    of modeling_openai.py in transformers 5.23)."""
    activation = fields.text(*spelled.ACTIVATION, default=family.activation)
    return "gelu_pytorch_tanh" if activation == "gelu" and model_type in ("gemma", "openai-gpt") else activation


def _rotary(fields: ConfigFields, family: ModelFamily, head_dim: int) -> tuple[float, float]:
    """Return the base of rotary positions, of the layers without window where layers differ, and the rotated part."""
    nested = fields.inner("rope_parameters")
    if nested is not None and nested.has(("full_attention",)):
        nested = nested.inner("full_attention")
    sources = [fields] if nested is None else [nested, fields]
    bases = [source.section.number(name) for source in sources if (name := source.has(spelled.ROTARY_BASE))]
    fractions = [source.fraction(*spelled.ROTARY_FRACTION, most=1.0) for source in sources]
    base = next((base for base in bases if base), family.rotary_base)
    ratio = fields.section.number("rope_ratio") or 1.0
    width = fields.size("rotary_dim", most=MOST_WIDTH)
    if width is not None and head_dim:
        fractions.insert(0, min(width / head_dim, 1.0))
    return base * ratio, next((part for part in fractions if part is not None), family.rotary_fraction)


def _rotary_scaling(fields: ConfigFields) -> RotaryScaling | None:
    """Return how rotary positions are scaled, None where they are not."""
    nested = next((inner for name in ("rope_parameters", "rope_scaling") if (inner := fields.inner(name))), None)
    if nested is not None and nested.has(("full_attention",)):
        nested = nested.inner("full_attention")
    kind = "default" if nested is None else nested.text("rope_type", "type", default="default")
    if nested is None or kind == "default":
        return None
    usual, number = RotaryScaling(), nested.section.number
    known = nested.size("original_max_position_embeddings") or fields.size("original_max_position_embeddings")
    longest, stretched = fields.size(*spelled.POSITIONS), kind in ("yarn", "longrope", "su")
    original = known or (longest if stretched and longest else usual.original_positions)
    factor = number("factor") or (longest / original if stretched and longest else usual.factor)
    scaling = RotaryScaling(
        kind="longrope" if kind == "su" else kind,
        factor=factor,
        low_factor=number("low_freq_factor") or usual.low_factor,
        high_factor=number("high_freq_factor") or usual.high_factor,
        original_positions=original,
    )
    if not stretched:
        return scaling
    return replace(
        scaling,
        fast_turns=number("beta_fast"),
        slow_turns=number("beta_slow"),
        attention_factor=number("attention_factor"),
        mscale=nested.fraction("mscale") or None,
        mscale_all=nested.fraction("mscale_all_dim") or None,
        whole_bounds=None if nested.flag("truncate", default=True) else False,
        short_factors=_factors(nested, "short_factor"),
        long_factors=_factors(nested, "long_factor"),
    )


def _factors(fields: ConfigFields, name: str) -> tuple[float, ...] | None:
    """Return a factor for each frequency of rotary positions."""
    listed = fields.layer_list(name)
    factors = tuple(float(factor) for factor in listed if isinstance(factor, int | float) and factor > 0.0)
    if len(factors) != len(listed):
        fields.section.report(name, "is no list of positive numbers", "write a factor for each frequency")
    return factors or None


def _embedding_width(fields: ConfigFields, model_type: str, hidden: int) -> int | None:
    width = fields.size("word_embed_proj_dim") if model_type == "opt" else None
    return None if width == hidden else width


def _bert_heads(fields: ConfigFields) -> tuple[bool, bool, bool]:
    """Return whether there are a masked-language head, a pooler and a next-sentence head, by the class named."""
    architecture: Any = fields.section.fields.get("architectures") or ["BertModel"]
    if not isinstance(architecture, list) or not all(isinstance(name, str) for name in architecture):
        fields.section.report("architectures", "expected a list of class names", "write [BertForPreTraining]")
        return False, True, False
    both = "BertForPreTraining" in architecture
    masked = both or "BertForMaskedLM" in architecture
    return masked, both or not masked, both


def _extra_parameters(
    fields: ConfigFields, model_type: str, family: ModelFamily, hidden: int, layers: tuple[Layer, ...]
) -> int:
    """Return what there is beside layers and embeddings: BERT's token types and heads, and rare biases."""
    extra = 0
    if model_type == "bert":
        masked, pooler, next_sentence = _bert_heads(fields)
        square = hidden * hidden + hidden
        extra += (fields.size("type_vocab_size") or 2) * hidden
        extra += (square + 2 * hidden) * masked + square * pooler + 2 * (hidden + 1) * next_sentence
    extra += MORE_TOKENS * hidden if model_type == "mllama_text_model" else 0
    for attention in (layer.attention for layer in layers if layer.attention):
        if attention.latent and attention.qkv_bias:  # on the down-projections alone
            extra += (attention.latent.query_rank or 0) + attention.latent.kv_rank + attention.latent.rope_head_dim
        if attention.qk_norm and family.norm == "layernorm" and family.qk_norm_over == "head":  # its biases
            extra += 2 * attention.head_dim
    return extra


GATES = ("silu", "swish", "swiglu", "geglu", "reglu", "glu")
UNGATED = ("relu", "relu2", "squared_relu", "xielu")
RECURRENT = ("mamba_d_state", "ssm_cfg", "ssm_state_size", "linear_num_key_heads", "hybrid_override_pattern")
REMEDY = "describe it in a YAML of dimensions, or take the guess with `accept_guess=True`"


def guessed_family(fields: ConfigFields, model_type: str) -> ModelFamily:
    """Return the traits of an unknown family, by its fields and otherwise those of Llama; each is a guess."""
    activation = fields.text(*spelled.ACTIVATION, default="silu").casefold()
    root_mean_square = fields.has(("rms_norm_eps", "rms_norm_epsilon")) is not None
    mean_too = fields.has(("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon")) is not None
    gated = activation in GATES or (root_mean_square and activation not in UNGATED)
    layer_norm = not root_mean_square and (mean_too or not gated)
    linear_bias = fields.flag("use_bias", default=fields.flag("add_bias_linear", default=False))
    family = ModelFamily(
        gated=gated,
        norm="layernorm" if layer_norm else "rmsnorm",
        position="alibi" if fields.flag("alibi", default=False) else "rope",
        qkv_bias=fields.flag("attention_bias", default=fields.flag("use_qkv_bias", default=linear_bias)),
        out_bias=fields.flag("attention_bias", default=linear_bias),
        mlp_bias=fields.flag("mlp_bias", default=linear_bias),
        qk_norm=any(fields.flag(name, default=False) for name in ("qk_norm", "use_qk_norm", "qk_layernorm")),
        windows="all",
        width_factor=None if gated else 4,
    )
    kind = f"model_type {model_type!r} is not known" if model_type else "no model_type is given"
    biases = "biases where the config says so" if family.qkv_bias or family.mlp_bias else "no biases"
    block, norm = "gated" if gated else "plain", "LayerNorm" if layer_norm else "RMSNorm"
    positions = "ALiBi" if family.position == "alibi" else "rotary positions"
    fields.guess(f"{kind}: {block} feed-forward, two {norm}s a layer, {positions}, {biases}")
    if fields.section.fields.get("tie_word_embeddings") is None:
        fields.guess("the output projection is not tied to the embedding")
    if fields.has(RECURRENT):
        fields.guess("layers with a recurrent state are taken as attention")
    return family


def settle_guesses(fields: ConfigFields, *, accept: bool) -> tuple[str, ...]:
    """Return the guesses in words. Raises SpecError with each where they are not accepted."""
    guesses = tuple(dict.fromkeys(fields.guessed))
    if guesses and not accept:
        raise SpecError(*(Problem(fields.section.place, f"would be a guess: {words}", REMEDY) for words in guesses))
    return guesses
