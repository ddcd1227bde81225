"""`ForwardPass`: what a model computes that no size tells, with how its rotary positions are stretched."""

from __future__ import annotations

import math
from typing import Literal

from shardwright.records import record
from shardwright.spec.layer import Layer

Placement = Literal["before", "after", "both", "sum", "stream"]
QueryKeyNorm = Literal["head", "projection", "each"]
Scores = Literal["softmax", "sigmoid"]

FAST_TURNS, SLOW_TURNS = 32.0, 1.0  # YaRN's, where a config says none (arXiv 2309.00071 §3.2)


@record
class RotaryScaling:
    """How the frequencies of rotary positions are stretched: by `factor` (linear), or as in Llama 3.1: long waves by
    `factor`, short ones not, those between smoothly. Source: huggingface/transformers@v5.23:modeling_rope_utils.py.

    yarn (arXiv 2309.00071) stretches what turns less than `slow_turns` times in the original positions, and not what
    turns more than `fast_turns` times; longrope (arXiv 2402.13753) every frequency by its own factor, the long ones
    where sequences are longer than the original. Both multiply the rotation by `attention_factor`, or by one that
    follows from the others. Further kinds are named alone."""

    kind: str = "default"
    factor: float = 1.0
    low_factor: float = 1.0
    high_factor: float = 4.0
    original_positions: int = 8192
    fast_turns: float | None = None
    slow_turns: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all: float | None = None
    whole_bounds: bool | None = None
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None

    @property
    def rotation_factor(self) -> float:
        """By what the rotation is multiplied."""
        if self.attention_factor is not None or self.kind not in ("yarn", "longrope"):
            return self.attention_factor or 1.0
        if self.kind == "longrope":
            return math.sqrt(1.0 + math.log(max(self.factor, 1.0)) / math.log(self.original_positions))
        if self.mscale and self.mscale_all:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all)
        return self.magnitude(1.0)

    def magnitude(self, mscale: float) -> float:
        """Return by what YaRN multiplies queries and keys together (arXiv 2309.00071 §3.4)."""
        return 1.0 if self.factor <= 1.0 else 0.1 * mscale * math.log(self.factor) + 1.0


@record
class ForwardPass:
    """The forward pass of a model beside its sizes. What has its default is as in Llama.

    * Norms stand `before` attention and feed-forward block, `after` them (OLMo 2), on `both` sides (Gemma 2), or on the
      `sum` with the residual (BERT), or on the residual `stream` itself, before each block (MiniMax); those of layers
      with a mixer may stand elsewhere (`mixer_norms`, OLMo Hybrid).
    * What is left of the residual and what is added to it may be times numbers of their own (`stream_scales`): after
      attention, after another mixer, after a feed-forward block (MiniMax).
    * Where attention and another mixer stand side by side, what each reads and gives is times its own `branch_scales`;
      `mixer_scales` are those of the mixer's projections, `key_scale` that of keys, `gate_scale` that of a feed-forward
      block's gate (Falcon-H1, arXiv 2507.22448 §3.2.3).
    * The embedding, what a block adds to the residual, and logits are times their scale; logits and scores of attention
      are capped by c tanh(x / c) (Gemma 2, arXiv 2408.00118 §2). `score_scale` stands in place of 1 / sqrt(head_dim).
    * Queries, keys and values are clipped to plus or minus `qkv_clip`. Norms of queries and keys have weights for a
      `head` that all share, for the whole `projection`, or for `each` head; they stand after the rotation where
      `norm_after_rotation` is set.
    * Layers in `unrotated` (from 0) have no rotary positions; those with a window have the base `window_rotary_base`.
    * Even and odd dimensions are the two parts of the rotation in latent attention where `latent_interleaved` is set.
    * With `sinks` a learned score of each head takes part in the softmax, and has no value (gpt-oss).
    * Experts with biases: `expert_bias`. Their gate is clamped to `gate_limit` and multiplied by the sigmoid of
      `gate_slope` times itself, and one is added to what it gates (gpt-oss).
    * The router scores experts by softmax or sigmoid. Its bias is learned, or (False) balances: then it takes part in
      the choice alone, and groups of experts are chosen by the sum of their two best (DeepSeek-V3, arXiv 2412.19437
      §2.1.2).
    * BERT: rows of its table of `token_types`, a dense layer before the output projection, `head_transform`, and the
      number of the token that stands for masked ones, `mask_token`.
    * `unknown` says in words what a config tells of the forward pass that is none of these.
    """

    norms: Placement = "before"
    mixer_norms: Placement | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    stream_scales: tuple[tuple[float, float], ...] | None = None
    branch_scales: tuple[tuple[float, float], tuple[float, float]] | None = None
    mixer_scales: tuple[float, ...] | None = None
    key_scale: float | None = None
    gate_scale: float | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    score_scale: float | None = None
    score_cap: float | None = None
    qkv_clip: float | None = None
    query_key_norm: QueryKeyNorm = "head"
    norm_after_rotation: bool = False
    unrotated: tuple[int, ...] = ()
    window_rotary_base: float | None = None
    latent_interleaved: bool = False
    sinks: bool = False
    expert_bias: bool = False
    gate_limit: float | None = None
    gate_slope: float | None = None
    router_scores: Scores = "softmax"
    router_bias_learned: bool = False
    token_types: int | None = None
    head_transform: bool = False
    mask_token: int | None = None
    unknown: tuple[str, ...] = ()

    def placement(self, layer: Layer) -> Placement:
        """Return where the norms of a layer stand."""
        return self.mixer_norms or self.norms if layer.mixer else self.norms

    def residual_scales(self, layer: Layer, *, feeds: bool) -> tuple[float, float]:
        """Return by what the residual and what a layer's mixer or feed-forward block adds to it are multiplied."""
        if self.stream_scales is None:
            return 1.0, self.residual_scale
        return self.stream_scales[2 if feeds else int(layer.mixer is not None)]


PLAIN = ForwardPass()
