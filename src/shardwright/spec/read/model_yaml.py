"""Reading of a model from a YAML of dimensions. All keys, with what holds where they are missing:

name: my-model            # the file's name
hidden: 4096              # needed
layers: 32                # needed
heads: 32                 # needed
kv_heads: 8               # as many as heads
head_dim: 128             # hidden / heads
ffn: 14336                # inner width of the feed-forward block; needed unless every layer has experts
vocab: 128256             # needed
gated: true               # true: three matrices (SwiGLU); false: two
activation: silu          # silu where gated, else gelu
norm: rmsnorm             # or layernorm
norms_per_layer: 2
position: rope            # or learned, alibi, none
rotary_base: 10000
rotary_fraction: 1        # the part of each head that is rotated
max_position: 8192        # needed for learned positions
bias: none                # of the projections: none, qkv or all (also false and true)
qk_norm: false
window: 4096              # sliding window; none
full_every: 6             # with a window: every n-th layer has none; no layer
causal: true
parallel_block: false     # attention and feed-forward block side by side
tied_embeddings: false
embedding_norm: false
final_norm: true
head_bias: false
dropout: false
mtp_layers: 0             # multi-token prediction
mla: {query_rank: 1536, kv_rank: 512, nope_head_dim: 128, rope_head_dim: 64, value_head_dim: 128}
moe: {experts: 8, top_k: 2, expert_width: 14336, shared_width: 0, shared_gate: false, router_bias: false,
      first_dense: 0, every: 1}     # experts in every n-th layer after the first dense ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast, get_args

from shardwright.errors import bad, reject
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe, Norm, Position
from shardwright.spec.model import Model
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_SIZE, MOST_WIDTH
from shardwright.spec.text.fields import Section, shown

POSITIONS = tuple(name for name in get_args(Position) if name != "relative")  # which encoder-decoders have

KEYS = (
    "name", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "activation", "norm",
    "norms_per_layer", "position", "rotary_base", "rotary_fraction", "max_position", "bias", "qk_norm", "window",
    "full_every", "causal", "parallel_block", "tied_embeddings", "embedding_norm", "final_norm", "head_bias", "dropout",
    "mtp_layers", "mla", "moe",
)  # fmt: skip
MLA_KEYS = ("query_rank", "kv_rank", "nope_head_dim", "rope_head_dim", "value_head_dim")
MOE_KEYS = (
    "experts", "top_k", "expert_width", "shared_width", "shared_gate", "router_bias", "first_dense", "every"
)  # fmt: skip
BIASES = ("none", "qkv", "all")


def model_of_dimensions(data: object, name: str, *, title: str | None = None) -> Model:
    """Return the model that a mapping of dimensions describes. Raises SpecError with every problem."""
    if not isinstance(data, Mapping):
        raise bad(name, f"expected a mapping, got {shown(data)}", "write lines such as 'hidden: 4096'")
    section = Section(name, data, [])
    section.reject_unknown(KEYS)
    for key in ("hidden", "layers", "heads", "vocab"):
        section.require(key, "add it")
    hidden = _size(section, "hidden", most=MOST_WIDTH)
    gated = section.flag("gated", default=True)
    position = cast(Position, section.word("position", POSITIONS))
    longest = section.integer("max_position", most=MOST_SIZE) or 0
    if position == "learned":
        section.require("max_position", "learned positions need their number")
    model = Model(
        name=section.text("name") or title or name,
        family="yaml",
        hidden=hidden,
        vocab=_size(section, "vocab"),
        layers=_layers(section, hidden, gated=gated),
        norm=cast(Norm, section.word("norm", get_args(Norm))),
        position=position,
        rotary_base=section.number("rotary_base") or 10000.0,
        rotary_fraction=section.number("rotary_fraction", most=1.0) or 1.0,
        max_position=longest,
        learned_positions=longest if position == "learned" else 0,
        tied_embeddings=section.flag("tied_embeddings"),
        final_norm=section.flag("final_norm", default=True),
        embedding_norm=section.flag("embedding_norm"),
        head_bias=section.flag("head_bias"),
        parallel_block=section.flag("parallel_block"),
        dropout=section.flag("dropout"),
        mtp_layers=section.count("mtp_layers", most=MOST_LAYERS),
        activation=section.text("activation") or ("silu" if gated else "gelu"),
    )
    reject(dict.fromkeys(section.problems))
    return model


def _size(section: Section, key: str, *, most: int = MOST_SIZE) -> int:
    return section.integer(key, most=most) or 1


def _biases(section: Section) -> str:
    value = section.fields.get("bias")
    return ("all" if value else "none") if isinstance(value, bool) else section.word("bias", BIASES)


def _layers(section: Section, hidden: int, *, gated: bool) -> tuple[Layer, ...]:
    """Return the layers: dense and expert ones, with and without window."""
    count = section.integer("layers", most=MOST_LAYERS) or 1
    biases, norms = _biases(section), section.integer("norms_per_layer", most=8) or 2
    attention = _attention(section, hidden, biases)
    width = section.integer("ffn", most=MOST_SIZE)
    moe, sparse = _experts(section, count, gated=gated)
    if not all(sparse):
        section.require("ffn", "add the inner width of the feed-forward block")
    window = section.integer("window", most=MOST_SIZE)
    every = section.integer("full_every", most=MOST_LAYERS)
    mlp = Mlp(width=width or 1, gated=gated, bias=biases == "all")
    kinds = {
        (slides, routed): Layer(
            attention=replace(attention, window=window if slides else None),
            mlp=None if routed else mlp,
            moe=moe if routed else None,
            norms=norms,
        )
        for slides in (False, True)
        for routed in (False, True)
    }
    return tuple(kinds[not every or (layer + 1) % every != 0, routed] for layer, routed in enumerate(sparse))


def _attention(section: Section, hidden: int, biases: str) -> Attention:
    heads = _size(section, "heads", most=MOST_WIDTH)
    kv_heads = section.integer("kv_heads", most=MOST_WIDTH) or heads
    head_dim = section.integer("head_dim", most=MOST_WIDTH)
    if heads % kv_heads:
        section.report("kv_heads", f"{kv_heads} does not divide {heads} heads", "correct one of them")
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or max(hidden // heads, 1),
        value_head_dim=head_dim or max(hidden // heads, 1),
        causal=section.flag("causal", default=True),
        qkv_bias=biases != "none",
        out_bias=biases == "all",
        qk_norm=section.flag("qk_norm"),
    )
    latent = _latent(section)
    if latent is None:
        if head_dim is None and hidden % heads:
            section.report("heads", f"{heads} does not divide hidden {hidden}", "give head_dim")
        return attention
    for key in ("kv_heads", "head_dim"):
        if section.fields.get(key) is not None:
            section.report(key, "has no meaning with mla", "leave it out")
    if biases != "none":
        section.report("bias", "has no meaning with mla", "leave it out")
    width = latent[0].nope_head_dim + latent[0].rope_head_dim
    return replace(attention, latent=latent[0], kv_heads=heads, head_dim=width, value_head_dim=latent[1])


def _latent(section: Section) -> tuple[LatentAttention, int] | None:
    """Return latent attention and its value head dimension."""
    inner = _inner(section, "mla", MLA_KEYS, MLA_KEYS[1:])
    if inner is None:
        return None
    latent = LatentAttention(
        query_rank=inner.integer("query_rank", most=MOST_WIDTH),
        kv_rank=_size(inner, "kv_rank", most=MOST_WIDTH),
        nope_head_dim=_size(inner, "nope_head_dim", most=MOST_WIDTH),
        rope_head_dim=_size(inner, "rope_head_dim", most=MOST_WIDTH),
    )
    return latent, _size(inner, "value_head_dim", most=MOST_WIDTH)


def _experts(section: Section, count: int, *, gated: bool) -> tuple[Moe | None, tuple[bool, ...]]:
    """Return the mixture of experts, if any, and which layers have it."""
    inner = _inner(section, "moe", MOE_KEYS, MOE_KEYS[:3])
    if inner is None:
        return None, (False,) * count
    moe = Moe(
        experts=_size(inner, "experts", most=MOST_WIDTH),
        top_k=_size(inner, "top_k", most=MOST_WIDTH),
        expert_width=_size(inner, "expert_width"),
        gated=gated,
        shared_width=inner.count("shared_width", most=MOST_SIZE),
        shared_gate=inner.flag("shared_gate"),
        router_bias=inner.flag("router_bias"),
    )
    if moe.top_k > moe.experts:
        inner.report("top_k", f"{moe.top_k} of {moe.experts} experts", "give at most as many as there are experts")
    if moe.shared_gate and not moe.shared_width:
        inner.report("shared_gate", "gates no shared expert", "give shared_width")
    first = inner.count("first_dense", most=MOST_LAYERS)
    every = inner.integer("every", most=MOST_LAYERS) or 1
    return moe, tuple(layer >= first and (layer + 1) % every == 0 for layer in range(count))


def _inner(section: Section, key: str, known: tuple[str, ...], needed: tuple[str, ...]) -> Section | None:
    """Return the mapping under `key`, None where it is missing or no mapping."""
    inner = section.inner(key)
    if inner is None:
        return None
    inner.reject_unknown(known)
    for name in needed:
        inner.require(name, "add it")
    return inner
