"""`Layer`: one block of a model, its attention and its feed-forward block, dense or of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shardwright.records import record
from shardwright.spec.mixers import Mixer, Product
from shardwright.spec.streams import Streams

Norm = Literal["rmsnorm", "layernorm"]
NormForm = Literal["single", "centred"]
Position = Literal["rope", "learned", "alibi", "relative", "none"]


@record
class LatentAttention:
    """The low-rank projections of multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434 §2.1).

    `query_rank` is None where queries are projected directly. A query or key head has `nope_head_dim` dimensions
    without and `rope_head_dim` with rotary position; the rotary part of the key is shared by all heads.
    """

    query_rank: int | None
    kv_rank: int
    nope_head_dim: int
    rope_head_dim: int


@record
class SparseAttention:
    """Attention over the `top_k` keys that an indexer picks for each query (DeepSeek-V3.2, arXiv 2512.02556 §2.1): its
    `heads` of `head_dim` score every key. A layer with no heads takes what the indexer of a layer before it picked."""

    top_k: int
    heads: int
    head_dim: int

    def parameters(self, hidden: int, query_rank: int) -> int:
        """Return the weights of the indexer: queries of the compressed ones, one key with its LayerNorm, a weight for
        each head."""
        if not self.heads:
            return 0
        return self.matrix_weights(hidden, query_rank) + 2 * self.head_dim

    def matrix_weights(self, hidden: int, query_rank: int) -> int:
        """Return the elements of the indexer's matrices."""
        per_head = query_rank * self.head_dim + hidden
        return self.heads * per_head + (hidden * self.head_dim if self.heads else 0)


@record
class Attention:
    """Attention of one layer. With `latent` set, `head_dim` is `nope_head_dim + rope_head_dim`. A `gate` of the input
    multiplies the result, `element` by element or `head` by head. Where keys are `reused`, their projection gives the
    `values`, too; or keys and values are `both` those of an earlier layer (Gemma 4). With `value_norm` values have a
    norm without weights. Where it is `doubled`, it reads twice the hidden width: the embedding beside the hidden state
    (Zamba)."""

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    causal: bool = True
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    latent: LatentAttention | None = None
    gate: Literal["element", "head"] | None = None
    sparse: SparseAttention | None = None
    reused: Literal["values", "both"] | None = None
    value_norm: bool | None = None
    doubled: bool | None = None

    def inputs(self, hidden: int) -> int:
        """Return the width of what the projections read."""
        return 2 * hidden if self.doubled else hidden

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        return self.kv_heads * self.value_head_dim

    @property
    def projected_widths(self) -> tuple[int, ...]:
        """Outputs of the projections of queries, keys and values, of those that there are; not with `latent`."""
        widths = (self.query_width, self.key_width, self.value_width)
        return widths[: {"values": 2, "both": 1}.get(self.reused or "", 3)]

    @property
    def out_width(self) -> int:
        """Width of the concatenated heads that enter the output projection."""
        return self.heads * self.value_head_dim

    @property
    def gate_width(self) -> int:
        """Outputs of the gate's projection, 0 without one."""
        return {"element": self.out_width, "head": self.heads}.get(self.gate or "", 0)

    def parameters(self, hidden: int) -> int:
        """Return the weights and biases of the projections (norms inside attention included)."""
        if self.latent is None:
            qkv = sum(self.projected_widths)
            count = self.inputs(hidden) * qkv + (qkv if self.qkv_bias else 0)
            count += (1 if self.reused == "both" else 2) * self.head_dim if self.qk_norm else 0
        else:
            mla = self.latent
            if mla.query_rank is None:
                count = hidden * self.query_width
            else:
                count = mla.query_rank * (hidden + self.query_width + 1)
            count += hidden * (mla.kv_rank + mla.rope_head_dim) + mla.kv_rank
            count += mla.kv_rank * self.heads * (mla.nope_head_dim + self.value_head_dim)
            count += self.sparse.parameters(hidden, mla.query_rank or hidden) if self.sparse else 0
        count += hidden * self.gate_width + (self.gate_width if self.qkv_bias and self.gate == "element" else 0)
        return count + self.out_width * hidden + (hidden if self.out_bias else 0)


@record
class Mlp:
    """A dense feed-forward block of inner width `width`; `gated` has three matrices (SwiGLU, GeGLU), else two. Where it
    is `cut`, gates below a number of deviations above their mean are zero (Gemma 3n)."""

    width: int
    gated: bool
    bias: bool = False
    cut: bool | None = None

    def parameters(self, hidden: int) -> int:
        up = (2 if self.gated else 1) * self.width
        return hidden * up + self.width * hidden + (up + hidden if self.bias else 0)


@record
class Moe:
    """A mixture of experts: `experts` of inner width `expert_width`, `top_k` of them for each token.

    `shared_width` is the summed inner width of the experts that every token visits; `shared_gate` a learned scalar
    gate on them (Qwen2-MoE); `router_bias` a learned or balancing bias per expert. Routed experts work on a projection
    of the tokens to `latent` dimensions where that is set (Nemotron-3). What follows is for training alone:
    a token's experts come from the best `router_top_groups` of `router_groups` groups (DeepSeek-V2, arXiv 2405.04434
    §2.2.2), their weights are times `router_scaling`, and with `pre_softmax` are not made to sum to one.
    """

    experts: int
    top_k: int
    expert_width: int
    gated: bool
    shared_width: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    latent: int | None = None
    router_groups: int | None = None
    router_top_groups: int | None = None
    router_scaling: float | None = None
    pre_softmax: bool | None = None

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def expert_parameters(self, hidden: int) -> int:
        """Return the weights of all routed experts."""
        return self.experts * self.matrices * (self.latent or hidden) * self.expert_width

    def dense_parameters(self, hidden: int) -> int:
        """Return the weights that every token uses: router, projections, shared experts and their gate."""
        router = hidden * self.experts + (self.experts if self.router_bias else 0) + 2 * hidden * (self.latent or 0)
        return router + self.matrices * hidden * self.shared_width + (hidden if self.shared_gate else 0)


@record
class SharedBlock:
    """What a layer has beside a transformer block whose weights it shares with others (Zamba, arXiv 2405.16712 §2).

    The block is the layer's attention and feed-forward block, with a norm before each, of which the first is over the
    embedding beside the hidden state. Nothing of it is added to the residual: a square product takes what it gives to
    what the mixer reads. Layers take turns over the blocks of a model. What each adds to the gates and ups of a shared
    feed-forward block is of rank `feed_rank`, to queries, keys and values of `attention_rank` (Zamba2, arXiv 2411.15242
    §2).
    """

    feed_rank: int | None = None
    attention_rank: int | None = None

    def products(self, hidden: int, attention: Attention, mlp: Mlp) -> tuple[Product, ...]:
        """Return the matrices that are the layer's own: the square one, and those of low rank."""
        added = []
        if self.attention_rank is not None:
            wide = attention.inputs(hidden)
            added += [(wide, self.attention_rank, width) for width in attention.projected_widths]
        if self.feed_rank is not None:
            added.append((hidden, self.feed_rank, (2 if mlp.gated else 1) * mlp.width))
        square = Product(inputs=hidden, outputs=hidden, cut="whole")
        pairs = (
            (Product(inputs=inputs, outputs=rank, cut="whole"), Product(inputs=rank, outputs=outputs))
            for inputs, rank, outputs in added
        )
        return (square, *(product for pair in pairs for product in pair))


@record
class Layer:
    """One kind of block: what mixes tokens, and a feed-forward block.

    Tokens are mixed by `attention`, by a `mixer` of another kind, by both side by side (Falcon-H1), or not at all. The
    feed-forward block is `mlp` or `moe`, or there is none (Nemotron-H's blocks have one or the other). `norms` counts
    the norms over the hidden width (2 as a rule; 4 with Gemma's post-norms; 1 in a parallel block with one norm).
    `vector_parameters` counts weights outside matrices and these norms: attention sinks, norms over whole projections,
    biases of experts; no arithmetic worth counting depends on them. The decoder of an encoder-decoder reads what the
    encoder gives by `cross` attention, between the two. After its feed-forward block a layer may add what a token's own
    embedding for this layer gives, of the width `embedded`: one product makes a gate of the hidden state, a second one
    takes what it gates back to the hidden width (Gemma 3n and 4). Where it is `scaled`, what each block adds is times a
    learned number. With `streams` there are several residual streams. Where attention and feed-forward block are
    `shared`, their weights are the model's, and the mixer comes after them.
    """

    attention: Attention | None
    mlp: Mlp | None
    moe: Moe | None
    norms: int = 2
    vector_parameters: int | None = None
    mixer: Mixer | None = None
    cross: Attention | None = None
    embedded: int | None = None
    scaled: bool | None = None
    streams: Streams | None = None
    shared: SharedBlock | None = None

    @property
    def self_attention(self) -> Attention:
        """Its attention, for those who refuse blocks without any first."""
        assert self.attention is not None, "blocks without attention are refused"
        return self.attention

    @property
    def latent(self) -> LatentAttention | None:
        return self.attention.latent if self.attention else None

    @property
    def window(self) -> int | None:
        return self.attention.window if self.attention else None

    @property
    def kv_heads(self) -> int:
        """Key-value heads of its attention; 1 without."""
        return self.attention.kv_heads if self.attention else 1

    @property
    def mixes(self) -> bool:
        """Whether it has what mixes tokens."""
        return self.attention is not None or self.mixer is not None

    @property
    def feeds(self) -> bool:
        """Whether it has a feed-forward block."""
        return self.mlp is not None or self.moe is not None

    @property
    def sublayers(self) -> int:
        """How many times the residual is added to."""
        return self.mixes + bool(self.cross) + self.feeds + bool(self.embedded)

    def mixing_parameters(self, hidden: int) -> int:
        """Return the weights of what mixes tokens, without those that are shared."""
        attentions = (None if self.shared else self.attention, self.cross)
        count = sum(kind.parameters(hidden) for kind in attentions if kind)
        return count + (self.mixer.work(hidden).parameters if self.mixer else 0)

    def shared_products(self, hidden: int) -> tuple[Product, ...]:
        """Return the matrices that it has beside a block that it shares with others, none where it shares none."""
        if self.shared is None or self.mlp is None:
            return ()
        return self.shared.products(hidden, self.self_attention, self.mlp)


def interned(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers, of which equal ones are equal objects."""
    known = {layer: layer for layer in layers}
    return tuple(known[layer] for layer in layers)


def vectors_beside(
    attention: Attention | None, moe: Moe | None, hidden: int, *, sinks: bool, wide_norms: bool, expert_bias: bool
) -> int:
    """Return the weights of a layer outside its matrices and norms over the hidden width: a sink for each head, norms
    of queries and keys that are as wide as these (`wide_norms`) in place of a head's, and biases of experts."""
    count = attention.heads if attention and sinks else 0
    if attention and attention.qk_norm and wide_norms:
        count += attention.query_width + attention.key_width - 2 * attention.head_dim
    if moe and expert_bias:
        count += moe.experts * ((moe.matrices - 1) * moe.expert_width + hidden)
    return count
