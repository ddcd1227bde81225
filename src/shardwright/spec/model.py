"""`Model` and `Tower`: shapes of sequences of blocks, as much as time, memory and parameter counts depend on."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Literal

from shardwright.records import record
from shardwright.spec.forward_pass import PLAIN, ForwardPass, RotaryScaling
from shardwright.spec.layer import Attention, Layer, Norm, NormForm, Position
from shardwright.spec.mixers import Product
from shardwright.spec.streams import Streams
from shardwright.spec.tiles import Tiling

Kind = Literal["dense", "moe", "hybrid", "adapters"]
UNNAMED = ("megatron", "published", "yaml")  # numeric: families of models that are read from dimensions alone


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
    `layer_vocab` rows. Of transformer blocks whose weights layers share there are `shared_blocks`; these weights count
    with the embedding, as what all layers have.

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
    `scores`: the head gives so many numbers of a token in place of logits, by weights of its own (`giving_scores`).
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
    shared_blocks: int | None = None
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
    scores: int | None = None
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

    def layer_parameters(self, layer: Layer) -> int:
        """Return all parameters of `layer`."""
        return self.dense_layer_parameters(layer) + self.expert_layer_parameters(layer)

    def dense_layer_parameters(self, layer: Layer) -> int:
        """Return the parameters of `layer` that every token uses (all but the routed experts)."""
        feed_forward = layer.mlp.parameters(self.hidden) if layer.mlp and not layer.shared else 0
        feed_forward += sum(product.weights for product in layer.shared_products(self.hidden))
        if layer.moe:
            feed_forward += layer.moe.dense_parameters(self.hidden)
        feed_forward += 2 * self.hidden * (layer.embedded or 0)
        vectors = (1 if layer.shared else layer.norms) * self.norm_parameters + (layer.vector_parameters or 0)
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
    def head_outputs(self) -> int:
        """What the head gives for a token: logits of the vocabulary, or scores."""
        return self.scores or self.vocab

    @property
    def head_table_parameters(self) -> int:
        """Parameters of the output projection, which a tied one shares with the embedding."""
        return self.head_outputs * (self.embedding_width or self.hidden)

    def giving_scores(self) -> Model:
        """Return the same with a head of one score (transformers 5, modeling_layers.py: a model for sequence
        classification, with one label)."""
        return replace(self, scores=1, tied_embeddings=False, head_bias=False, mtp_layers=0)

    @property
    def width_projection_parameters(self) -> int:
        """Parameters of the map from `embedding_width` to `hidden`; the head has its inverse of the same size."""
        return self.embedding_width * self.hidden if self.embedding_width else 0

    @property
    def embedding_parameters(self) -> int:
        """Token and position embedding, with the projection and the norm that may follow, and what a token has for each
        layer: a table, a projection of the embedding, and a norm that all layers share; blocks that they share, too."""
        norm = self.norm_parameters if self.embedding_norm else 0
        positions, beside = self.learned_positions * self.hidden, self.embedded_width
        layers = (self.layer_vocab or 0) * beside + self.hidden * beside + max(self.embedded_widths, default=0)
        streams = self.stream_parameters + self.shared_parameters
        return self.token_table_parameters + self.width_projection_parameters + positions + norm + layers + streams

    @property
    def end_parameters(self) -> int:
        """Those of the embedding, without blocks that layers share."""
        return self.embedding_parameters - self.shared_parameters

    @cached_property
    def shared_layer(self) -> Layer | None:
        """The first kind of layer that shares a block with others."""
        return next((kind for kind in self.kinds if kind.shared), None)

    @cached_property
    def sharing(self) -> tuple[int, ...]:
        """The numbers of the layers that share blocks, which take turns over these."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.shared)

    def block_of(self, layer: int) -> int:
        """Return the number of the block that a layer shares with others."""
        return self.sharing.index(layer) % (self.shared_blocks or 1)

    @property
    def shared_parameters(self) -> int:
        """Weights of the blocks that layers share, with the norms of each."""
        layer = self.shared_layer
        if layer is None or layer.mlp is None:
            return 0
        norms = (layer.norms - 1) * self.norm_parameters
        block = layer.self_attention.parameters(self.hidden) + layer.mlp.parameters(self.hidden) + norms
        return (self.shared_blocks or 1) * block

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
        head = 0 if self.tied_embeddings else self.head_table_parameters
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
        per_kind = [self.layer_parameters(kind) for kind in self.kinds]
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
    def has_experts(self) -> bool:
        """Whether any of its layers has a mixture of experts."""
        return any(kind.moe is not None for kind in self.kinds)

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


def training_kind(model: Model, *, adapters: bool) -> Kind:
    """Return what kind of model is trained, adapters before all: what is frozen takes no gradients."""
    if adapters:
        return "adapters"
    if any(layer.attention is None and layer.cross is None for layer in model.kinds):
        return "hybrid"
    return "moe" if model.has_experts else "dense"


def family_of(model: Model) -> str:
    """Return the family of a model, by its text model and whether it sees images. Dimensions alone, as of a launch,
    name none: their layers are those of Llama or of GPT-2."""
    if model.family not in UNNAMED:
        return " ".join([model.family, *(tower.part for tower in model.towers if tower.projector)])
    gated = all(layer.mlp is None or layer.mlp.gated for layer in model.layers)
    return "llama" if gated and model.norm == "rmsnorm" else "gpt2"
