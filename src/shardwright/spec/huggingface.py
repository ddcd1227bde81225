"""Reading of a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import SpecError, bad
from shardwright.spec.config_fields import (
    ACTIVATION,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MOST_LAYERS,
    POSITIONS,
    TOP_K,
    VOCAB,
    WIDTH,
    ConfigFields,
)
from shardwright.spec.families import FAMILIES, SYNONYMS, Family
from shardwright.spec.fields import shown
from shardwright.spec.model import Attention, LatentAttention, Layer, Mlp, Model, Moe


def model_of_config(config: object, name: str, *, title: str | None = None) -> Model:
    """Return the model that a config describes; of a multimodal one the text model.

    An unknown `model_type` is read by the fields it has, and `Model.assumed` says so. Raises SpecError with every
    problem; `name` is the place they name.
    """
    if not isinstance(config, Mapping):
        raise bad(name, f"expected a mapping of fields, got {shown(config)}", "give a Hugging Face config.json")
    inner, nested = _text_config(config)
    fields = ConfigFields.of(inner, f"{name}: text_config" if nested else name)
    model_type = fields.text("model_type", default="")
    family = FAMILIES.get(SYNONYMS.get(model_type, model_type))
    if family is None:
        family = _guessed(fields, model_type)
    if nested:
        fields.assume("only the text model of a multimodal one is described")
    model = _model(fields, family, SYNONYMS.get(model_type, model_type) or "unknown", title or name)
    if fields.problems:
        raise SpecError(*dict.fromkeys(fields.problems))
    return model


def _text_config(config: Mapping[str, object]) -> tuple[Mapping[str, object], bool]:
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and not any(config.get(spelling) for spelling in HIDDEN):
        return inner, True
    return config, False


def _guessed(fields: ConfigFields, model_type: str) -> Family:
    """Return the traits of an unknown family: of Llama, or of GPT where there is no sign of gates."""
    activation = fields.text(*ACTIVATION, default="silu")
    gated = not (activation.startswith(("gelu", "relu")) and fields.has(("rms_norm_eps",)) is None)
    kind = f"model_type {model_type!r} is not known" if model_type else "no model_type is given"
    norm = "RMSNorm" if gated else "LayerNorm"
    fields.assume(f"{kind}: {'gated' if gated else 'plain'} feed-forward, {norm}, rotary positions, no biases")
    plain = replace(FAMILIES["gpt_neox"], qkv_bias=False, out_bias=False, mlp_bias=False)
    return FAMILIES["llama"] if gated else plain


def _model(fields: ConfigFields, family: Family, model_type: str, title: str) -> Model:
    hidden = fields.required(*HIDDEN)
    vocab = fields.required(*VOCAB)
    count = fields.required(*LAYERS, most=MOST_LAYERS)
    family = _with_config(fields, family, model_type)
    layers = _layers(fields, family, model_type, hidden, count)
    dropout = fields.fraction("resid_pdrop", "dropout", "hidden_dropout_prob", "hidden_dropout")
    positions = fields.size(*POSITIONS) or 0
    learned = positions + family.position_offset if family.position == "learned" else 0
    tied = fields.flag("tie_word_embeddings", default=family.tied)
    return Model(
        name=title,
        family=model_type,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        norm=family.norm,
        position=family.position,
        rotary_base=_rotary_base(fields),
        max_position=positions,
        learned_positions=learned,
        tied_embeddings=tied,
        final_norm=family.final_norm and fields.flag("do_layer_norm_before", default=True),
        embedding_norm=family.embedding_norm,
        head_bias=family.head_bias,
        dropout=(family.dropout if dropout is None else dropout) > 0.0,
        mtp_layers=fields.count("num_nextn_predict_layers", "mtp_num_layers"),
        activation=fields.text(*ACTIVATION, default=family.activation),
        extra_parameters=_extra_parameters(fields, model_type, hidden, vocab),
        assumed=tuple(fields.assumed),
    )


def _with_config(fields: ConfigFields, family: Family, model_type: str) -> Family:
    """Return the family's traits with those that the config states itself."""
    if model_type == "falcon":
        biased = fields.flag("bias", default=False)
        new = fields.flag("new_decoder_architecture", default=False)
        parallel = fields.flag("parallel_attn", default=True)
        alibi = fields.flag("alibi", default=False)
        family = replace(
            family,
            qkv_bias=biased,
            out_bias=biased,
            mlp_bias=biased,
            norms=1 if parallel and not new else 2,
            position="alibi" if alibi else "rope",
        )
    if model_type == "chatglm":
        family = replace(family, qkv_bias=fields.flag("add_qkv_bias", default=True))
    if model_type in ("llama", "gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe"):
        biased = fields.flag("attention_bias", default=family.qkv_bias)
        family = replace(family, qkv_bias=biased, out_bias=biased)
    if model_type in ("glm", "glm4"):
        family = replace(family, qkv_bias=fields.flag("attention_bias", default=True))
    return replace(family, mlp_bias=fields.flag("mlp_bias", default=family.mlp_bias))


def _layers(fields: ConfigFields, family: Family, model_type: str, hidden: int, count: int) -> tuple[Layer, ...]:
    attention = _attention(fields, family, model_type, hidden)
    window = _window(fields)
    windowed = replace(attention, window=window) if window else attention
    sliding = _sliding_layers(fields, model_type, count) if window else (False,) * count
    dense = _dense(fields, family, model_type, hidden)
    moe, sparse = _experts(fields, family, count)
    if dense is None and not all(sparse):
        fields.section.report(WIDTH[0], "is missing", "give the inner width of the feed-forward block")
    kinds = {
        (slides, routed): Layer(
            attention=windowed if slides else attention,
            mlp=None if routed else dense,
            moe=moe if routed else None,
            norms=family.norms,
        )
        for slides in (False, True)
        for routed in (False, True)
    }
    return tuple(kinds[slides, routed] for slides, routed in zip(sliding, sparse, strict=True))


def _attention(fields: ConfigFields, family: Family, model_type: str, hidden: int) -> Attention:
    heads = fields.required(*HEADS)
    kv_heads = _kv_heads(fields, model_type, heads)
    latent = _latent(fields)
    if latent is not None:
        value_dim = fields.required("v_head_dim")
        head_dim, kv_heads = latent.nope_head_dim + latent.rope_head_dim, heads
    else:
        head_dim = value_dim = fields.size(*HEAD_DIM) or hidden // heads or 1
        if fields.has(HEAD_DIM) is None and hidden % heads:
            fields.section.report(HEADS[0], f"{heads} heads do not divide the hidden size {hidden}", "give head_dim")
    if heads % kv_heads:
        fields.section.report(KV_HEADS[0], f"{kv_heads} does not divide {heads} heads", "correct one of them")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=value_dim,
        causal=family.causal,
        qkv_bias=family.qkv_bias,
        out_bias=family.out_bias,
        qk_norm=family.qk_norm,
        latent=latent,
    )


def _kv_heads(fields: ConfigFields, model_type: str, heads: int) -> int:
    if model_type == "falcon" and not fields.flag("new_decoder_architecture", default=False):
        return 1 if fields.flag("multi_query", default=True) else heads
    if model_type == "chatglm" and not fields.flag("multi_query_attention", default=True):
        return heads
    return fields.size(*KV_HEADS) or heads


def _latent(fields: ConfigFields) -> LatentAttention | None:
    if fields.has(("kv_lora_rank",)) is None:
        return None
    return LatentAttention(
        query_rank=fields.size("q_lora_rank"),
        kv_rank=fields.required("kv_lora_rank"),
        nope_head_dim=fields.required("qk_nope_head_dim"),
        rope_head_dim=fields.required("qk_rope_head_dim"),
    )


def _dense(fields: ConfigFields, family: Family, model_type: str, hidden: int) -> Mlp | None:
    width = fields.size(*WIDTH)
    if width is None and (family.width_factor or model_type == "falcon"):
        width = (family.width_factor or 4) * hidden
    return None if width is None else Mlp(width=width, gated=family.gated, bias=family.mlp_bias)


def _experts(fields: ConfigFields, family: Family, count: int) -> tuple[Moe | None, tuple[bool, ...]]:
    """Return the mixture of experts, if any, and which layers have it."""
    experts = fields.size(*EXPERTS) if fields.has(EXPERTS) else None
    if not experts or experts < 2:
        return None, (False,) * count
    width = fields.size("moe_intermediate_size") or fields.required(*WIDTH)
    shared = fields.count("n_shared_experts", "num_shared_experts")
    if fields.has(TOP_K) is None:
        fields.assume("2 experts for each token")
    top_k = fields.size(*TOP_K) or 2
    if top_k > experts:
        fields.section.report(TOP_K[0], f"{top_k} experts for each token of {experts}", "give at most that many")
    moe = Moe(
        experts=experts,
        top_k=top_k,
        expert_width=width,
        gated=family.gated,
        shared_width=fields.size("shared_expert_intermediate_size") or shared * width,
        shared_gate=fields.has(("shared_expert_intermediate_size",)) is not None,
        router_bias=fields.text("topk_method", default="") == "noaux_tc",
    )
    dense_first = fields.count("first_k_dense_replace")
    every = fields.size("decoder_sparse_step", "moe_layer_freq") or 1
    plain = set(fields.layer_list("mlp_only_layers"))
    step_is_last = fields.has(("decoder_sparse_step",)) is not None
    return moe, tuple(
        layer >= dense_first and layer not in plain and (layer + step_is_last) % every == 0 for layer in range(count)
    )


def _window(fields: ConfigFields) -> int | None:
    if not fields.flag("use_sliding_window", default=True):
        return None
    return fields.size("sliding_window")


def _sliding_layers(fields: ConfigFields, model_type: str, count: int) -> tuple[bool, ...]:
    """Return which layers have the window: as listed, else in the family's pattern, else all."""
    listed = fields.layer_list("layer_types")
    if len(listed) == count:
        return tuple(kind == "sliding_attention" for kind in listed)
    pattern = fields.size("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None:
        pattern = {"gemma2": 2, "gemma3_text": 6}.get(model_type)
    if model_type.startswith("qwen"):
        dense = fields.count("max_window_layers")
        return tuple(layer >= dense for layer in range(count))
    return tuple(pattern is None or (layer + 1) % pattern != 0 for layer in range(count))


def _rotary_base(fields: ConfigFields) -> float:
    nested = fields.section.fields.get("rope_parameters")
    if isinstance(nested, Mapping) and isinstance(nested.get("rope_theta"), int | float):
        return float(nested["rope_theta"])
    return fields.fraction("rope_theta", "rotary_emb_base") or 10000.0


def _extra_parameters(fields: ConfigFields, model_type: str, hidden: int, vocab: int) -> int:
    """Return what a family has beside layers and embeddings: BERT's token types and pooler, OPT's projections."""
    if model_type == "bert":
        return (fields.size("type_vocab_size") or 2) * hidden + hidden * hidden + hidden
    width = fields.size("word_embed_proj_dim") if model_type == "opt" else None
    if width is not None and width != hidden:
        return 2 * width * hidden - vocab * (hidden - width)
    return 0
