"""`Model`: the shape of a sequence of blocks, as much of it as time, memory and parameter counts depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Literal

from shardwright.records import record
from shardwright.spec.mixers import Mixer, Product
from shardwright.spec.streams import Streams
from shardwright.spec.tiles import Tiling

Norm = Literal["rmsnorm", "layernorm"]
NormForm = Literal["single", "centred"]
Position = Literal["rope", "learned", "alibi", "relative", "none"]
Placement = Literal["before", "after", "both", "sum", "stream"]
QueryKeyNorm = Literal["head", "projection", "each"]
Scores = Literal["softmax", "sigmoid"]

Kind = Literal["dense", "moe", "hybrid", "adapters"]
UNNAMED = ("megatron", "published", "yaml")  # numeric: families of models that are read from dimensions alone


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
    norm without weights."""

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
            count = hidden * qkv + (qkv if self.qkv_bias else 0)
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
    learned number. With `streams` there are several residual streams.
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
        """Return the weights of what mixes tokens."""
        count = sum(kind.parameters(hidden) for kind in (self.attention, self.cross) if kind)
        return count + (self.mixer.work(hidden).parameters if self.mixer else 0)


@record(slots=False)
class Tower:
    """An encoder before the first layer of a model: of images or sound, with the projector that makes tokens of what it
    gives; or, in an encoder-decoder, of text or of sound, which the decoder's layers read by their `cross` attention.

    An image is cut into patches of `patch` × `patch` pixels, each of `patch_values` numbers (channels, frames, pixels),
    which a matrix takes to the width `hidden`. `depth` equal layers follow; those in `whole` (from 0) attend over the
    whole image where the `layer` has a window. `image` is the side of images where the encoder takes one size alone, of
    larger ones tiles where there is a `tiling`; with a `budget` every image is scaled to give at most so many tokens,
    and padded to as many. A square of `merge` × `merge` patches becomes one token, by `projectors` chains of the
    products of `projector`, with a non-linearity before the last; `projector_vectors` counts the weights of norms
    beside them, `loose` those of tokens that end a row of patches or stand around a sound. A layer keeps `copies` of
    its tokens for the backward pass beside what its products take: of queries and keys after their rotation, where
    values keep all of one projection, and of what attention gives, where that goes image by image; of what a learned
    scale multiplies. With `tiles` an image is always so many, which the layers take as one sample, each padded to a
    multiple of 8 positions; the last `scaled` layers are (Llama 3.2 Vision). Tokens that are `aside` are no part of the
    sequence: layers read them by their `cross` attention.

    Text goes through the embedding of the decoder. Sound comes as spectra, of which the convolutions in `stem` make
    positions, each half as many as the one before: always `positions` of them where that is set, to which shorter
    sounds are padded. Longer ones are cut into segments of so many, whose padding gives tokens, too, or is trimmed
    (`segments`), or are not taken (None). Where convolutions go over frequencies, too, each of them and the product
    after them has `stem_rows` for a position; a `chunk` of so many spectra goes through alone, padded (Qwen3-Omni).
    `joined` positions become one token. `score_biases` are the numbers that are
    added to the scores of all layers.
    """

    family: str
    hidden: int
    depth: int
    layer: Layer
    patch: int = 0
    patch_values: int = 0
    projector: tuple[Product, ...] = ()
    projector_vectors: int = 0
    projectors: int = 1
    merge: int = 1
    image: int | None = None
    budget: int | None = None
    tiling: Tiling | None = None
    tiles: int | None = None
    scaled: int | None = None
    aside: bool | None = None
    loose: int = 0
    whole: tuple[int, ...] | None = None
    norm: Norm = "layernorm"
    norm_form: NormForm | None = None
    position: Position = "learned"
    learned_positions: int = 0
    patch_bias: bool = False
    class_token: bool = False
    first_norm: bool = False
    final_norm: bool = False
    activation: str = "gelu"
    copies: int = 0
    input: Literal["image", "text", "sound"] = "image"
    stem: tuple[Product, ...] = ()
    stem_rows: tuple[float, ...] | None = None
    chunk: int | None = None
    positions: int | None = None
    segments: Literal["trimmed", "padded"] | None = None
    joined: int = 1
    score_biases: int = 0
    dropout: bool = False

    @property
    def part(self) -> Literal["vision", "audio", "encoder"]:
        """What a job calls it."""
        if self.input == "image":
            return "vision"
        return "audio" if self.projector else "encoder"

    @property
    def noun(self) -> str:
        """What it is, in words."""
        return {"vision": "a vision tower", "audio": "a tower of sound", "encoder": "an encoder"}[self.part]

    @cached_property
    def encoder(self) -> Model:
        """The encoder as a model without an output projection: what the account of a layer reads."""
        over_all = replace(self.layer, attention=replace(self.layer.self_attention, window=None))
        whole, plain = self.whole or (), self.depth - (self.scaled or 0)
        last = (replace(self.layer, scaled=True),) * (self.scaled or 0)
        return Model(
            name=self.family,
            family=self.family,
            hidden=self.hidden,
            vocab=0,
            layers=tuple(over_all if place in whole else self.layer for place in range(plain)) + last,
            norm=self.norm,
            norm_form=self.norm_form,
            position=self.position,
            learned_positions=self.learned_positions,
            tied_embeddings=True,
            embedding_norm=self.first_norm,
            final_norm=self.final_norm,
            activation=self.activation,
            extra_parameters=self.score_biases,
            dropout=self.dropout,
        )

    @property
    def given_width(self) -> int:
        """The width of what it gives."""
        return self.projector[-1].outputs if self.projector else self.hidden

    @property
    def encoder_parameters(self) -> int:
        """Weights of patches or convolutions, class token, embedding, positions, layers and norms."""
        patches = (self.patch_values + self.patch_bias + self.class_token) * self.hidden
        return patches + _products(self.stem) + self.encoder.parameters

    @property
    def projector_parameters(self) -> int:
        """Weights of all projectors."""
        return self.projectors * _products(self.projector) + self.projector_vectors + self.loose

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.encoder_parameters + self.projector_parameters


def _products(chain: tuple[Product, ...]) -> int:
    return sum(product.weights + product.outputs * product.bias for product in chain)


@record(slots=False)
class Model:
    """A model of language, with a `tower` where it sees images or is an encoder-decoder, and `audio` where it hears.

    `layers` has one entry per block, in order; equal layers are equal objects. The table of their own embeddings has
    `layer_vocab` rows.

    With `relative` positions a learned number for each head and distance is added to scores (T5, arXiv 1910.10683
    §2.1). `learned_positions` counts rows of a learned position table, `extra_parameters` what else the published count
    contains (token types, pooler). `embedding_width` is set only where the embedding is narrower than `hidden` and
    projected (OPT-350m). `rotary_fraction` of each head's dimensions are rotated. In a `parallel_block` attention and
    feed-forward block read the same residual and are added to it together. `dropout` says whether pre-training keeps
    dropout masks. `norm_vectors` is set where a norm has other than the usual weights (LayerNorm two vectors, RMSNorm
    one). `norm_epsilon`, `norm_about_one` (weights of norms are kept less one) and `rotary_…` but the base and the
    fraction are for training alone: nothing is costed by them. `norm_form` says how transformers computes norms: by its
    own code of a `centred` LayerNorm, an RMSNorm whose weights multiply in `single` precision, or else by one kernel
    for LayerNorm, and weights in 16 bits for RMSNorm; with `fused_qkv` one product makes queries, keys and values.
    `forward_pass` is set for families whose forward pass has more than the other fields tell, and `particular` says in
    words what that is: exporters refuse it.
    `guesses` lists, in words, what a user accepted of an unknown family without anybody knowing it, `assumed` what the
    source of the description left open.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    norm: Norm = "rmsnorm"
    position: Position = "rope"
    rotary_base: float = 10000.0
    max_position: int = 0
    learned_positions: int = 0
    tied_embeddings: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    head_bias: bool = False
    dropout: bool = False
    mtp_layers: int = 0
    activation: str = "silu"
    extra_parameters: int = 0
    embedding_width: int | None = None
    layer_vocab: int | None = None
    rotary_fraction: float = 1.0
    parallel_block: bool = False
    norm_vectors: int | None = None
    norm_epsilon: float | None = None
    norm_about_one: bool | None = None
    norm_form: NormForm | None = None
    fused_qkv: bool | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_interleaved: bool | None = None
    particular: str | None = None
    forward_pass: ForwardPass | None = None
    tower: Tower | None = None
    audio: Tower | None = None
    guesses: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.parameters:,} parameters in {len(self.layers)} layers>"

    @property
    def computed(self) -> ForwardPass:
        """The forward pass, as in Llama where nothing else is told."""
        return self.forward_pass or PLAIN

    @property
    def causal(self) -> bool:
        """Whether tokens see earlier ones alone; else it is trained to fill in masked tokens."""
        return all(kind.attention.causal for kind in self.kinds if kind.attention)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """For each layer, its index in `kinds`."""
        index = {kind: position for position, kind in enumerate(self.kinds)}
        return tuple(index[layer] for layer in self.layers)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden width."""
        usual = 2 if self.norm == "layernorm" else 1
        return self.hidden * (usual if self.norm_vectors is None else self.norm_vectors)

    def dense_layer_parameters(self, layer: Layer) -> int:
        """Return the parameters of `layer` that every token uses (all but the routed experts)."""
        feed_forward = layer.mlp.parameters(self.hidden) if layer.mlp else 0
        if layer.moe:
            feed_forward += layer.moe.dense_parameters(self.hidden)
        feed_forward += 2 * self.hidden * (layer.embedded or 0)
        vectors = layer.norms * self.norm_parameters + (layer.vector_parameters or 0)
        vectors += layer.sublayers if layer.scaled else 0
        vectors += layer.streams.parameters(self.hidden) if layer.streams else 0
        return layer.mixing_parameters(self.hidden) + feed_forward + vectors

    def expert_layer_parameters(self, layer: Layer) -> int:
        """Return the parameters of the routed experts of `layer`."""
        return layer.moe.expert_parameters(self.hidden) if layer.moe else 0

    @property
    def token_table_parameters(self) -> int:
        """Parameters of the token embedding, which a tied output projection shares."""
        return self.vocab * (self.embedding_width or self.hidden)

    @property
    def width_projection_parameters(self) -> int:
        """Parameters of the map from `embedding_width` to `hidden`; the head has its inverse of the same size."""
        return self.embedding_width * self.hidden if self.embedding_width else 0

    @property
    def embedding_parameters(self) -> int:
        """Token and position embedding, with the projection and the norm that may follow, and what a token has for each
        layer: a table, a projection of the embedding, and a norm that all layers share."""
        norm = self.norm_parameters if self.embedding_norm else 0
        positions, beside = self.learned_positions * self.hidden, self.embedded_width
        layers = (self.layer_vocab or 0) * beside + self.hidden * beside + max(self.embedded_widths, default=0)
        streams = self.stream_parameters
        return self.token_table_parameters + self.width_projection_parameters + positions + norm + layers + streams

    @property
    def streams(self) -> Streams | None:
        """Its residual streams, where there are several."""
        return self.layers[0].streams if self.layers else None

    @property
    def stream_parameters(self) -> int:
        """Weights that make the other streams of the embedding, and as many that the head takes them by."""
        return self.streams.end_parameters(self.hidden) if self.streams else 0

    @property
    def embedded_widths(self) -> tuple[int, ...]:
        """The widths of a token's embeddings for layers, of each that has one."""
        return tuple(layer.embedded for layer in self.layers if layer.embedded)

    @property
    def embedded_width(self) -> int:
        """The width of all of them."""
        return sum(self.embedded_widths)

    @property
    def head_parameters(self) -> int:
        """Final norm and, unless tied to the embedding, the output projection."""
        head = 0 if self.tied_embeddings else self.token_table_parameters
        bias = self.vocab if self.head_bias else 0
        norm = self.norm_parameters if self.final_norm else 0
        return self.width_projection_parameters + head + bias + norm + self.stream_parameters

    @cached_property
    def parameters(self) -> int:
        """All parameters, without the multi-token-prediction layers (as the published counts have it)."""
        return self.language_parameters + sum(tower.parameters for tower in self.towers)

    @property
    def towers(self) -> tuple[Tower, ...]:
        """What runs before the first layer."""
        return tuple(tower for tower in (self.tower, self.audio) if tower is not None)

    @cached_property
    def language_parameters(self) -> int:
        """The same without those of towers."""
        per_kind = [self.dense_layer_parameters(kind) + self.expert_layer_parameters(kind) for kind in self.kinds]
        layers = sum(per_kind[kind] for kind in self.kind_of_layer)
        return self.embedding_parameters + layers + self.head_parameters + self.extra_parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token uses: of the routed experts only `top_k`."""
        idle = 0
        for layer in self.layers:
            if layer.moe:
                idle += (
                    layer.moe.expert_parameters(self.hidden)
                    * (layer.moe.experts - layer.moe.top_k)
                    // layer.moe.experts
                )
        return self.parameters - idle

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The distinct kinds of attention, in order of first appearance."""
        return tuple(dict.fromkeys(kind.attention for kind in self.kinds if kind.attention))

    @property
    def attention(self) -> Attention | None:
        """The attention of the first layer that has any."""
        return next(iter(self.attentions), None)

    @property
    def self_attention(self) -> Attention:
        """The same, for those who refuse models without any first."""
        assert self.attention is not None, "models without attention are refused"
        return self.attention

    @property
    def max_heads(self) -> int:
        """The largest number of heads, or of what a mixer has in their place, that tensor parallelism deals out."""
        mixers = [size for kind in self.kinds if kind.mixer for _, size in kind.mixer.splits]
        return max([attention.heads for attention in self.attentions] + mixers, default=1)


def uniform_layers(layer: Layer, count: int) -> tuple[Layer, ...]:
    """Return `count` equal layers."""
    return (layer,) * count


@record
class ForwardPass:
    """The forward pass of a model beside its sizes. What has its default is as in Llama.

    * Norms stand `before` attention and feed-forward block, `after` them (OLMo 2), on `both` sides (Gemma 2), or on the
      `sum` with the residual (BERT), or on the residual `stream` itself, before each block (MiniMax); those of layers
      with a mixer may stand elsewhere (`mixer_norms`, OLMo Hybrid).
    * What is left of the residual and what is added to it may be times numbers of their own (`stream_scales`): after
      attention, after another mixer, after a feed-forward block (MiniMax).
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


def training_kind(model: Model, *, adapters: bool) -> Kind:
    """Return what kind of model is trained, adapters before all: what is frozen takes no gradients."""
    if adapters:
        return "adapters"
    if any(layer.attention is None and layer.cross is None for layer in model.kinds):
        return "hybrid"
    return "moe" if any(layer.moe is not None for layer in model.kinds) else "dense"


def family_of(model: Model) -> str:
    """Return the family of a model, by its text model and whether it sees images. Dimensions alone, as of a launch,
    name none: their layers are those of Llama or of GPT-2."""
    if model.family not in UNNAMED:
        return " ".join([model.family, *(tower.part for tower in model.towers if tower.projector)])
    gated = all(layer.mlp is None or layer.mlp.gated for layer in model.layers)
    return "llama" if gated and model.norm == "rmsnorm" else "gpt2"
