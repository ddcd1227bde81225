"""Reading of a model from a YAML of dimensions.

name: my-model
hidden: 4096
layers: 32
heads: 32
kv_heads: 8               # heads, if not given
head_dim: 128             # hidden / heads
ffn: 14336
vocab: 128256
gated: true               # SwiGLU; false: two matrices
activation: silu
norm: rmsnorm             # or layernorm
position: rope            # or learned, alibi, none
max_position: 8192
bias: false               # of all projections
tied_embeddings: false
dropout: false
moe: {experts: 8, top_k: 2, expert_width: 14336, shared_width: 0, every: 1, first_dense: 0}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from shardwright.errors import SpecError, bad, suggestion
from shardwright.spec.config_fields import MOST_LAYERS, MOST_SIZE
from shardwright.spec.fields import Section, shown
from shardwright.spec.model import Attention, Layer, Mlp, Model, Moe, Norm, Position

KEYS = (
    "name", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "gated", "activation", "norm",
    "position", "max_position", "bias", "tied_embeddings", "dropout", "window", "rotary_base", "moe",
)  # fmt: skip
MOE_KEYS = ("experts", "top_k", "expert_width", "shared_width", "every", "first_dense")
NORMS, POSITIONS = ("rmsnorm", "layernorm"), ("rope", "learned", "alibi", "none")


def model_of_dimensions(data: object, name: str) -> Model:
    """Return the model that a mapping of dimensions describes. Raises SpecError with every problem."""
    if not isinstance(data, Mapping):
        raise bad(name, f"expected a mapping, got {shown(data)}", "write lines such as 'hidden: 4096'")
    section = Section(name, data, [])
    section.reject_unknown(KEYS)
    for key in ("hidden", "layers", "heads", "vocab"):
        section.require(key, "add it")
    hidden, heads = _size(section, "hidden"), _size(section, "heads")
    kv_heads = section.integer("kv_heads", most=MOST_SIZE) or heads
    head_dim = section.integer("head_dim", most=MOST_SIZE) or max(hidden // heads, 1)
    if heads % kv_heads:
        section.report("kv_heads", f"{kv_heads} does not divide {heads} heads", "correct one of them")
    if section.fields.get("head_dim") is None and hidden % heads:
        section.report("heads", f"{heads} does not divide hidden {hidden}", "give head_dim")
    bias = section.flag("bias")
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        window=section.integer("window", most=MOST_SIZE),
        qkv_bias=bias,
        out_bias=bias,
    )
    gated = True if section.fields.get("gated") is None else section.flag("gated")
    layers = _layers(section, attention, gated=gated, bias=bias)
    position = cast(Position, _word(section, "position", POSITIONS))
    longest = section.integer("max_position", most=MOST_SIZE) or 0
    if position == "learned" and not longest:
        section.report("max_position", "is missing", "learned positions need their number")
    model = Model(
        name=section.text("name") or name,
        family="yaml",
        hidden=hidden,
        vocab=_size(section, "vocab"),
        layers=layers,
        norm=cast(Norm, _word(section, "norm", NORMS)),
        position=position,
        rotary_base=section.number("rotary_base") or 10000.0,
        max_position=longest,
        learned_positions=longest if position == "learned" else 0,
        tied_embeddings=section.flag("tied_embeddings"),
        dropout=section.flag("dropout"),
        activation=section.text("activation") or ("silu" if gated else "gelu"),
    )
    if section.problems:
        raise SpecError(*dict.fromkeys(section.problems))
    return model


def _size(section: Section, key: str) -> int:
    return section.integer(key, most=MOST_SIZE) or 1


def _word(section: Section, key: str, allowed: tuple[str, ...]) -> str:
    word = section.text(key) or allowed[0]
    if word not in allowed:
        section.report(key, f"{word!r} is not known", suggestion(word, allowed))
        return allowed[0]
    return word


def _layers(section: Section, attention: Attention, *, gated: bool, bias: bool) -> tuple[Layer, ...]:
    count = section.integer("layers", most=MOST_LAYERS) or 1
    width = section.integer("ffn", most=MOST_SIZE)
    dense = Layer(attention=attention, mlp=Mlp(width=width or 1, gated=gated, bias=bias), moe=None)
    raw = section.fields.get("moe")
    if raw is None:
        section.require("ffn", "add the inner width of the feed-forward block")
        return (dense,) * count
    if not isinstance(raw, Mapping):
        section.report("moe", f"expected a mapping, got {shown(raw)}", "write {experts: 8, top_k: 2, expert_width: …}")
        return (dense,) * count
    inner = Section(section.place_of("moe"), raw, section.problems)
    inner.reject_unknown(MOE_KEYS)
    for key in ("experts", "top_k", "expert_width"):
        inner.require(key, "add it")
    moe = Moe(
        experts=_size(inner, "experts"),
        top_k=_size(inner, "top_k"),
        expert_width=_size(inner, "expert_width"),
        gated=gated,
        shared_width=int(inner.number("shared_width", zero=True, most=MOST_SIZE) or 0),
    )
    if moe.top_k > moe.experts:
        inner.report("top_k", f"{moe.top_k} of {moe.experts} experts", "give at most as many as there are experts")
    first = int(inner.number("first_dense", zero=True, most=MOST_LAYERS) or 0)
    every = inner.integer("every", most=MOST_LAYERS) or 1
    sparse = Layer(attention=attention, mlp=None, moe=moe)
    layers = tuple(sparse if i >= first and (i + 1) % every == 0 else dense for i in range(count))
    if dense in layers:
        section.require("ffn", "some layers are dense: add the inner width of their feed-forward block")
    return layers
