"""Rotary positions (arXiv 2104.09864) in the convention of Hugging Face: the halves of a head are the two parts."""

from __future__ import annotations

import math

import torch

from shardwright.spec.model import RotaryScaling


def rotary_table(
    positions: torch.Tensor, width: int, base: float, scaling: RotaryScaling, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [positions, width] for `width` rotated dimensions of a head, computed in fp32."""
    frequencies = base ** -(torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width)
    angles = torch.outer(positions.float(), _scaled(frequencies, scaling))
    both = torch.cat([angles, angles], dim=1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotated(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return `x` [batch, heads, length, head_dim], the first dimensions of every head rotated by position. The table
    is of its type, so that all layers keep the same one."""
    cosines, sines = table
    width = cosines.shape[1]
    turned, rest = x[..., :width], x[..., width:]
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cosines + torch.cat([-high, low], dim=-1) * sines
    return turned if not rest.shape[-1] else torch.cat([turned, rest], dim=-1)


def _scaled(frequencies: torch.Tensor, scaling: RotaryScaling) -> torch.Tensor:
    if scaling.kind == "default":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    waves = 2.0 * math.pi / frequencies
    turns = scaling.original_positions / waves
    share = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    share = share.clamp(0.0, 1.0)
    return (1.0 - share) * frequencies / scaling.factor + share * frequencies
