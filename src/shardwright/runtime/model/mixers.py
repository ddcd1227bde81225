"""What mixes tokens in layers without attention, in plain PyTorch: Mamba-2, the gated delta net, short convolutions.

Between the projections into a mixer, of which every rank of a tensor-parallel group has its heads or channels, and the
one out of it stand a convolution over the last tokens, a scan over chunks of the sequence, and a gated norm. The
backward pass computes scan and norm again, of what the projections gave, as fused kernels do (mamba_ssm:
`mamba_split_conv1d_scan_combined`); it runs in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shardwright.runtime.model.details import Details
from shardwright.runtime.model.gated import Weights, by_head
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import convolved_of, rows_of
from shardwright.runtime.model.products import Products, entered, left
from shardwright.spec.mixers import DELTA_CHUNK, GatedDelta, Mamba2, Mixer, ShortConvolution

NORM_EPSILON = 1e-6  # of the lengths of queries and keys under the delta rule (fla: l2norm)


def mixed(
    x: torch.Tensor, weights: Weights, mixer: Mixer, details: Details, tensor: TensorGroup, products: Products
) -> torch.Tensor:
    """Return what a mixer makes of `x` [micro_batch, positions, hidden]; this rank computes its part of the heads."""
    inputs = entered(x, weights, tuple(rows_of(mixer)), tensor, products)
    out = left(MIXERS[type(mixer)](inputs, weights, mixer, details), weights, "out", tensor, products)
    bias = weights.get("out.bias")
    return out if bias is None else out + bias


def _mamba2(inputs: tuple[torch.Tensor, ...], weights: Weights, mixer: Mixer, details: Details) -> torch.Tensor:
    """The state-space dual (arXiv 2405.21060 §6): values are its x, keys its B, queries its C."""
    assert isinstance(mixer, Mamba2)
    gate, *others = inputs
    tables = [weights[name] for name in ("decay.weight", "step_shift.weight", "skip.weight")]

    def scan(*given: torch.Tensor) -> torch.Tensor:
        *projected, step = given
        value, key, query = _activated(projected, weights, mixer)
        decay, shift, skip = (table.float() for table in tables)
        length = functional.softplus(step.float() + shift).clamp(min=mixer.least_step)
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
        normal = functional.rms_norm(grouped, (width,), eps=details.norm_epsilon)
        scaled: torch.Tensor = weights["norm.weight"] * normal.flatten(2).to(gate.dtype)
        return scaled

    return _again(normed, out, gate)


def _gated(out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return out * functional.silu(gate)


def _gated_delta(inputs: tuple[torch.Tensor, ...], weights: Weights, mixer: Mixer, details: Details) -> torch.Tensor:
    assert isinstance(mixer, GatedDelta)
    query, key, value, gate, rate, step = inputs

    def scan(*given: torch.Tensor) -> torch.Tensor:
        *projected, rate, step = given
        query, key, value = _activated(projected, weights, mixer)
        query, key = (_unit(by_head(part.float(), mixer.key_dim)) for part in (query, key))
        value = by_head(value.float(), mixer.value_dim)
        shared = mixer.value_heads // mixer.key_heads
        query, key = (part.repeat_interleave(shared, dim=2) for part in (query, key))
        decay = -weights["decay.weight"].float().exp() * functional.softplus(
            step.float() + weights["step_shift.weight"].float()
        )
        rates = rate.float().sigmoid() * (2.0 if mixer.negative else 1.0)
        out = delta_scan(query * mixer.key_dim**-0.5, key, value, decay, rates)
        return out.flatten(2).to(gate.dtype)

    def normed(out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        heads = by_head(out.float(), mixer.value_dim)
        epsilon = mixer.norm_epsilon or details.norm_epsilon
        normal = weights["norm.weight"] * functional.rms_norm(heads, (mixer.value_dim,), eps=epsilon).to(gate.dtype)
        return (normal.flatten(2) * functional.silu(gate.float())).to(gate.dtype)

    return _again(normed, _again(scan, query, key, value, rate, step), gate)


def _short_convolution(
    inputs: tuple[torch.Tensor, ...], weights: Weights, mixer: Mixer, details: Details
) -> torch.Tensor:
    def between(before: torch.Tensor, after: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return after * _convolved(before * value, weights, "value")

    return _again(between, *inputs)


MIXERS: Mapping[type[Mixer], Callable[..., torch.Tensor]] = {
    Mamba2: _mamba2,
    GatedDelta: _gated_delta,
    ShortConvolution: _short_convolution,
}
"""The mixers that `shardwright train` runs."""


def state_space_scan(
    value: torch.Tensor, decay: torch.Tensor, key: torch.Tensor, query: torch.Tensor, chunk: int
) -> torch.Tensor:
    """Return the outputs [batch, positions, heads, width] of a linear recurrence: with the state S = exp(decay) S' +
    key value^T of each head, query^T S. `decay` [batch, positions, heads] is at most 0; keys and queries [batch,
    positions, groups, state] are shared by the heads of a group."""
    batch, positions, heads, width = value.shape
    groups, chunk = key.shape[2], min(chunk, positions)
    padding = -positions % chunk
    value, decay, key, query = (
        _in_chunks(functional.pad(part, (0, 0) * (part.dim() - 2) + (0, padding)), 1, chunk)
        for part in (value, decay, key, query)
    )
    value = value.reshape(*value.shape[:3], groups, -1, width)
    passed = decay.cumsum(2).reshape(*decay.shape[:3], groups, -1)  # [batch, chunks, chunk, groups, heads of a group]
    between = passed[:, :, :, None] - passed[:, :, None]  # [batch, chunks, chunk of queries, chunk of keys, …]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=value.device).triu(1)
    weight = between.masked_fill(later[:, :, None, None], -torch.inf).exp()
    scores = torch.einsum("bcqgn,bckgn->bcqkg", query, key)[..., None] * weight
    out = torch.einsum("bcqkgh,bckghp->bcqghp", scores, value)
    left_over = (passed[:, :, -1:] - passed).exp()
    states = torch.einsum("bckgn,bckgh,bckghp->bcghnp", key, left_over, value)
    through = passed[:, :, -1].exp()[..., None, None]
    state, before = torch.zeros_like(states[:, 0]), []
    for number in range(states.shape[1]):
        before.append(state)
        state = through[:, number] * state + states[:, number]
    read = torch.einsum("bcqgn,bcghnp->bcqghp", query, torch.stack(before, dim=1))
    out = out + read * passed.exp()[..., None]
    return out.reshape(batch, -1, heads, width)[:, :positions]


def delta_scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor, rate: torch.Tensor
) -> torch.Tensor:
    """Return the outputs [batch, positions, heads, value width] of the gated delta rule (arXiv 2412.06464 §3): the
    state S = exp(decay) S' of each head is corrected by rate key (value - S^T key)^T, and read by the query.

    Within a chunk the corrections solve a triangular system (arXiv 2406.06484 §3); the state goes from chunk to chunk.
    """
    positions, chunk = query.shape[1], min(DELTA_CHUNK, query.shape[1])
    padding = -positions % chunk
    query, key, value, decay, rate = (  # [batch, heads, chunks, chunk, …]
        _in_chunks(functional.pad(part, (0, 0) * (part.dim() - 2) + (0, padding)).transpose(1, 2), 2, chunk)
        for part in (query, key, value, decay, rate)
    )
    passed = decay.cumsum(3)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
    between = (passed[..., :, None] - passed[..., None, :]).masked_fill(later, -torch.inf).exp()
    rated = key * rate[..., None]
    system = (rated @ key.transpose(-1, -2)) * between
    scores = (query @ key.transpose(-1, -2)) * between
    corrected, predicted = (
        torch.linalg.solve_triangular(system, side, upper=False, unitriangular=True)
        for side in (value * rate[..., None], rated * passed.exp()[..., None])
    )
    reading, writing = query * passed.exp()[..., None], key * (passed[..., -1:] - passed).exp()[..., None]
    through = passed[..., -1].exp()[..., None, None]
    state, outputs = value.new_zeros((*query.shape[:2], query.shape[-1], value.shape[-1])), []
    for number in range(query.shape[2]):
        change = corrected[:, :, number] - predicted[:, :, number] @ state
        outputs.append(reading[:, :, number] @ state + scores[:, :, number] @ change)
        state = through[:, :, number] * state + writing[:, :, number].transpose(-1, -2) @ change
    return torch.cat(outputs, dim=2).transpose(1, 2)[:, :positions]


def _in_chunks(x: torch.Tensor, dim: int, chunk: int) -> torch.Tensor:
    """Return `x` with a dimension of positions as one of chunks and one within them."""
    return x.reshape(*x.shape[:dim], -1, chunk, *x.shape[dim + 1 :])


def _activated(projected: Sequence[torch.Tensor], weights: Weights, mixer: Mixer) -> tuple[torch.Tensor, ...]:
    """Return what the projections give after their convolutions."""
    pairs = zip(projected, convolved_of(mixer), strict=True)
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
