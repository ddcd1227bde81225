"""Encoder-decoders of a Hugging Face `config.json`: T5 and its kin, BART and its kin, Whisper.

Shapes follow the model classes of Hugging Face transformers 5.24 (`models/<model_type>/modeling_*.py`); the tests
compare parameter counts with those classes. T5 1.1 and mT5 say that their output projection is not tied, and their
files of weights have it, though classes that are made of their configs tie it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.records import record
from shardwright.spec.forward_pass import ForwardPass, Placement
from shardwright.spec.layer import Attention, Layer, Mlp, Position
from shardwright.spec.mixers import Product
from shardwright.spec.model import Model, Tower
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_WIDTH, ConfigFields

KERNEL = 3  # of both convolutions of Whisper
RATES = ("dropout_rate", "dropout", "attention_dropout", "activation_dropout")


@record
class Family:
    """What the config of a kin of BART does not say. A table of positions, learned or of sines, has `offset` rows more
    than there are positions; where `positions` are none, sines are computed."""

    embedding_norm: bool = False
    final_norm: bool = True
    norms: Placement = "before"
    positions: Position = "learned"
    offset: int = 0


BARTS: Mapping[str, Family] = MappingProxyType(
    {
        "bart": Family(embedding_norm=True, final_norm=False, norms="sum", offset=2),
        "plbart": Family(embedding_norm=True, final_norm=False, norms="sum", offset=2),
        "mbart": Family(embedding_norm=True, offset=2),
        "blenderbot": Family(),
        "blenderbot-small": Family(embedding_norm=True, final_norm=False, norms="sum"),
        "pegasus": Family(),
        "marian": Family(final_norm=False, norms="sum"),
        "m2m_100": Family(positions="none"),
        "whisper": Family(),
    }
)
T5S = ("t5", "mt5", "umt5")
ENCODER_DECODERS = (*T5S, *BARTS)
"""The model types that are read here."""


def encoder_decoder(config: ConfigFields, family: str, title: str) -> Model:
    """Return the encoder-decoder that a config describes. Problems are added to the fields."""
    model = _t5(config, family, title) if family in T5S else _bart(config, family, BARTS[family], title)
    return replace(model, assumed=tuple(dict.fromkeys(config.assumed)))


def _t5(config: ConfigFields, family: str, title: str) -> Model:
    """RMSNorms, no biases; learned numbers are added to the scores of self-attention, of one table for all layers of a
    stack, in UMT5 of one for each."""
    hidden, heads = config.required("d_model", most=MOST_WIDTH), config.required("num_heads", most=MOST_WIDTH)
    depth = config.required("num_layers", most=MOST_LAYERS)
    deep = config.size("num_decoder_layers", most=MOST_LAYERS) or depth
    dim = config.required("d_kv", most=MOST_WIDTH)
    words = config.text("feed_forward_proj", default="relu").split("-")
    gated = words[0] == "gated"
    activation = "gelu_new" if words == ["gated", "gelu"] else words[-1]
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, value_head_dim=dim, causal=False)
    mlp = Mlp(width=config.required("d_ff", most=MOST_WIDTH), gated=gated)
    numbers = (config.size("relative_attention_num_buckets") or 32) * heads
    tables = (depth, deep) if family == "umt5" else (1, 1)
    drops = _drops(config)
    tower = Tower(
        family=family, input="text", hidden=hidden, depth=depth, layer=Layer(attention=attention, mlp=mlp, moe=None),
        norm="rmsnorm", position="relative", final_norm=True, activation=activation, score_biases=tables[0] * numbers,
        dropout=drops,
    )  # fmt: skip
    layer = _decoder_layer(replace(attention, causal=True), attention, mlp)
    return replace(_model(config, tower, (layer,) * deep, title), extra_parameters=tables[1] * numbers)


def _bart(config: ConfigFields, family: str, kin: Family, title: str) -> Model:
    """LayerNorms and biases everywhere; in Whisper keys have none, and two convolutions make positions of sound."""
    hidden, sound = config.required("d_model", most=MOST_WIDTH), family == "whisper"
    if not config.flag("share_encoder_decoder_embeddings", default=True):
        message = "is false, and the embedding of an encoder is described as that of the decoder"
        config.section.report("share_encoder_decoder_embeddings", message, "take a model that shares it")
    stacks = []
    for name in ("encoder", "decoder"):
        heads = config.required(f"{name}_attention_heads", most=MOST_WIDTH)
        if hidden % heads:
            message = f"{heads} heads do not divide the hidden size {hidden}"
            config.section.report(f"{name}_attention_heads", message, "check both numbers")
        dim = max(hidden // heads, 1)
        attention = Attention(
            heads=heads, kv_heads=heads, head_dim=dim, value_head_dim=dim, causal=name == "decoder", qkv_bias=not sound,
            out_bias=True,
        )  # fmt: skip
        stacks.append(
            (attention, Mlp(width=config.required(f"{name}_ffn_dim", most=MOST_WIDTH), gated=False, bias=True))
        )
    (seen, inner), (attention, mlp) = stacks
    beside = 2 * hidden if sound else None  # biases of queries and values
    learned = kin.positions == "learned"
    longest = config.required("max_target_positions" if sound else "max_position_embeddings")
    heard = config.required("max_source_positions") if sound else longest
    mels = config.required("num_mel_bins") if sound else 0
    tower = Tower(
        family=family,
        input="sound" if sound else "text",
        hidden=hidden,
        depth=config.required("encoder_layers", most=MOST_LAYERS),
        layer=Layer(attention=seen, mlp=inner, moe=None, vector_parameters=beside),
        position=kin.positions,
        learned_positions=heard + kin.offset if learned else 0,
        first_norm=kin.embedding_norm,
        final_norm=kin.final_norm,
        activation=config.text("activation_function", default="gelu"),
        stem=(
            Product(inputs=KERNEL * mels, outputs=hidden, cut="whole", bias=True),
            Product(inputs=KERNEL * hidden, outputs=hidden, cut="whole", bias=True),
        )
        if sound
        else (),
        positions=heard if sound else None,
        copies=int(sound),  # queries are made contiguous, and so is what attention gives
        dropout=_drops(config),
    )
    layer = _decoder_layer(attention, replace(attention, causal=False), mlp)
    layer = replace(layer, vector_parameters=2 * beside if beside else None)
    layers = (layer,) * config.required("decoder_layers", most=MOST_LAYERS)
    return replace(
        _model(config, tower, layers, title),
        max_position=longest,
        learned_positions=longest + kin.offset if learned else 0,
        forward_pass=ForwardPass(norms=kin.norms),
    )


def _decoder_layer(attention: Attention, cross: Attention, mlp: Mlp) -> Layer:
    return Layer(attention=attention, cross=cross, mlp=mlp, moe=None, norms=3)


def _model(config: ConfigFields, tower: Tower, layers: tuple[Layer, ...], title: str) -> Model:
    """Return a model whose decoder has the norms, positions and activation of its encoder."""
    return Model(
        name=title,
        family=tower.family,
        hidden=tower.hidden,
        vocab=config.required("vocab_size"),
        layers=layers,
        norm=tower.norm,
        position=tower.position,
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        embedding_norm=tower.first_norm,
        final_norm=tower.final_norm,
        dropout=tower.dropout,
        activation=tower.activation,
        norm_epsilon=config.fraction("layer_norm_epsilon", most=1.0),
        tower=tower,
    )


def _drops(config: ConfigFields) -> bool:
    rates = [config.fraction(name, most=1.0) for name in RATES if config.has((name,))]
    return any(rates)
