"""What mixes tokens in layers without attention, in plain PyTorch: a function a kind.

Between the projections into a mixer, of which every rank of a tensor-parallel group has its heads or channels, and the
one out of it stand a convolution over the last tokens, a scan over chunks of the sequence (`scans`), and a gated norm.
The backward pass computes scan and norm again, of what the projections gave, as fused kernels do (mamba_ssm:
`mamba_split_conv1d_scan_combined`, `mamba_inner_fn`); it runs in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.runtime.model.details import Details
from shardwright.runtime.model.gated import Weights, by_head
from shardwright.runtime.model.parallel import TensorGroup, enter, mean_over
from shardwright.runtime.model.parameters import mixer_shape
from shardwright.runtime.model.products import Products, entered, in_two_steps, left
from shardwright.runtime.model.scans import delta_scan, selective_scan, state_space_scan
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, Mixer, ShortConvolution

NORM_EPSILON = 1e-6  # of the lengths of queries and keys under the delta rule (fla: l2norm)


def mixed(
    x: torch.Tensor,
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
    scales: tuple[float, ...] | None = None,
) -> torch.Tensor:
    """Return what a mixer makes of `x` [micro_batch, positions, hidden]; this rank computes its part of the heads.
    What each projection gives is times its one of `scales`."""
    shape = mixer_shape(mixer)
    inputs = entered(x, weights, tuple(shape.rows), tensor, products)
    for part in shape.low:
        inputs += in_two_steps(x, weights, f"{part}_down", (f"{part}_up",), tensor, products)
    if scales is not None:
        inputs = tuple(part * scale for part, scale in zip(inputs, scales, strict=True))
    inner = MIXERS[type(mixer)](inputs, weights, mixer, details, tensor, products)
    out = left(inner, weights, "out", tensor, products)
    bias = weights.get("out.bias")
    return out if bias is None else out + bias


def _mamba(
    inputs: tuple[torch.Tensor, ...],
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
) -> torch.Tensor:
    """The selective state space: time steps, keys and queries are of few numbers that all channels give together."""
    assert isinstance(mixer, Mamba)
    value = _again(lambda part: _activated([part], weights, mixer)[0].contiguous(), inputs[0])
    if mixer.heads is not None:
        return _again(partial(_scan_by_head, weights, mixer), value, inputs[1])
    low = enter(left(value, weights, "low", tensor, products), tensor)

    def scan(value: torch.Tensor, gate: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        parts = torch.split(low, [mixer.rank, mixer.state, mixer.state], dim=-1)
        if mixer.normed or mixer.norm_epsilon:
            epsilon = mixer.norm_epsilon or details.norm_epsilon
            scales = [weights.get(f"{name}_norm.weight") for name in ("step", "key", "query")]
            parts = tuple(
                functional.rms_norm(part, part.shape[-1:], scale, epsilon)
                for part, scale in zip(parts, scales, strict=True)
            )
        step, key, query = parts
        length = functional.softplus(functional.linear(step, weights["step.weight"], weights["step.bias"]).float())
        decay, wide = -weights["decay.weight"].float().exp(), value.float()
        out = selective_scan(wide, length, decay, key.float(), query.float()) + weights["skip.weight"].float() * wide
        return (out * functional.silu(gate.float())).to(gate.dtype)

    return _again(scan, value, inputs[1], low)


def _scan_by_head(weights: Weights, mixer: Mamba, value: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return the same where each head has time steps, keys and queries of its own channels: heads are scanned side by
    side, as samples are."""
    batch, positions, channels = value.shape
    small, width = mixer.rank + 2 * mixer.state, mixer.inner // (mixer.heads or 1)
    heads = channels // width
    low = weights["low.weight"].view(heads, small, width)
    step_weight = weights["step.weight"].view(heads, width, mixer.rank)
    shift = weights["step.bias"].view(heads, 1, width)
    decay = -weights["decay.weight"].float().exp().view(heads, 1, width, mixer.state)
    part = value.reshape(-1, heads, width).transpose(0, 1)  # [heads, samples and positions, width]
    step, key, query = torch.split(torch.bmm(part, low.mT), [mixer.rank, mixer.state, mixer.state], dim=-1)
    length = functional.softplus(torch.baddbmm(shift, step, step_weight.mT).float())
    given = (item.float().reshape(heads * batch, positions, -1) for item in (part, length, key, query))
    wide, length, key, query = given
    out = selective_scan(wide, length, decay.repeat_interleave(batch, dim=0), key, query)
    out = out.view(heads, batch, positions, width).permute(1, 2, 0, 3).reshape(value.shape)
    out = out + weights["skip.weight"].float() * value.float()
    return (out * functional.silu(gate.float())).to(gate.dtype)


def _mamba2(
    inputs: tuple[torch.Tensor, ...],
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
) -> torch.Tensor:
    """The state-space dual (arXiv 2405.21060 §6): values are its x, keys its B, queries its C."""
    assert isinstance(mixer, Mamba2)
    gate, *others = inputs
    tables = [weights[name] for name in ("decay.weight", "step_shift.weight", "skip.weight")]

    def scan(*given: torch.Tensor) -> torch.Tensor:
        *projected, step = given
        value, key, query = _activated(projected, weights, mixer)
        decay, shift, skip = (table.float() for table in tables)
        length = functional.softplus(step.float() + shift)
        length = length.clamp(min=mixer.least_step) if mixer.least_step else length
        value, key, query = (
            by_head(part.float(), width)
            for part, width in ((value, mixer.head_dim), (key, mixer.state), (query, mixer.state))
        )
        out = state_space_scan(value * length[..., None], -decay.exp() * length, key, query, mixer.chunk)
        return (out + skip[:, None] * value).flatten(2).to(step.dtype)

    out = _again(scan, *others)
    if "norm.weight" not in weights:
        return _again(_gated, out, gate)
    width = mixer.inner // mixer.groups

    def normed(out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        grouped = by_head(out.float() * functional.silu(gate.float()), width)
        normal = functional.rms_norm(grouped, (width,), eps=mixer.norm_epsilon or details.norm_epsilon)
        scaled: torch.Tensor = weights["norm.weight"] * normal.flatten(2).to(gate.dtype)
        return scaled

    return _again(normed, out, gate)


def _gated(out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return out * functional.silu(gate)


def _gated_delta(
    inputs: tuple[torch.Tensor, ...],
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
) -> torch.Tensor:
    """The delta rule; under Kimi delta attention the gate is a sigmoid (arXiv 2510.26692 §4)."""
    assert isinstance(mixer, GatedDelta)
    shape, channels = mixer_shape(mixer), mixer.decay == "channel"
    parts = dict(zip((*shape.rows, *shape.low), inputs, strict=True))
    query, key, value, gate, rate, step = (
        parts[part] for part in ("query", "key", "value", "gate", "rate", "decay_step")
    )
    activation = torch.sigmoid if channels else functional.silu

    def scan(*given: torch.Tensor) -> torch.Tensor:
        *projected, rate, step = given
        query, key, value = _activated(projected, weights, mixer)
        query, key = (_unit(by_head(part.float(), mixer.key_dim)) for part in (query, key))
        value = by_head(value.float(), mixer.value_dim)
        shared = mixer.value_heads // mixer.key_heads
        query, key = (part.repeat_interleave(shared, dim=2) for part in (query, key))
        strength, length = weights["decay.weight"].float().exp(), step.float() + weights["step_shift.weight"].float()
        if channels:
            strength, length = strength[:, None], by_head(length, mixer.key_dim)
        if mixer.most_decay is None:
            decay = -strength * functional.softplus(length)
        else:
            decay = -mixer.most_decay * torch.sigmoid(strength * length)
        rates = rate.float().sigmoid() * (2.0 if mixer.negative else 1.0)
        out = delta_scan(query * mixer.key_dim**-0.5, key, value, decay, rates)
        return out.flatten(2).to(gate.dtype)

    def normed(out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        heads = by_head(out.float(), mixer.value_dim)
        epsilon = mixer.norm_epsilon or details.norm_epsilon
        normal = weights["norm.weight"] * functional.rms_norm(heads, (mixer.value_dim,), eps=epsilon).to(gate.dtype)
        return (normal.flatten(2) * activation(gate.float())).to(gate.dtype)

    return _again(normed, _again(scan, query, key, value, rate, step), gate)


def _lightning(
    inputs: tuple[torch.Tensor, ...],
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
) -> torch.Tensor:
    """Linear attention with a decay for each head; the norm is over the heads of all ranks."""
    assert isinstance(mixer, Lightning)
    *projected, gate = inputs

    def scan(*given: torch.Tensor) -> torch.Tensor:
        query, key, value = (by_head(functional.silu(part).float(), mixer.head_dim) for part in given)
        decay = weights["decay"].expand(value.shape[:3])
        return state_space_scan(value, decay, key, query, mixer.chunk).flatten(2).to(gate.dtype)

    def square(out: torch.Tensor) -> torch.Tensor:
        return out.float().square().mean(dim=-1, keepdim=True)

    def gated(out: torch.Tensor, gate: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return weights["norm.weight"] * (out.float() * scale).to(gate.dtype) * torch.sigmoid(gate)

    out = _again(scan, *projected)
    epsilon = mixer.norm_epsilon or details.norm_epsilon
    scale = torch.rsqrt(mean_over(_again(square, out), tensor) + epsilon)
    return _again(gated, out, gate, scale)


def decays_of(mixer: Lightning, layer: int, layers: int, tensor: TensorGroup, device: torch.device) -> torch.Tensor:
    """Return by what the state of each of this rank's heads decays with a token, as a logarithm [heads]: as slopes of
    ALiBi, smaller the later the layer (arXiv 2401.04658 §2; MiniMaxLightningAttention of transformers 5.24)."""
    heads = mixer.heads // tensor.size
    number = torch.arange(tensor.rank * heads, (tensor.rank + 1) * heads, device=device) + 1
    return -(2.0 ** (-8.0 / mixer.heads * number)) * (1.0 - layer / (layers - 1 + 1e-5) + 1e-5)


def _short_convolution(
    inputs: tuple[torch.Tensor, ...],
    weights: Weights,
    mixer: Mixer,
    details: Details,
    tensor: TensorGroup,
    products: Products,
) -> torch.Tensor:
    def between(before: torch.Tensor, after: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return after * _convolved(before * value, weights, "value")

    return _again(between, *inputs)


# The mixers that `shardwright train` runs.
MIXERS: Mapping[type[Mixer], Callable[..., torch.Tensor]] = {
    Mamba: _mamba,
    Mamba2: _mamba2,
    GatedDelta: _gated_delta,
    Lightning: _lightning,
    ShortConvolution: _short_convolution,
}


def _activated(projected: Sequence[torch.Tensor], weights: Weights, mixer: Mixer) -> tuple[torch.Tensor, ...]:
    """Return what the projections give after their convolutions."""
    pairs = zip(projected, mixer_shape(mixer).convolved, strict=True)
    return tuple(functional.silu(_convolved(part, weights, name)) for part, name in pairs)


def _convolved(x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
    """Return a causal convolution of each channel of `x` [micro_batch, positions, channels]."""
    taps = weights[f"{name}_taps.weight"]
    padded = functional.pad(x.transpose(1, 2), (taps.shape[-1] - 1, 0))
    return functional.conv1d(padded, taps, weights.get(f"{name}_taps.bias"), groups=x.shape[-1]).transpose(1, 2)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _again(compute: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Return what is computed of the inputs, which alone are kept: the backward pass computes it again."""
    out: Any = checkpoint(compute, *inputs, use_reentrant=False, preserve_rng_state=False)
    assert isinstance(out, torch.Tensor)
    return out
