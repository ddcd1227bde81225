"""Scores of attention: their scale, and what is added to them and takes part in their softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch

from shardwright.spec.model import Attention, Model, RotaryScaling


class Scoring(NamedTuple):
    """How a query scores keys: times `scale` (None: 1 / sqrt(head_dim)), capped by c tanh(x / c), with `slopes` [heads]
    times the position of the key added (ALiBi, arXiv 2108.12409). `sinks` [heads] are scores of nothing."""

    causal: bool = True
    scale: float | None = None
    cap: float | None = None
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        return self.cap is None and self.slopes is None and self.sinks is None


PLAIN = Scoring()


def scoring_of(
    model: Model,
    attention: Attention,
    scaling: RotaryScaling,
    heads: int,
    rank: int,
    sinks: torch.Tensor | None,
    device: torch.device,
) -> Scoring:
    """Return how the `heads` of a rank of a tensor-parallel group score."""
    slopes = None
    if model.position == "alibi":
        slopes = alibi_slopes(attention.heads, device)[rank * heads : (rank + 1) * heads]
    computed = model.computed
    scale = computed.score_scale
    if attention.latent is not None and scale is None:
        scale = latent_scale(attention, scaling)
    return Scoring(attention.causal, scale, computed.score_cap, slopes, sinks)


def latent_scale(attention: Attention, scaling: RotaryScaling) -> float | None:
    """Return the scale of scores of latent attention under YaRN, which multiplies them where it multiplies the rotation
    of others."""
    if scaling.kind == "default" or not scaling.mscale_all:
        return None
    return float(attention.head_dim**-0.5 * scaling.magnitude(scaling.mscale_all) ** 2)


def alibi_slopes(heads: int, device: torch.device) -> torch.Tensor:
    """Return the slope of each head: 2^(-8 i / n) for the n heads up to a power of two, and for further ones those that
    lie between (arXiv 2108.12409 §3; transformers 5.23, BLOOM)."""
    power = 1 << (heads.bit_length() - 1)
    first = torch.arange(1, power + 1, device=device, dtype=torch.float32) * (-8.0 / power)
    between = (2.0 * torch.arange(heads - power, device=device, dtype=torch.float32) + 1.0) * (-4.0 / power)
    return torch.cat([first, between]).exp2()
