"""Rotary positions (arXiv 2104.09864) in the convention of Hugging Face: the halves of a head are the two parts."""

from __future__ import annotations

import math

import torch

from shardwright.records import record
from shardwright.spec.forward_pass import FAST_TURNS, SLOW_TURNS, RotaryScaling
from shardwright.spec.model import Model

UNSCALED = RotaryScaling()
Table = tuple[torch.Tensor, torch.Tensor] | None


@record
class Rotations:
    """The rotation of positions in layers of full attention and in those with a window; None in a model without."""

    full: Table = None
    windowed: Table = None

    def of_layer(self, model: Model, layer: int) -> Table:
        """Return the rotation of a layer, counted from 0; None where it has none."""
        if layer in model.computed.unrotated:
            return None
        return self.full if model.layers[layer].window is None else self.windowed


def rotations(
    model: Model, scaling: RotaryScaling, positions: torch.Tensor, length: int, dtype: torch.dtype
) -> Rotations:
    """Return the rotations of a model at `positions` of sequences of `length` tokens. Heads of all layers have one
    size; of latent attention a part of each is rotated."""
    attention = model.attention
    if model.position != "rope" or attention is None:
        return Rotations()
    width = attention.latent.rope_head_dim if attention.latent else int(attention.head_dim * model.rotary_fraction)
    full = rotary_table(positions, width, model.rotary_base, scaling, dtype, length)
    base = model.computed.window_rotary_base
    windowed = full if base is None else rotary_table(positions, width, base, UNSCALED, dtype, length)
    return Rotations(full=full, windowed=windowed)


def rotary_table(
    positions: torch.Tensor, width: int, base: float, scaling: RotaryScaling, dtype: torch.dtype, length: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [positions, width] for `width` rotated dimensions of a head, computed in fp32."""
    frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width)
    angles = torch.outer(positions.float(), _scaled(frequencies, width, base, scaling, length))
    both, factor = torch.cat([angles, angles], dim=1), scaling.rotation_factor
    return (both.cos() * factor).to(dtype), (both.sin() * factor).to(dtype)


def rotated(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor], *, interleaved: bool = False) -> torch.Tensor:
    """Return `x` [batch, heads, length, head_dim], the first dimensions of every head rotated by position. The table
    is of its type, so that all layers keep the same one. Where even and odd dimensions are the two parts, what comes
    out has them as halves: products of queries and keys are the same."""
    cosines, sines = table
    width = cosines.shape[1]
    turned, rest = x[..., :width], x[..., width:]
    low, high = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    turned = torch.cat([low, high], dim=-1) if interleaved else turned
    turned = turned * cosines + torch.cat([-high, low], dim=-1) * sines
    return turned if not rest.shape[-1] else torch.cat([turned, rest], dim=-1)


def _scaled(frequencies: torch.Tensor, width: int, base: float, scaling: RotaryScaling, length: int) -> torch.Tensor:
    if scaling.kind == "default":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "longrope":
        factors = scaling.long_factors if length > scaling.original_positions else scaling.short_factors
        assert factors is not None, "a plan without factors is refused"
        return frequencies / torch.tensor(factors, device=frequencies.device)
    if scaling.kind == "yarn":
        share = _unstretched(width, base, scaling).to(frequencies.device)
    else:
        turns = scaling.original_positions * frequencies / (2.0 * math.pi)
        share = ((turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)).clamp(0.0, 1.0)
    return (1.0 - share) * frequencies / scaling.factor + share * frequencies


def _unstretched(width: int, base: float, scaling: RotaryScaling) -> torch.Tensor:
    """Return how much of each frequency YaRN leaves as it is: a ramp between the dimensions that turn `fast_turns` and
    `slow_turns` times in the original positions (arXiv 2309.00071 §3.2)."""

    def dimension(turns: float) -> float:
        return width * math.log(scaling.original_positions / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    low, high = dimension(scaling.fast_turns or FAST_TURNS), dimension(scaling.slow_turns or SLOW_TURNS)
    if scaling.whole_bounds is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(width // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    return 1.0 - ramp.clamp(0.0, 1.0)
