"""The layers of a Hugging Face config: attention, its windows, feed-forward blocks and experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.errors import suggestion
from shardwright.spec.layer import (
    Attention,
    LatentAttention,
    Layer,
    Mlp,
    Moe,
    SparseAttention,
    interned,
    vectors_beside,
)
from shardwright.spec.mixers import Rwkv7
from shardwright.spec.read.block_patterns import BOTH, CHUNKED, FULL, INDEXED, MIXER, MLP, MOE, SLIDING
from shardwright.spec.read.config_fields import (
    DENSE_WIDTH,
    EXPERT_WIDTH,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    MOST_LAYERS,
    MOST_WIDTH,
    SHARED_EXPERTS,
    SHARED_WIDTH,
    TOP_K,
    WIDTH,
    ConfigFields,
)
from shardwright.spec.read.families import ModelFamily, Stated
from shardwright.spec.text.fields import shown

MARKS: Mapping[str, tuple[object, object]] = {"moe_layer_freq": (0, 1), "mlp_layer_types": ("dense", "sparse")}
FIRST_SPARSE, LAST_SPARSE = (
    ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    "moe_layer_end_index",
)
SPARSE_STEP = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")


def layers_of(fields: ConfigFields, family: ModelFamily, hidden: int, count: int) -> tuple[Layer, ...]:
    """Return `count` layers, equal ones as equal objects. Problems are added to the fields."""
    if family.mixer is not None:
        return _unlike_layers(fields, family, hidden, count)
    attention = _attention(fields, family, hidden)
    if attention.sparse is not None:
        return _indexed_layers(fields, family, hidden, count)
    windows = _windows(fields, family, count)
    dense = _dense(fields, family, hidden)
    moe = _moe(fields, family)
    sparse = _sparse_layers(fields, count) if moe else (False,) * count
    if dense is None and not all(sparse):
        fields.section.report(WIDTH[0], "is missing", "give the inner width of the feed-forward block")
    kinds = {
        kind: Layer(
            attention=replace(attention, window=kind[0]),
            mlp=None if kind[1] else dense,
            moe=moe if kind[1] else None,
            norms=family.norms + (1 if kind[1] and family.expert_norm else 0),
            vector_parameters=_vectors(family, attention, moe if kind[1] else None, hidden) or None,
        )
        for kind in set(zip(windows, sparse, strict=True))
    }
    return tuple(kinds[kind] for kind in zip(windows, sparse, strict=True))


def _unlike_layers(fields: ConfigFields, family: ModelFamily, hidden: int, count: int) -> tuple[Layer, ...]:
    """Return the layers of a family with another mixer than attention, as `layer_types` has them. Where a block is a
    mixer or a feed-forward alone, it has one norm."""
    words = tuple(str(word) for word in fields.layer_list("layer_types"))
    from shardwright.spec.read.mixers import mixer_of  # most models have none

    mixer = mixer_of(fields, family.mixer or "", hidden)
    with_attention = any(word not in (MIXER, MLP, MOE) for word in words)
    attention = _attention(fields, family, hidden) if with_attention else None
    halves, moe = family.blocks == "halves", _moe(fields, family)
    sparse = (
        tuple(word == MOE for word in words) if halves else _sparse_layers(fields, count) if moe else (False,) * count
    )
    needs_dense = MLP in words if halves else not all(sparse) and family.feeds_forward
    dense = _dense(fields, family, hidden) if needs_dense else None
    if needs_dense and dense is None:
        fields.section.report(WIDTH[0], "is missing", "give the inner width of the feed-forward block")
    if any(sparse) and moe is None:
        fields.section.report(EXPERTS[0], "is missing", "there are blocks of experts: give their number")
    layers = []
    for word, routed in zip(words, sparse, strict=True):
        mixed = (
            None if word in (MIXER, MLP, MOE) or attention is None else replace(attention, window=_window(fields, word))
        )
        feeds = word in (MLP, MOE) if halves else family.feeds_forward
        layers.append(
            Layer(
                attention=mixed,
                mlp=dense if feeds and not routed else None,
                moe=moe if feeds and routed else None,
                norms=1 if halves or not feeds else family.norms,
                vector_parameters=_vectors(family, mixed, moe if routed else None, hidden) or None,
                mixer=mixer if word in (MIXER, BOTH) else None,
            )
        )
    if isinstance(mixer, Rwkv7) and layers:  # the first layer has no values before it to take from
        layers[0] = replace(layers[0], mixer=replace(mixer, value_rank=None))
    return interned(layers)


def _indexed_layers(fields: ConfigFields, family: ModelFamily, hidden: int, count: int) -> tuple[Layer, ...]:
    """Return the layers of sparse attention: as others, but that some take the keys that an indexer before picked."""
    sparse_layers = layers_of(
        fields.over({**fields.section.fields, "index_topk": None, "layer_types": None}), family, hidden, count
    )
    attention = _attention(fields, family, hidden)
    assert attention.sparse is not None, "asked for sparse layers alone"
    reused = replace(attention, sparse=replace(attention.sparse, heads=0))
    kinds = {
        (layer, runs): replace(layer, attention=attention if runs else reused)
        for layer in sparse_layers
        for runs in (True, False)
    }
    return tuple(kinds[pair] for pair in zip(sparse_layers, _indexer_runs(fields, count), strict=True))


def _indexer_runs(fields: ConfigFields, count: int) -> tuple[bool, ...]:
    """Return in which layers the indexer runs: as listed or written by letters, else every n-th from an offset (as
    GlmMoeDsaConfig has it), else in all."""
    listed = fields.layer_list("indexer_types")
    pattern = fields.section.fields.get("index_topk_pattern")
    if isinstance(pattern, str) and not listed:
        listed = tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern)
    if listed:
        if len(listed) != count or any(word not in ("full", "shared") for word in listed):
            fields.section.report("indexer_types", f"is no list of {count} times full or shared", "write one for each")
            return (True,) * count
        return tuple(word == "full" for word in listed)
    every, offset = fields.size("index_topk_freq") or 1, 2
    if fields.has(("index_skip_topk_offset",)):
        offset = fields.count("index_skip_topk_offset")
    return tuple(max(layer - offset + 1, 0) % every == 0 for layer in range(count))


def stated(fields: ConfigFields, trait: Stated) -> bool:
    """Return a trait of the family, as the config states it where it may."""
    return trait if isinstance(trait, bool) else fields.flag(trait[0], default=trait[1])


def _vectors(family: ModelFamily, attention: Attention | None, moe: Moe | None, hidden: int) -> int:
    wide, bias = family.qk_norm_over == "projection", family.expert_bias
    beside = vectors_beside(attention, moe, hidden, sinks=family.sinks, wide_norms=wide, expert_bias=bias)
    return family.scalars + beside


def _attention(fields: ConfigFields, family: ModelFamily, hidden: int) -> Attention:
    heads = fields.required(*HEADS, most=MOST_WIDTH)
    kv_heads = fields.size(*KV_HEADS, most=MOST_WIDTH) or heads
    latent = _latent(fields)
    if latent is not None:
        value_dim = fields.required("v_head_dim")
        head_dim, kv_heads = latent.nope_head_dim + latent.rope_head_dim, heads
    else:
        head_dim = value_dim = fields.size(*HEAD_DIM, most=MOST_WIDTH) or hidden // heads or 1
        if fields.has(HEAD_DIM) is None and hidden % heads and not fields.section.problems:
            fields.section.report(HEADS[0], f"{heads} heads do not divide the hidden size {hidden}", "give head_dim")
    if heads % kv_heads:
        name = fields.has(KV_HEADS) or KV_HEADS[0]
        fields.section.report(name, f"{kv_heads} does not divide {heads} heads", "correct one of them")
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=value_dim,
        causal=family.causal,
        qkv_bias=stated(fields, family.qkv_bias),
        out_bias=stated(fields, family.out_bias),
        qk_norm=stated(fields, family.qk_norm),
        latent=latent,
        gate=family.attention_gate,
        sparse=_sparse(fields) if latent is not None else None,
    )


def _sparse(fields: ConfigFields) -> SparseAttention | None:
    """Return the indexer of sparse attention, where the config has one."""
    top_k = fields.size("index_topk")
    if top_k is None:
        return None
    return SparseAttention(
        top_k=top_k,
        heads=fields.required("index_n_heads", most=MOST_WIDTH),
        head_dim=fields.required("index_head_dim", most=MOST_WIDTH),
    )


def _latent(fields: ConfigFields) -> LatentAttention | None:
    if fields.has(("kv_lora_rank",)) is None:
        return None
    return LatentAttention(
        query_rank=fields.size("q_lora_rank"),
        kv_rank=fields.required("kv_lora_rank"),
        nope_head_dim=fields.required("qk_nope_head_dim"),
        rope_head_dim=fields.required("qk_rope_head_dim"),
    )


def _dense(fields: ConfigFields, family: ModelFamily, hidden: int) -> Mlp | None:
    width = fields.size(*DENSE_WIDTH, *WIDTH)
    if width is None and family.width_factor:
        width = int((fields.section.number("expansion_ratio") or family.width_factor) * hidden)
    return None if width is None else Mlp(width=width, gated=family.gated, bias=stated(fields, family.mlp_bias))


def _windows(fields: ConfigFields, family: ModelFamily, count: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, None for full attention: as listed, else as in the family."""
    listed = fields.layer_list("layer_types")
    if listed and len(listed) != count:
        message = f"lists {len(listed)} layers, the model has {count}"
        fields.section.report("layer_types", message, "write one type for each layer")
    elif listed:
        return tuple(_window(fields, kind) for kind in _layer_types(fields, listed))
    pattern = fields.size("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS) or family.windows
    if pattern == "listed":
        fields.section.report("layer_types", "is missing", "list the type of every layer: full_attention, …")
    if pattern == "none" or not fields.flag("use_sliding_window", default=pattern != "later"):
        return (None,) * count
    window = fields.count("sliding_window", "attention_chunk_size") or None
    first = fields.count("max_window_layers") if pattern == "later" else 0
    every = pattern if isinstance(pattern, int) else 0
    last = 1 if every > 0 else 0
    return tuple(None if layer < first or (every and (layer + last) % every == 0) else window for layer in range(count))


def _layer_types(fields: ConfigFields, listed: tuple[object, ...]) -> tuple[str, ...]:
    """Return the types of the layers; it is a guess that an unknown one counts as full attention."""
    for kind in dict.fromkeys(kind for kind in listed if isinstance(kind, str)):
        if kind not in (FULL, SLIDING, CHUNKED, INDEXED):
            fields.guess(f"layers of type {shown(kind)} are taken as full attention")
    wrong = next((kind for kind in listed if not isinstance(kind, str)), None)
    if wrong is not None or None in listed:
        message = f"expected names of layer types, got {shown(wrong)}"
        fields.section.report("layer_types", message, suggestion("", (FULL, SLIDING)))
    return tuple(kind if isinstance(kind, str) else FULL for kind in listed)


def _window(fields: ConfigFields, kind: str) -> int | None:
    if kind not in (SLIDING, CHUNKED):
        return None
    if kind == CHUNKED:
        return fields.required("attention_chunk_size")
    return fields.required("sliding_window", "attention_window_size")


def _moe(fields: ConfigFields, family: ModelFamily) -> Moe | None:
    """Return the mixture of experts; None where the config has no expert, or a single one."""
    experts = fields.size(*EXPERTS, most=MOST_WIDTH)
    if experts is None or experts < 2:
        return None
    width = fields.size(*EXPERT_WIDTH) or fields.required(*WIDTH)
    if fields.has(TOP_K) is None:
        fields.assume("2 experts for each token")
    top_k = fields.size(*TOP_K) or 2
    if top_k > experts:
        name = fields.has(TOP_K) or TOP_K[0]
        fields.section.report(name, f"{top_k} experts for each token of {experts}", "give at most that many")
    shared_width = fields.count(*SHARED_WIDTH)
    groups = fields.size("n_group", "num_expert_group", most=MOST_WIDTH)
    method = fields.text("topk_method", default="noaux_tc" if family.router_bias else "")
    grouped = fields.flag("use_grouped_topk", default=True) and groups is not None and groups > 1 and method != "greedy"
    renormalised = fields.has(("norm_topk_prob", "moe_renormalize")) or "norm_topk_prob"
    scaling = fields.section.number("routed_scaling_factor") or fields.section.number("router_scaling_factor")
    return Moe(
        experts=experts,
        top_k=top_k,
        expert_width=width,
        gated=family.gated,
        shared_width=shared_width or (fields.count(*SHARED_EXPERTS) or family.shared_experts) * width,
        shared_gate=family.shared_gate and shared_width > 0 and fields.has((SHARED_WIDTH[0],)) is not None,
        router_bias=method == "noaux_tc",
        latent=fields.size("moe_latent_size", most=MOST_WIDTH),
        router_groups=groups if grouped else None,
        router_top_groups=fields.size("topk_group", most=MOST_WIDTH) if grouped else None,
        router_scaling=None if scaling == 1.0 else scaling,
        pre_softmax=True if not fields.flag(renormalised, default=family.normalised) else None,
    )


def _sparse_layers(fields: ConfigFields, count: int) -> tuple[bool, ...]:
    """Return which layers have experts: those that a list marks or names, else every n-th after the first dense ones
    (Llama 4 and ERNIE count so that the n-th is the first of them, and ERNIE has a last one)."""
    for name, marks in MARKS.items():
        listed = fields.section.fields.get(name)
        if isinstance(listed, list):
            if len(listed) != count or any(mark not in marks for mark in listed):
                words = " or ".join(map(str, marks))
                fields.section.report(name, f"is no list of {count} times {words}", "write one for each layer")
                return (False,) * count
            return tuple(mark == marks[1] for mark in listed)
    if named := fields.layer_list("moe_layers"):
        return tuple(layer in named for layer in range(count))
    if period := fields.size("expert_layer_period", most=MOST_LAYERS):
        offset = fields.count("expert_layer_offset")
        return tuple(layer % period == offset for layer in range(count))
    plain = fields.layer_list("mlp_only_layers")
    first, last = fields.count(*FIRST_SPARSE), fields.count(LAST_SPARSE) or count
    every = fields.size(*SPARSE_STEP, "moe_layer_freq", most=MOST_LAYERS) or 1
    after = 1 if fields.has(SPARSE_STEP) else 0
    return tuple(
        first <= layer <= last and layer not in plain and (layer + after) % every == 0 for layer in range(count)
    )
