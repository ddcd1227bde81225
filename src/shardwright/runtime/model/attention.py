"""Attention: by a fused kernel, or to a part of the positions and with scores of another kind: to the last positions,
or to those of the same document, scaled, capped, with what is added to scores and takes part in their softmax. On GPUs
by FlexAttention (arXiv 2412.05496), whose kernels skip what a mask leaves out. Elsewhere a mask does.

FlexAttention is imported where it is used: with it comes the tracer of torch.compile, which takes two seconds.

Positions are rotary (arXiv 2104.09864) in the convention of Hugging Face: the halves of a head are the two parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.nn import functional

from shardwright.records import record
from shardwright.spec.forward_pass import FAST_TURNS, SLOW_TURNS, RotaryScaling
from shardwright.spec.layer import Attention
from shardwright.spec.model import Model

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


KEPT_MASKS = 64  # as many shapes of attention as a model may have


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


@record(eq=False)
class Documents:
    """The document of each position of a micro-batch, `numbers` [micro_batch, sequence], and the block masks that all
    its layers share."""

    numbers: torch.Tensor
    masks: dict[tuple[int, int, int], BlockMask] = field(default_factory=dict)


def documents_of(tokens: torch.Tensor, end: int | None) -> Documents | None:
    """Return the documents in tokens [micro_batch, sequence], each up to and with its token `end`; None without one."""
    if end is None:
        return None
    ends = tokens == end
    return Documents(numbers=ends.cumsum(1) - ends.long())


def attention_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    documents: Documents | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Return attention [micro_batch, heads, queries, width]; the queries are of the last positions of the keys."""
    queries, keys = query.shape[2], key.shape[2]
    if not scoring.plain or documents is not None or (window is not None and window < keys):
        return masked_attention(query, key, value, window, documents, scoring=scoring)
    mask: Any = _lower_right(queries, keys) if queries < keys and scoring.causal else None
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=scoring.causal and mask is None, scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


def _lower_right(queries: int, keys: int) -> Any:
    from torch.nn.attention.bias import causal_lower_right  # two seconds, which most models are spared

    return causal_lower_right(queries, keys)


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    documents: Documents | None,
    kernel: Callable[..., Any] | None = None,
    *,
    scoring: Scoring = PLAIN,
) -> torch.Tensor:
    """Return attention of queries, which are of the last positions of the keys, to the last `window` positions, of
    their own documents. Keys are the first positions of these. `kernel` is FlexAttention compiled, or as it is; None:
    the device decides."""
    grouped = query.shape[1] != key.shape[1]
    queries, keys, device = query.shape[2], key.shape[2], query.device
    reach = keys if window is None else window
    if kernel is None and device.type == "cpu":
        mask = _seen(queries, keys, reach, documents, device, causal=scoring.causal)
        if not scoring.plain:
            return _scored(query, key, value, mask, scoring)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scoring.scale, enable_gqa=grouped
        )
    if documents is None:
        blocks = _blocks(queries, keys, reach, str(device), causal=scoring.causal)
    else:
        known = documents.masks
        blocks = known.get((queries, keys, reach)) or _document_blocks(
            queries, keys, reach, documents, causal=scoring.causal
        )
        known[queries, keys, reach] = blocks
    score = None if scoring.cap is None and scoring.slopes is None else _score(scoring)
    run = kernel or _compiled()
    settings = {"score_mod": score, "block_mask": blocks, "scale": scoring.scale, "enable_gqa": grouped}
    if scoring.sinks is None:
        return cast("torch.Tensor", run(query, key, value, **settings))
    from torch.nn.attention.flex_attention import AuxRequest

    out, beside = run(query, key, value, return_aux=AuxRequest(lse=True), **settings)
    share = torch.sigmoid(beside.lse - scoring.sinks[:, None])  # of what is no sink in the softmax
    return cast("torch.Tensor", out * share.to(out.dtype)[..., None])


def _score(scoring: Scoring) -> Callable[..., Any]:
    cap, slopes = scoring.cap, scoring.slopes

    def changed(score: Any, _batch: Any, head: Any, _query: Any, key: Any) -> Any:
        score = score if cap is None else cap * torch.tanh(score / cap)
        return score if slopes is None else score + slopes[head] * key

    return changed


def _scored(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scoring: Scoring
) -> torch.Tensor:
    """Return attention with every score in memory."""
    copies = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(copies, dim=1) if copies > 1 else part for part in (key, value))
    scale = query.shape[-1] ** -0.5 if scoring.scale is None else scoring.scale
    scores = (query @ key.transpose(-2, -1)).float() * scale
    if scoring.cap is not None:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    if scoring.slopes is not None:
        scores = scores + scoring.slopes[:, None, None] * torch.arange(key.shape[2], device=key.device)
    scores = scores.masked_fill(~mask, -torch.inf)
    if scoring.sinks is not None:
        sinks = scoring.sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    shares = scores.softmax(dim=-1)[..., : key.shape[2]]
    return shares.to(value.dtype) @ value


def _seen(
    queries: int, keys: int, reach: int, documents: Documents | None, device: torch.device, *, causal: bool
) -> torch.Tensor:
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    near = (distance >= 0) & (distance < reach) if causal else distance.abs() < reach
    if documents is None:
        return near
    numbers = documents.numbers[:, :keys]
    return near & (numbers[:, None, keys - queries :, None] == numbers[:, None, None, :])


@lru_cache(maxsize=KEPT_MASKS)
def _blocks(queries: int, keys: int, reach: int, device: str, *, causal: bool) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        distance = query + (keys - queries) - key
        return (distance > (-1 if causal else -reach)) & (distance < reach)

    return create_block_mask(seen, None, None, queries, keys, device=device)


def _document_blocks(queries: int, keys: int, reach: int, documents: Documents, *, causal: bool) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    numbers = documents.numbers

    def seen(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        place = query + (keys - queries)
        near = (place - key > (-1 if causal else -reach)) & (place - key < reach)
        return near & (numbers[batch, place] == numbers[batch, key])

    return create_block_mask(seen, len(numbers), None, queries, keys, device=str(numbers.device))


@cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return kernel


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
