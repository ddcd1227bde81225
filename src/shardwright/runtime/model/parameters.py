"""The parameters of every unit of a model: name, full shape, how tensor parallelism cuts them, how they start; which
of them are trained, all or those of adapters beside frozen matrices. Needs no PyTorch.

The table is pure data and knows no plan but for the padded vocabulary. A parameter is cut along one dimension into at
most `pieces` equal pieces; where a unit has more shards than a parameter has pieces (key-value heads), neighbouring
shards share a piece, and where it is not cut at all, every shard has the whole.

Beside a matrix W [m, n] stand A [r, n] and B [m, r], under DoRA also a length for each of its m rows (`products`).
Tensor parallelism cuts A and B as it cuts W: where each rank has some rows of W, B has these rows and A is whole on
every rank; where each has some columns, A has these columns and B is whole. Frozen matrices may be kept as blocks of
bytes (`nf4`), cut as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from typing import Literal

from shardwright.records import record
from shardwright.spec.adapter import NF4_BLOCK, NF4_SCALE_BYTES, Adapter, Target
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe, SharedBlock
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, Mixer, ShortConvolution
from shardwright.spec.model import Model

Start = Literal["normal", "ones", "zeros", "uniform", "log of counts", "time steps", "row lengths"]
Summed = Literal["", "sequence", "tensor", "copies"]
INITIAL_DEVIATION = 0.02

# By block and matrix of a layer, whose adapter it has; routed experts and routers have none.
TARGETS: Mapping[str, Target] = {
    "attention.query": "q_proj",
    "attention.query_down": "q_proj",
    "attention.query_up": "q_proj",
    "attention.key": "k_proj",
    "attention.latent_down": "k_proj",
    "attention.value": "v_proj",
    "attention.latent_up": "v_proj",
    "attention.out": "o_proj",
    "mlp.gate": "gate_proj",
    "mlp.up": "up_proj",
    "mlp.down": "down_proj",
    "moe.shared.gate": "gate_proj",
    "moe.shared.up": "up_proj",
    "moe.shared.down": "down_proj",
}
DOWN, UP, LENGTHS = "lora_a", "lora_b", "lengths"
PACKED = "packed"


@record
class ModelParameter:
    """One parameter of the whole model.

    `dim` is the dimension that is cut, None if none is; `pieces` into how many at most. `start` and `deviation` say how
    it is initialised: "uniform" between `deviation` and its negative, "log of counts" from 1 on along the last
    dimension, "time steps" by biases whose softplus is between 0.001 and 0.1 (arXiv 2312.00752 §3.6). `summed` says
    over which ranks of a stage its gradient is a sum: none; those of the tensor-parallel group under sequence
    parallelism ("sequence") or always ("tensor"); those with the same key-value heads ("copies"). `expert` is the
    number of the expert that it belongs to. A part of an adapter is `beside` a frozen matrix, and may start with the
    "row lengths" of that. Where it is blocks of bytes, these stand for a frozen `matrix`.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None = None
    pieces: int = 1
    start: Start = "normal"
    deviation: float = INITIAL_DEVIATION
    summed: Summed = ""
    expert: int | None = None
    beside: ModelParameter | None = None
    matrix: ModelParameter | None = None

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies: to matrices, not to norms, biases and decays."""
        return len(self.shape) > 1 and self.start != "log of counts"

    @property
    def hidden(self) -> bool:
        """Whether it is a matrix of a layer, for which some optimizers have another rule than for embeddings, the
        output projection, norms and biases."""
        return len(self.shape) == 2 and self.decayed and self.name.startswith(("layers.", "shared."))

    @property
    def padded(self) -> bool:
        """Whether its rows are those of the vocabulary, of which the last may be padding."""
        return self.name in ("embedding.tokens.weight", "head.weight", "head.bias")

    def piece(self, shard: int, shards: int) -> int:
        return shard * min(self.pieces, shards) // shards

    def bounds(self, first: int, last: int, shards: int) -> tuple[int, int]:
        """Return [start, stop) along `dim` of the shards from `first` to `last` inclusive."""
        assert self.dim is not None, "a parameter that is not cut has no bounds"
        size = self.shape[self.dim] // min(self.pieces, shards)
        return self.piece(first, shards) * size, (self.piece(last, shards) + 1) * size

    def local_shape(self, first: int, last: int, shards: int) -> tuple[int, ...]:
        """Return the shape of what a rank with these shards holds."""
        if self.dim is None:
            return self.shape
        start, stop = self.bounds(first, last, shards)
        return (*self.shape[: self.dim], stop - start, *self.shape[self.dim + 1 :])


def unit_parameters(model: Model, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit. `vocabulary` is the padded number of rows of embedding and output projection."""
    if unit == 0:
        return tuple(_embedding(model, vocabulary))
    if unit == len(model.layers) + 1:
        return tuple(_head(model, vocabulary))
    return tuple(_layer(model, model.layers[unit - 1], f"layers.{unit - 1}"))


def _embedding(model: Model, vocabulary: int) -> Iterator[ModelParameter]:
    yield ModelParameter(name="embedding.tokens.weight", shape=(vocabulary, model.hidden), dim=0, pieces=vocabulary)
    rows = {"positions": model.learned_positions, "types": model.computed.token_types or 0}
    for table, count in rows.items():
        if count:
            yield ModelParameter(name=f"embedding.{table}.weight", shape=(count, model.hidden), summed="sequence")
    if model.embedding_norm:
        yield from _norm(model, "embedding.norm")
    if model.shared_layer is not None:
        for number in range(model.shared_blocks or 1):
            yield from _block(model, model.shared_layer, f"shared.{number}")


def _block(model: Model, layer: Layer, name: str) -> Iterator[ModelParameter]:
    """A block that layers share, whose first norm is over the embedding beside the hidden state."""
    yield _shared(f"{name}.joined_norm.weight", (2 * model.hidden,), start="ones")
    yield from _attention(model, layer.self_attention, f"{name}.attention")
    yield from _norm(model, f"{name}.mlp_norm")
    if layer.mlp is not None:
        yield from _mlp(model, layer.mlp, f"{name}.mlp")


def _beside(model: Model, layer: Layer, block: SharedBlock, name: str) -> Iterator[ModelParameter]:
    """What is a layer's own beside a block that it shares: the product to what its mixer reads, and matrices of low
    rank, whose first ones are whole on every rank."""
    attention, mlp = layer.self_attention, layer.mlp
    yield _shared(f"{name}.square.weight", (model.hidden, model.hidden))
    if block.attention_rank is not None:
        for part, width in zip(("query", "key", "value"), attention.projected_widths, strict=True):
            heads = attention.heads if part == "query" else attention.kv_heads
            yield _shared(f"{name}.attention.{part}_down.weight", (block.attention_rank, 2 * model.hidden))
            shape = (width, block.attention_rank)
            yield ModelParameter(name=f"{name}.attention.{part}_up.weight", shape=shape, dim=0, pieces=heads)
    if block.feed_rank is not None and mlp is not None:
        yield _shared(f"{name}.mlp.low_down.weight", (block.feed_rank, model.hidden))
        for part in ("gate", "up"):
            shape = (mlp.width, block.feed_rank)
            yield ModelParameter(name=f"{name}.mlp.{part}_up.weight", shape=shape, dim=0, pieces=mlp.width)


def _head(model: Model, vocabulary: int) -> Iterator[ModelParameter]:
    transform = model.computed.head_transform
    if transform:
        yield _shared("head.transform.weight", (model.hidden, model.hidden))
        yield _shared("head.transform.bias", (model.hidden,), start="zeros")
    if model.final_norm or transform:
        yield from _norm(model, "head.norm")
    if not model.tied_embeddings:
        yield ModelParameter(name="head.weight", shape=(vocabulary, model.hidden), dim=0, pieces=vocabulary)
    if model.head_bias:
        yield ModelParameter(name="head.bias", shape=(vocabulary,), dim=0, pieces=vocabulary, start="zeros")


def _layer(model: Model, layer: Layer, name: str) -> Iterator[ModelParameter]:
    before, after = norms_of(model, layer)
    for norm in before:
        yield from _norm(model, f"{name}.{norm}")
    if layer.mixer is not None:
        yield from _mixer(model, layer.mixer, f"{name}.mixer")
    if layer.shared is not None:
        yield from _beside(model, layer, layer.shared, name)
        return
    if layer.attention is not None:
        yield from _attention(model, layer.attention, f"{name}.attention")
    if layer.mlp is not None:
        yield from _mlp(model, layer.mlp, f"{name}.mlp")
    if layer.moe is not None:
        yield from _moe(model, layer.moe, f"{name}.moe")
    for norm in after:
        yield from _norm(model, f"{name}.{norm}")


def norms_of(model: Model, layer: Layer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a layer's norms before and after its blocks, without those that it shares. A parallel block
    may have one for both."""
    if layer.shared is not None:
        return ("mixer_norm",), ()
    placed = model.computed.placement(layer)
    blocks = [name for name, there in {"attention": layer.mixes, "mlp": layer.feeds}.items() if there]
    before = tuple(f"{name}_norm" for name in blocks[: 1 if model.parallel_block and layer.norms == 1 else 2])
    after = tuple(f"{name}_post_norm" for name in blocks)
    return before if placed in ("before", "both", "stream") else (), after if placed not in ("before", "stream") else ()


def _norm(model: Model, name: str) -> Iterator[ModelParameter]:
    start: Start = "zeros" if model.norm_about_one else "ones"
    vectors = model.norm_parameters // model.hidden
    if vectors > 0:
        yield _shared(f"{name}.weight", (model.hidden,), start=start)
    if vectors > 1:
        yield _shared(f"{name}.bias", (model.hidden,), start="zeros")


def _shared(name: str, shape: tuple[int, ...], start: Start = "normal") -> ModelParameter:
    """A parameter that all ranks of a stage have, of which each sees its positions of the sequence."""
    return ModelParameter(name=name, shape=shape, start=start, summed="sequence")


def _attention(model: Model, attention: Attention, name: str) -> Iterator[ModelParameter]:
    if attention.latent is not None:
        yield from _latent(model, attention, attention.latent, name)
    else:
        yield from _heads(model, attention, name)
    if model.computed.sinks:
        yield ModelParameter(
            name=f"{name}.sinks.weight", shape=(attention.heads,), dim=0, pieces=attention.heads, start="zeros"
        )
    yield ModelParameter(
        name=f"{name}.out.weight", shape=(model.hidden, attention.out_width), dim=1, pieces=attention.heads,
        deviation=_residual(model),
    )  # fmt: skip
    if attention.out_bias:
        yield _shared(f"{name}.out.bias", (model.hidden,), start="zeros")


@record
class Within:
    """A parameter inside a mixer, cut along `dim` by heads or channels; whole on every rank where that is None, whose
    gradient is a sum over ranks, each of which has other heads."""

    shape: tuple[int, ...]
    dim: int | None = 0
    start: Start = "ones"
    deviation: float = INITIAL_DEVIATION


@record
class MixerShape:
    """The parameters of a mixer. `rows` of its projections, in the order in which files have them; those that a
    convolution of `width` tokens follows, in the order of its channels; rank and width of those in two steps, `low`,
    of which the first is whole on every rank; what is `within`; `inner` inputs of the projection out of it. All others
    are cut into at most `pieces`."""

    pieces: int
    rows: Mapping[str, int]
    inner: int
    low: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    within: Mapping[str, Within] = field(default_factory=dict)
    convolved: tuple[str, ...] = ()
    width: int = 0
    biased: bool = False
    taps_biased: bool = False
    out_biased: bool = False


def _mamba(mixer: Mamba) -> MixerShape:
    inner, state = mixer.inner, mixer.state
    norms = {"step": mixer.rank, "key": state, "query": state} if mixer.normed else {}
    small, heads = mixer.rank + 2 * state, mixer.heads
    low = Within(shape=(small, inner), dim=1, start="normal")
    if heads is not None:
        low = Within(shape=(heads * small, inner // heads), start="normal")
    return MixerShape(
        pieces=heads or inner,
        rows={"value": inner, "gate": inner},
        inner=inner,
        within={
            "low.weight": low,
            "step.weight": Within(shape=(inner, mixer.rank), start="uniform", deviation=mixer.rank**-0.5),
            "step.bias": Within(shape=(inner,), start="time steps"),
            "decay.weight": Within(shape=(inner, state), start="log of counts"),
            "skip.weight": Within(shape=(inner,)),
            **{f"{name}_norm.weight": Within(shape=(width,), dim=None) for name, width in norms.items()},
        },
        convolved=("value",),
        width=mixer.width,
        biased=mixer.bias,
        taps_biased=mixer.convolution_bias,
        out_biased=mixer.bias,
    )


def _mamba2(mixer: Mamba2) -> MixerShape:
    pair, heads = mixer.groups * mixer.state, Within(shape=(mixer.heads,))
    norm = {"norm.weight": Within(shape=(mixer.inner,))} if mixer.gated_norm else {}
    return MixerShape(
        pieces=mixer.groups,  # of heads that share keys and queries
        rows={"gate": mixer.inner, "value": mixer.inner, "key": pair, "query": pair, "step": mixer.heads},
        inner=mixer.inner,
        within={**_decay(mixer.heads, mixer.heads), "skip.weight": heads, **norm},
        convolved=("value", "key", "query"),
        width=mixer.width,
        biased=mixer.bias,
        taps_biased=mixer.convolution_bias,
        out_biased=mixer.out_bias,
    )


def _gated_delta(mixer: GatedDelta) -> MixerShape:
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    heads, decays = mixer.value_heads, mixer.value_heads * (mixer.key_dim if mixer.decay == "channel" else 1)
    gates = {"gate": values, "rate": heads, "decay_step": decays}
    low = {part: (mixer.gate_rank, gates.pop(part)) for part in ("gate", "decay_step") if mixer.gate_rank is not None}
    return MixerShape(
        pieces=min(mixer.key_heads, heads),
        rows={"query": keys, "key": keys, "value": values, **gates},
        inner=values,
        low=low,
        within={**_decay(heads, decays), "norm.weight": Within(shape=(mixer.value_dim,), dim=None)},
        convolved=("query", "key", "value"),
        width=mixer.width,
    )


def _decay(heads: int, shifts: int) -> dict[str, Within]:
    return {
        "decay.weight": Within(shape=(heads,), start="log of counts"),
        "step_shift.weight": Within(shape=(shifts,)),
    }


def _lightning(mixer: Lightning) -> MixerShape:
    width = mixer.heads * mixer.head_dim
    rows = dict.fromkeys(("query", "key", "value", "gate"), width)
    return MixerShape(pieces=mixer.heads, rows=rows, inner=width, within={"norm.weight": Within(shape=(width,))})


def _short_convolution(mixer: ShortConvolution) -> MixerShape:
    return MixerShape(
        pieces=mixer.channels,
        rows=dict.fromkeys(("before", "after", "value"), mixer.channels),
        inner=mixer.channels,
        convolved=("value",),
        width=mixer.width,
        biased=mixer.bias,
        taps_biased=mixer.bias,
        out_biased=mixer.bias,
    )


MIXERS: Mapping[type[Mixer], Callable[..., MixerShape]] = {
    Mamba: _mamba,
    Mamba2: _mamba2,
    GatedDelta: _gated_delta,
    Lightning: _lightning,
    ShortConvolution: _short_convolution,
}


@cache
def mixer_shape(mixer: Mixer) -> MixerShape:
    """Return the shapes of a mixer's parameters. Mixers of other kinds are refused before."""
    return MIXERS[type(mixer)](mixer)


def _mixer(model: Model, mixer: Mixer, name: str) -> Iterator[ModelParameter]:
    """Projections, convolutions [channels, 1, width] and what is within."""
    shape = mixer_shape(mixer)
    cut = ModelParameter(name=name, shape=(), dim=0, pieces=shape.pieces)
    for part, rows in shape.rows.items():
        yield replace(cut, name=f"{name}.{part}.weight", shape=(rows, model.hidden))
        if shape.biased:
            yield replace(cut, name=f"{name}.{part}.bias", shape=(rows,), start="zeros")
    for part in shape.convolved:
        taps, channels = replace(cut, start="uniform", deviation=shape.width**-0.5), shape.rows[part]
        yield replace(taps, name=f"{name}.{part}_taps.weight", shape=(channels, 1, shape.width))
        if shape.taps_biased:
            yield replace(cut, name=f"{name}.{part}_taps.bias", shape=(channels,), start="zeros")
    for part, (rank, rows) in shape.low.items():
        yield _shared(f"{name}.{part}_down.weight", (rank, model.hidden))
        yield replace(cut, name=f"{name}.{part}_up.weight", shape=(rows, rank))
    for part, inside in shape.within.items():
        whole = replace(cut, pieces=1, summed="tensor") if inside.dim is None else cut
        shaped = replace(whole, name=f"{name}.{part}", shape=inside.shape, dim=inside.dim)
        yield replace(shaped, start=inside.start, deviation=inside.deviation)
    out = replace(cut, name=f"{name}.out.weight", shape=(model.hidden, shape.inner), dim=1)
    yield replace(out, deviation=_residual(model))
    if shape.out_biased:
        yield _shared(f"{name}.out.bias", (model.hidden,), start="zeros")


def _heads(model: Model, attention: Attention, name: str) -> Iterator[ModelParameter]:
    query = (attention.query_width, attention.heads, "")
    gate = {"gate": (attention.gate_width, attention.heads, "")} if attention.gate else {}
    key = (attention.key_width, attention.kv_heads, "copies")
    value = (attention.value_width, attention.kv_heads, "copies")
    for part, (width, pieces, summed) in {"query": query, **gate, "key": key, "value": value}.items():
        where = f"{name}.{part}"
        how: Summed = "copies" if summed else ""
        shape = (width, attention.inputs(model.hidden))
        yield ModelParameter(name=f"{where}.weight", shape=shape, dim=0, pieces=pieces, summed=how)
        if attention.qkv_bias:
            yield ModelParameter(name=f"{where}.bias", shape=(width,), dim=0, pieces=pieces, start="zeros", summed=how)
    if attention.qk_norm:
        yield from _query_key_norm(model, attention, f"{name}.query_norm", attention.heads)
        yield from _query_key_norm(model, attention, f"{name}.key_norm", attention.kv_heads)


def _query_key_norm(model: Model, attention: Attention, name: str, heads: int) -> Iterator[ModelParameter]:
    start: Start = "zeros" if model.norm_about_one else "ones"
    if model.computed.query_key_norm == "head":
        yield ModelParameter(name=f"{name}.weight", shape=(attention.head_dim,), start=start, summed="tensor")
        if model.norm == "layernorm":
            yield ModelParameter(name=f"{name}.bias", shape=(attention.head_dim,), start="zeros", summed="tensor")
    else:
        how: Summed = "copies" if name.endswith("key_norm") else ""
        shape = (heads * attention.head_dim,)
        yield ModelParameter(name=f"{name}.weight", shape=shape, dim=0, pieces=heads, start=start, summed=how)


def _latent(model: Model, attention: Attention, latent: LatentAttention, name: str) -> Iterator[ModelParameter]:
    """The projections down to latents, which all ranks have, and those up to heads, of which each has its own."""
    down = {"latent": (latent.kv_rank, latent.rope_head_dim, latent.nope_head_dim + attention.value_head_dim)}
    if latent.query_rank is not None:
        down = {"query": (latent.query_rank, 0, attention.head_dim), **down}
    else:
        shape = (attention.query_width, model.hidden)
        yield ModelParameter(name=f"{name}.query.weight", shape=shape, dim=0, pieces=attention.heads)
    if attention.gate:
        shape = (attention.gate_width, model.hidden)
        yield ModelParameter(name=f"{name}.gate.weight", shape=shape, dim=0, pieces=attention.heads)
    for part, (rank, beside, width) in down.items():
        yield _shared(f"{name}.{part}_down.weight", (rank + beside, model.hidden))
        if attention.qkv_bias:
            yield _shared(f"{name}.{part}_down.bias", (rank + beside,), start="zeros")
        yield _shared(f"{name}.{part}_norm.weight", (rank,), start="ones")
        shape = (attention.heads * width, rank)
        yield ModelParameter(name=f"{name}.{part}_up.weight", shape=shape, dim=0, pieces=attention.heads)


def _mlp(model: Model, mlp: Mlp, name: str, outside: int | None = None) -> Iterator[ModelParameter]:
    """The matrices of a feed-forward block of inputs and outputs as wide as the model, or so many `outside`."""
    outer = outside or model.hidden
    for part in ("gate", "up") if mlp.gated else ("up",):
        yield ModelParameter(name=f"{name}.{part}.weight", shape=(mlp.width, outer), dim=0, pieces=mlp.width)
        if mlp.bias:
            yield ModelParameter(name=f"{name}.{part}.bias", shape=(mlp.width,), dim=0, pieces=mlp.width, start="zeros")
    yield ModelParameter(
        name=f"{name}.down.weight", shape=(outer, mlp.width), dim=1, pieces=mlp.width, deviation=_residual(model)
    )
    if mlp.bias:
        yield ModelParameter(name=f"{name}.down.bias", shape=(outer,), start="zeros", summed="sequence")


def _moe(model: Model, moe: Moe, name: str) -> Iterator[ModelParameter]:
    """Router and experts, the projections around these, and what every token visits. Each rank of a stage sees a part
    of the tokens, or all tokens and a part of every expert's width; so the gradients of router and projections are sums
    over these parts. A bias that balances has no gradient."""
    yield ModelParameter(name=f"{name}.router.weight", shape=(moe.experts, model.hidden), summed="tensor")
    if moe.router_bias:
        part = "router" if model.computed.router_bias_learned else "balance"
        yield ModelParameter(name=f"{name}.{part}.bias", shape=(moe.experts,), start="zeros", summed="tensor")
    for expert in range(moe.experts):
        mlp = Mlp(width=moe.expert_width, gated=moe.gated, bias=model.computed.expert_bias)
        for parameter in _mlp(model, mlp, f"{name}.experts.{expert}", moe.latent):
            yield _of_expert(parameter, expert)
    if moe.latent:
        for part, shape in {"down": (moe.latent, model.hidden), "up": (model.hidden, moe.latent)}.items():
            yield ModelParameter(name=f"{name}.latent_{part}.weight", shape=shape, summed="tensor")
    if moe.shared_width:
        yield from _mlp(model, Mlp(width=moe.shared_width, gated=moe.gated), f"{name}.shared")
    if moe.shared_gate:
        yield ModelParameter(name=f"{name}.shared_weight.weight", shape=(1, model.hidden), summed="tensor")


def _of_expert(parameter: ModelParameter, expert: int) -> ModelParameter:
    """A parameter of an expert. The last bias is cut like the widths before it: each rank adds its part of it to what
    the ranks of a stage sum."""
    if parameter.dim is None:
        return replace(parameter, expert=expert, dim=0, pieces=parameter.shape[0], summed="")
    return replace(parameter, expert=expert)


def _residual(model: Model) -> float:
    """Deviation of projections into the residual stream, smaller the more there are (GPT-2 §2.3)."""
    return float(INITIAL_DEVIATION / (2 * max(len(model.layers), 1)) ** 0.5)


def trained_parameters(model: Model, adapter: Adapter | None, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit that are trained: all, or those of its adapters."""
    parameters = unit_parameters(model, unit, vocabulary)
    if adapter is None:
        return parameters
    return tuple(part for parameter in parameters for part in _of_adapter(parameter, adapter))


def frozen_parameters(model: Model, adapter: Adapter | None, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit that are not trained: none, or those of the model beside its adapters."""
    if adapter is None:
        return ()
    parameters = unit_parameters(model, unit, vocabulary)
    return tuple(map(_in_bytes, parameters)) if adapter.frozen == "nf4" else parameters


def _in_bytes(parameter: ModelParameter) -> ModelParameter:
    """Return a matrix of a layer as blocks of bytes, other parameters as they are."""
    if target_of(parameter) is None:
        return parameter
    name, (outputs, inputs) = parameter.name.removesuffix(".weight"), parameter.shape
    shape = (outputs, inputs // NF4_BLOCK, NF4_BLOCK // 2 + NF4_SCALE_BYTES)
    return replace(parameter, name=f"{name}.{PACKED}", shape=shape, matrix=parameter)


def target_of(parameter: ModelParameter) -> Target | None:
    """Return whose adapters a parameter of the model may have, None where it is no matrix that has some."""
    owner, _, kind = parameter.name.rpartition(".")
    block = owner.split(".", 2)[-1]
    return TARGETS.get(block) if kind == "weight" and parameter.hidden and parameter.expert is None else None


def _of_adapter(matrix: ModelParameter, adapter: Adapter) -> Iterator[ModelParameter]:
    """Yield the parameters of a matrix's adapter, which start as those of PEFT: B at zero, A as `nn.Linear` would."""
    if target_of(matrix) not in adapter.targets:
        return
    name, (outputs, inputs) = matrix.name.removesuffix(".weight"), matrix.shape
    # shared experts stand between what routed ones, cut otherwise, gather and sum: parts of ranks count always
    among: Summed = "tensor" if ".moe." in name else matrix.summed if matrix.dim is None else "sequence"
    whole = ModelParameter(name=name, shape=(), beside=matrix, summed=among)
    rows = replace(whole, dim=0, pieces=matrix.pieces, summed=matrix.summed) if matrix.dim == 0 else whole
    columns = replace(whole, dim=1, pieces=matrix.pieces, summed="") if matrix.dim == 1 else whole
    shape = (adapter.rank, inputs)
    yield replace(columns, name=f"{name}.{DOWN}", shape=shape, start="uniform", deviation=inputs**-0.5)
    yield replace(rows, name=f"{name}.{UP}", shape=(outputs, adapter.rank), start="zeros")
    if adapter.dora:
        yield replace(rows, name=f"{name}.{LENGTHS}", shape=(outputs,), start="row lengths")
