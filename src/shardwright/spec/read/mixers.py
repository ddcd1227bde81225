"""The mixers of a Hugging Face config that are no softmax attention, under their many spellings, and the way back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from shardwright.spec.mixers import (
    GatedDelta,
    GatedRecurrence,
    Lightning,
    Mamba,
    Mamba2,
    Mixer,
    Rwkv7,
    ShortConvolution,
)
from shardwright.spec.read.config_fields import HEAD_DIM as ATTENTION_HEAD_DIM
from shardwright.spec.read.config_fields import HEADS, MOST_WIDTH, ConfigFields
from shardwright.spec.text.fields import shown

STATE = ("mamba_d_state", "ssm_state_size", "state_size")
WIDTH = ("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim", "short_conv_kernel_size", "conv1d_width")
EXPAND = ("mamba_expand", "expand")
RANK = ("mamba_dt_rank", "time_step_rank")
MAMBA_HEADS, MAMBA_HEAD_DIM = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), ("mamba_d_head", "mamba_head_dim")
GROUPS = ("mamba_n_groups", "n_groups", "mamba_ngroups")
CHUNK = ("mamba_chunk_size", "chunk_size")
BIAS, CONVOLUTION_BIAS = ("mamba_proj_bias", "use_bias"), ("mamba_conv_bias", "use_conv_bias")

Reader = Callable[[ConfigFields, int], Mixer]


def mixer_of(fields: ConfigFields, kind: str, hidden: int) -> Mixer:
    """Return the mixer of a family by the name of its reader. Problems are added to the fields."""
    return READERS[kind](fields, hidden)


def _size(fields: ConfigFields, names: tuple[str, ...]) -> int:
    return fields.required(*names, most=MOST_WIDTH)


def _auto(fields: ConfigFields, names: tuple[str, ...], usual: int) -> int:
    """Return a size that may say "auto"."""
    name = fields.has(names)
    if name is None or fields.section.fields[name] == "auto":
        return usual
    return fields.size(name, most=MOST_WIDTH) or usual


def _flag(fields: ConfigFields, names: tuple[str, ...], *, default: bool) -> bool:
    name = fields.has(names)
    return default if name is None else fields.flag(name, default=default)


def _mamba(fields: ConfigFields, hidden: int) -> Mamba:
    """A width that is stated counts before the factor: Falcon Mamba 7B says 16, and has twice the hidden width."""
    expanded = (fields.size(*EXPAND) or 2) * hidden
    stated = fields.size("intermediate_size", most=MOST_WIDTH) if fields.has(("state_size",)) else None
    return Mamba(
        inner=stated or expanded,
        state=_size(fields, STATE),
        rank=_auto(fields, RANK, math.ceil(hidden / 16)),
        width=fields.size(*WIDTH) or 4,
        bias=_flag(fields, BIAS, default=False),
        convolution_bias=_flag(fields, CONVOLUTION_BIAS, default=True),
    )


def _falcon_mamba(fields: ConfigFields, hidden: int) -> Mamba:
    return replace(_mamba(fields, hidden), norm_epsilon=fields.fraction("mixer_rms_eps", most=1.0) or 1e-6)


def _jamba(fields: ConfigFields, hidden: int) -> Mamba:
    return Mamba(
        inner=(fields.size(*EXPAND) or 2) * hidden,
        state=fields.size(*STATE) or 16,
        rank=_auto(fields, RANK, math.ceil(hidden / 16)),
        width=fields.size(*WIDTH) or 4,
        bias=_flag(fields, BIAS, default=False),
        convolution_bias=_flag(fields, CONVOLUTION_BIAS, default=True),
        normed=True,
    )


def _zamba(fields: ConfigFields, hidden: int) -> Mamba:
    heads, mixer = _size(fields, ("n_mamba_heads",)), _mamba(fields, hidden)
    if mixer.inner % heads:
        fields.section.report("n_mamba_heads", f"{heads} heads do not divide {mixer.inner}", "use a divisor of it")
    return replace(mixer, heads=heads if heads > 1 else None)


def _mamba2(fields: ConfigFields, hidden: int) -> Mamba2:
    """Mamba-2's own config calls its heads `num_heads` of `head_dim`, as those of hybrids call attention's."""
    alone = fields.has(MAMBA_HEADS) is None
    inner = fields.size("mamba_d_ssm", most=MOST_WIDTH) or (fields.size(*EXPAND) or 2) * hidden
    heads = _size(fields, ("num_heads",) if alone else MAMBA_HEADS)
    per_head = _auto(fields, ("head_dim",) if alone else MAMBA_HEAD_DIM, max(inner // heads, 1))
    groups = fields.size(*GROUPS) or 1
    if heads % groups:
        name = fields.has(GROUPS) or GROUPS[0]
        fields.section.report(name, f"{groups} does not divide {heads} heads of Mamba-2", "correct one of them")
    bias = _flag(fields, BIAS, default=False)
    return Mamba2(
        heads=heads,
        head_dim=per_head,
        groups=groups,
        state=_size(fields, STATE),
        width=fields.size(*WIDTH) or 4,
        chunk=fields.size(*CHUNK) or 256,
        bias=bias,
        out_bias=_flag(fields, ("projectors_bias",), default=bias),
        convolution_bias=_flag(fields, CONVOLUTION_BIAS, default=True),
        gated_norm=_flag(fields, ("mamba_rms_norm",), default=True),
    )


def _nemotron(fields: ConfigFields, hidden: int) -> Mamba2:
    """Both projections have biases by `use_bias`, and `time_step_min` bounds time steps, not their first values alone
    (NemotronHMamba2Mixer of transformers 5.24)."""
    biased = fields.flag("use_bias", default=False)
    least = 0.001 if fields.has(("time_step_min",)) is None else fields.fraction("time_step_min")
    mixer = _mamba2(fields, hidden)
    return replace(mixer, chunk=fields.size(*CHUNK) or 128, bias=biased, out_bias=biased, least_step=least or None)


def _zamba2(fields: ConfigFields, hidden: int) -> Mamba2:
    """The convolution has a bias, and the norm an epsilon of its own, whatever the config says (Zamba2MambaMixer)."""
    biased = fields.flag("add_bias_linear", default=False)
    least = 0.001 if fields.has(("time_step_min",)) is None else fields.fraction("time_step_min")
    mixer = replace(_mamba2(fields, hidden), bias=biased, out_bias=biased, convolution_bias=True)
    if mixer.inner != (fields.size(*EXPAND) or 2) * hidden:
        fields.section.report("n_mamba_heads", f"{mixer.heads} heads do not divide the channels", "use a divisor of it")
    return replace(mixer, least_step=least or None, norm_epsilon=1e-5)


def _gated_delta(fields: ConfigFields, hidden: int) -> GatedDelta:
    return GatedDelta(
        key_heads=_size(fields, ("linear_num_key_heads",)),
        key_dim=_size(fields, ("linear_key_head_dim",)),
        value_heads=_size(fields, ("linear_num_value_heads",)),
        value_dim=_size(fields, ("linear_value_head_dim",)),
        width=fields.size(*WIDTH) or 4,
    )


def _olmo_delta(fields: ConfigFields, hidden: int) -> GatedDelta:
    """The epsilon of the norm is that of fla's default, whatever the config says (OlmoHybridGatedDeltaNet)."""
    heads = fields.required(*HEADS, most=MOST_WIDTH)
    key_heads = fields.size("linear_num_key_heads", most=MOST_WIDTH) or heads
    key_dim = fields.size("linear_key_head_dim", most=MOST_WIDTH) or max(int(0.75 * hidden / key_heads), 1)
    return GatedDelta(
        key_heads=key_heads,
        key_dim=key_dim,
        value_heads=fields.size("linear_num_value_heads", most=MOST_WIDTH) or heads,
        value_dim=fields.size("linear_value_head_dim", most=MOST_WIDTH) or 2 * key_dim,
        width=fields.size(*WIDTH) or 4,
        negative=True if fields.flag("linear_allow_neg_eigval", default=True) else None,
        norm_epsilon=1e-5,
    )


def _kimi_delta(fields: ConfigFields, hidden: int) -> GatedDelta:
    """Moonshot's own configs have the sizes in `linear_attn_config`."""
    inner = fields.inner("linear_attn_config") or fields
    heads = _size(inner, ("linear_num_heads", "num_heads", "num_attention_heads"))
    width = _size(inner, ("linear_head_dim", "head_dim"))
    return GatedDelta(
        key_heads=heads,
        key_dim=width,
        value_heads=heads,
        value_dim=width,
        width=inner.size(*WIDTH) or 4,
        decay="channel",
        gate_rank=width,
    )


def _ling_delta(fields: ConfigFields, hidden: int) -> GatedDelta:
    """The gates of Ling are projected at once, and its heads are as wide as attention's before MLA renamed them."""
    heads = _size(fields, ("linear_num_heads", "num_attention_heads"))
    width = _size(fields, ("linear_head_dim", "head_dim"))
    return GatedDelta(
        key_heads=heads,
        key_dim=width,
        value_heads=heads,
        value_dim=width,
        width=fields.size(*WIDTH) or 4,
        decay="channel",
        most_decay=_most_decay(fields) if fields.flag("kda_safe_gate", default=True) else None,
    )


def _most_decay(fields: ConfigFields) -> float:
    """Return by how much the logarithm of a state falls with a token at most."""
    given = fields.section.fields.get("kda_lower_bound", -5.0)
    if isinstance(given, int | float) and given < 0:
        return -float(given)
    fields.section.report("kda_lower_bound", f"{shown(given)} is no number below 0", "write one, such as -5.0")
    return 5.0


def _lightning(fields: ConfigFields, hidden: int) -> Lightning:
    heads = _size(fields, HEADS)
    width = fields.size(*ATTENTION_HEAD_DIM, most=MOST_WIDTH) or max(hidden // heads, 1)
    return Lightning(heads=heads, head_dim=width, chunk=fields.size("block_size") or 256, norm_epsilon=1e-6)


def _convolution(fields: ConfigFields, hidden: int) -> ShortConvolution:
    return ShortConvolution(
        channels=hidden, width=fields.size("conv_L_cache") or 3, bias=fields.flag("conv_bias", default=False)
    )


def _recurrence(fields: ConfigFields, hidden: int) -> GatedRecurrence:
    return GatedRecurrence(
        channels=fields.size("lru_width", most=MOST_WIDTH) or hidden,
        blocks=_size(fields, HEADS),
        width=fields.size("conv1d_width") or 4,
    )


def _rwkv7(fields: ConfigFields, hidden: int) -> Rwkv7:
    """The field names of fla's configuration."""
    per_head = fields.size("head_dim", most=MOST_WIDTH) or 64
    return Rwkv7(
        heads=max(hidden // per_head, 1),
        head_dim=per_head,
        decay_rank=_size(fields, ("decay_low_rank_dim",)),
        rate_rank=_size(fields, ("a_low_rank_dim",)),
        gate_rank=_size(fields, ("gate_low_rank_dim",)),
        value_rank=_size(fields, ("v_low_rank_dim",)),
    )


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "mamba": _mamba,
        "falcon_mamba": _falcon_mamba,
        "jamba": _jamba,
        "mamba2": _mamba2,
        "nemotron": _nemotron,
        "gated_delta": _gated_delta,
        "olmo_delta": _olmo_delta,
        "kimi_delta": _kimi_delta,
        "ling_delta": _ling_delta,
        "lightning": _lightning,
        "short_convolution": _convolution,
        "recurrence": _recurrence,
        "rwkv7": _rwkv7,
        "zamba": _zamba,
        "zamba2": _zamba2,
    }
)


def fields_of(mixer: Mixer, hidden: int) -> dict[str, Any]:
    """Return the fields of a config that tell of a mixer, under the names of most families that have it."""
    if isinstance(mixer, Mamba):
        return {
            "mamba_d_state": mixer.state,
            "mamba_dt_rank": mixer.rank,
            "mamba_d_conv": mixer.width,
            "mamba_proj_bias": mixer.bias,
            "mamba_conv_bias": mixer.convolution_bias,
            "mamba_expand": mixer.inner // hidden,
            "mixer_rms_eps": mixer.norm_epsilon,
        }
    if isinstance(mixer, Lightning):
        return {"block_size": mixer.chunk}
    if isinstance(mixer, Mamba2):
        return {
            "mamba_n_heads": mixer.heads,
            "mamba_d_head": mixer.head_dim,
            "mamba_d_state": mixer.state,
            "mamba_n_groups": mixer.groups,
            "mamba_d_conv": mixer.width,
            "mamba_proj_bias": mixer.bias,
            "mamba_conv_bias": mixer.convolution_bias,
            "mamba_chunk_size": mixer.chunk,
            "mamba_expand": max(mixer.inner // hidden, 1),
        }
    if isinstance(mixer, GatedDelta) and mixer.decay == "channel":
        return {
            "linear_num_heads": mixer.key_heads,
            "linear_head_dim": mixer.key_dim,
            "linear_conv_kernel_dim": mixer.width,
            "short_conv_kernel_size": mixer.width,
            "kda_safe_gate": mixer.most_decay is not None,
            "kda_lower_bound": None if mixer.most_decay is None else -mixer.most_decay,
        }
    if isinstance(mixer, GatedDelta):
        return {
            "linear_num_key_heads": mixer.key_heads,
            "linear_key_head_dim": mixer.key_dim,
            "linear_num_value_heads": mixer.value_heads,
            "linear_value_head_dim": mixer.value_dim,
            "linear_conv_kernel_dim": mixer.width,
            "linear_allow_neg_eigval": bool(mixer.negative),
        }
    if isinstance(mixer, ShortConvolution):
        return {"conv_L_cache": mixer.width, "conv_bias": mixer.bias, "block_auto_adjust_ff_dim": False}
    return {}
