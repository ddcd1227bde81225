"""The tower of sound of a multimodal `config.json`: the encoder of Whisper in five versions, each with its projector.

Shapes follow the model classes of Hugging Face transformers 5.24 (`models/<model_type>/modeling_*.py`, its defaults
too); the tests compare parameter counts with those classes. A tower of another kind is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.spec.layer import Attention, Layer, Mlp
from shardwright.spec.mixers import Product
from shardwright.spec.model import Tower
from shardwright.spec.read.config_fields import MOST_LAYERS, MOST_WIDTH, ConfigFields

AUDIO = "audio_config"
KERNEL = 3  # of both convolutions


def sound_tower_of(config: ConfigFields, hidden: int) -> Tower | None:
    """Return the tower of sound of a config whose text model has the width `hidden`; None where there is none, or no
    known one. Problems are added to the fields."""
    read = FAMILIES.get(config.text("model_type", default=""))
    audio = config.inner(AUDIO) if read is not None and config.has((AUDIO,)) else None
    return None if read is None or audio is None else read(config, audio, hidden)


def _qwen2_audio(config: ConfigFields, audio: ConfigFields, hidden: int) -> Tower:
    """Pairs of positions are averaged; one product. Longer sounds than 30 seconds are cut off."""
    tower = _whisper(audio, "qwen2_audio_encoder")
    projector = (Product(inputs=tower.hidden, outputs=hidden, cut="whole", bias=True),)
    return replace(tower, joined=2, projector=projector)


def _audio_flamingo(config: ConfigFields, audio: ConfigFields, hidden: int) -> Tower:
    """Pairs of positions are averaged; two products."""
    tower, bias = _whisper(audio, "audioflamingo3_encoder"), config.flag("projector_bias", default=True)
    chain = tuple(Product(inputs=inputs, outputs=hidden, cut="whole", bias=bias) for inputs in (tower.hidden, hidden))
    return replace(tower, joined=2, projector=chain, segments="trimmed")


def _voxtral(config: ConfigFields, audio: ConfigFields, hidden: int) -> Tower:
    """Positions are put side by side to the width of the feed-forward block; two products."""
    tower = _whisper(audio, "voxtral_encoder")
    assert tower.layer.mlp is not None, "every layer has one"
    width = tower.layer.mlp.width
    if width % tower.hidden:
        message = f"{width} is no multiple of the hidden size {tower.hidden}"
        audio.section.report("intermediate_size", message, "check both numbers")
    chain = tuple(Product(inputs=inputs, outputs=hidden, cut="whole") for inputs in (width, hidden))
    return replace(tower, joined=max(width // tower.hidden, 1), projector=chain, segments="padded")


def _qwen2_5_omni(config: ConfigFields, audio: ConfigFields, hidden: int) -> Tower:
    """Layers attend within windows, sounds have any length, and positions are computed; pairs of positions are
    averaged; one product. Two tokens stand around a sound."""
    tower = _whisper(audio, "qwen2_5_omni_audio_encoder")
    outputs = audio.size("output_dim", most=MOST_WIDTH) or 3584
    window = audio.size("n_window") or 100  # a chunk is twice as many spectra, which the convolutions halve
    layer = replace(tower.layer, attention=replace(tower.layer.self_attention, window=window))
    projector = (Product(inputs=tower.hidden, outputs=outputs, cut="whole", bias=True),)
    return replace(
        tower,
        layer=layer,
        position="none",
        learned_positions=0,
        positions=None,
        joined=2,
        projector=projector,
        loose=2 * outputs,
    )


def _qwen3_omni(config: ConfigFields, audio: ConfigFields, hidden: int) -> Tower:
    """Three convolutions over time and frequency, chunk by chunk, and a product; layers attend within windows of
    several chunks, keys have biases, and positions are computed; two products."""
    tower = _whisper(audio, "qwen3_omni_moe_audio_encoder")
    width, outputs = tower.hidden, audio.size("output_dim", most=MOST_WIDTH) or 3584
    channels = audio.size("downsample_hidden_size", most=MOST_WIDTH) or 480
    chunk = 2 * (audio.size("n_window") or 50)
    high, long = [audio.size("num_mel_bins") or 128], [chunk]
    for _ in range(3):
        high.append((high[-1] + 1) // 2)
        long.append((long[-1] + 1) // 2)
    rows = tuple(up * along / long[-1] for up, along in zip(high[1:], long[1:], strict=True))
    window = long[-1] * max((audio.size("n_window_infer") or 800) // chunk, 1)
    attention = replace(tower.layer.self_attention, window=window, qkv_bias=True)
    return replace(
        tower,
        layer=replace(tower.layer, attention=attention, vector_parameters=None),
        position="none",
        learned_positions=0,
        positions=None,
        chunk=chunk,
        stem=(
            *(
                Product(inputs=9 * inputs, outputs=channels, cut="whole", bias=True)
                for inputs in (1, channels, channels)
            ),
            Product(inputs=channels * high[-1], outputs=width, cut="whole"),
        ),
        stem_rows=(*rows, 1.0),
        projector=tuple(Product(inputs=width, outputs=out, cut="whole", bias=True) for out in (width, outputs)),
    )


def _whisper(audio: ConfigFields, family: str) -> Tower:
    """Return the encoder of Whisper, without projector: keys have no biases, and positions are a table."""
    width = audio.size("hidden_size", "d_model", most=MOST_WIDTH) or 1280
    heads = audio.size("num_attention_heads", "encoder_attention_heads") or 20
    if width % heads:
        audio.section.report("d_model", f"{width} is no multiple of {heads} heads", "check both numbers")
    inner = audio.size("intermediate_size", "encoder_ffn_dim", most=MOST_WIDTH) or 5120
    mels, heard = audio.size("num_mel_bins") or 128, audio.size("max_source_positions") or 1500
    dim = max(width // heads, 1)
    attention = Attention(
        heads=heads, kv_heads=heads, head_dim=dim, value_head_dim=dim, causal=False, qkv_bias=False, out_bias=True
    )
    return Tower(
        family=family,
        input="sound",
        hidden=width,
        depth=audio.size("num_hidden_layers", "encoder_layers", most=MOST_LAYERS) or 32,
        layer=Layer(  # biases of queries and values
            attention=attention, mlp=Mlp(width=inner, gated=False, bias=True), moe=None, vector_parameters=2 * width
        ),
        position="learned",
        learned_positions=heard,
        final_norm=True,
        activation=audio.text("activation_function", default="gelu"),
        stem=tuple(Product(inputs=KERNEL * inputs, outputs=width, cut="whole", bias=True) for inputs in (mels, width)),
        positions=heard,
        copies=1,  # queries are made contiguous, and so is what attention gives
    )


FAMILIES: Mapping[str, Callable[[ConfigFields, ConfigFields, int], Tower]] = MappingProxyType(
    {
        "qwen2_audio": _qwen2_audio,
        "audioflamingo3": _audio_flamingo,
        "voxtral": _voxtral,
        "qwen2_5_omni_thinker": _qwen2_5_omni,
        "qwen3_omni_moe_thinker": _qwen3_omni,
    }
)
