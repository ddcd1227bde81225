"""`ForwardPass`: what the layers of a family compute that no size tells and no cost depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Placement = Literal["before", "after", "both", "sum"]
QueryKeyNorm = Literal["head", "projection", "each"]
Scores = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """The forward pass of a model beside its sizes. What has its default is as in Llama.

    * Norms stand `before` attention and feed-forward block, `after` them (OLMo 2), on `both` sides (Gemma 2), or on the
      `sum` with the residual (BERT).
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
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
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


PLAIN = ForwardPass()
