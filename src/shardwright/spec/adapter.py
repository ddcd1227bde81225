"""`Adapter`: what is trained beside frozen weights, and beside which of them.

A weight W of m outputs and n inputs is frozen, and W + (α/r) B A is computed with, where A is r × n and B is m × r
(LoRA, arXiv 2106.09685). DoRA (arXiv 2402.09353) makes the length of each row of that sum a weight of its own. The
frozen weights of layers are in 16 bits, or kept in four (NF4 with double quantisation: QLoRA, arXiv 2305.14314) or
eight (LLM.int8, arXiv 2208.07339), and then made 16 bits wide matrix by matrix to compute with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast, get_args

from shardwright.errors import bad, suggestion
from shardwright.records import record
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.mixers import Mixer
from shardwright.spec.model import Model

Target = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts"]
TARGETS: tuple[Target, ...] = get_args(Target)
ATTENTION, LINEAR = TARGETS[:4], TARGETS[:7]
SHORT = {"attention": ATTENTION, "linear": LINEAR, "all": TARGETS}
Frozen = Literal["16-bit", "nf4", "int8"]
FORMS: dict[str, tuple[bool, Frozen]] = {  # by the name that a user writes: whether it is DoRA, and the frozen weights
    "lora": (False, "16-bit"), "dora": (True, "16-bit"), "qlora": (False, "nf4"), "lora8bit": (False, "int8"),
    "qdora": (True, "nf4"),
}  # fmt: skip
USUAL_RANK = 16
MOST_RANK = 4096
NF4_BLOCK, NF4_SCALE_BYTES = 64, 4  # weights with one scale, and its bytes before it is quantised itself
NF4_WIDENED = 1 << 22  # weights that `train` makes wide at a time, through their numbers in fp32
# Bits of a frozen weight: four with a scale of eight bits for each 64 of them and one in fp32 for each 256 of these
# scales (arXiv 2305.14314 §3); eight with a scale in fp32 for each row, which is nothing.
NF4_SCALES = (8.0 / 64 + 32.0 / (64 * 256)) / 8.0
FROZEN_BYTES: dict[Frozen, float] = {"16-bit": 2.0, "nf4": 0.5 + NF4_SCALES, "int8": 1.0}
# Of these, what no trainer shards: it stands beside the parameter (bitsandbytes/functional.py 0.50: QuantState).
WHOLE_BYTES: dict[Frozen, float] = {"16-bit": 0.0, "nf4": NF4_SCALES, "int8": 0.0}
BLOCK_BYTES = 0.5 + NF4_SCALE_BYTES / NF4_BLOCK  # where a scale stays in fp32, and is cut with its block


@record
class Adapter:
    """Adapters of `rank` beside the `targets`, in the order of `TARGETS`, by the names that Llama's matrices have in
    transformers; those of other families mean theirs of the same purpose, and `experts` the routed experts'. `alpha` is
    α, twice the rank where None."""

    rank: int = USUAL_RANK
    dora: bool = False
    frozen: Frozen = "16-bit"
    targets: tuple[Target, ...] = LINEAR
    alpha: float | None = None

    @property
    def form(self) -> str:
        """What it is, as a user writes it before the rank."""
        return next((name for name, pair in FORMS.items() if pair == (self.dora, self.frozen)), "dora8bit")

    @property
    def name(self) -> str:
        """Form and rank, such as `lora:16`."""
        return f"{self.form}:{self.rank}"

    @property
    def scale(self) -> float:
        """By what the product of the adapter is multiplied."""
        return (2.0 * self.rank if self.alpha is None else self.alpha) / self.rank

    @property
    def on_attention_alone(self) -> bool:
        return not set(self.targets) - set(ATTENTION)

    @property
    def quantised(self) -> bool:
        return self.frozen != "16-bit"


class Matrix(NamedTuple):
    """A matrix of a layer that may have an adapter: its target, its inputs and outputs, which of the two
    tensor-parallel ranks split, if any, and how many of its kind a layer has."""

    target: Target
    inputs: int
    outputs: int
    split: Literal["inputs", "outputs", ""]
    copies: int = 1


def matrices(model: Model, layer: Layer) -> Iterator[Matrix]:
    """Yield the linear matrices of a layer, those that it shares with others too. A router and the gate of shared
    experts have none beside them."""
    hidden = model.hidden
    yield from _beside_shared(layer, hidden)
    if layer.attention is not None:
        yield from _of_attention(layer.attention, hidden, layer.attention.inputs(hidden))
    if layer.cross is not None:
        yield from _of_attention(layer.cross, hidden, hidden)
    if layer.mixer is not None:
        yield from _of_mixer(layer.mixer, hidden)
    shared = layer.moe.shared_width if layer.moe else 0
    width, gated = (layer.mlp.width, layer.mlp.gated) if layer.mlp else (shared, bool(layer.moe and layer.moe.gated))
    if width:
        yield from _of_feed_forward(hidden, width, gated=gated)
    if layer.embedded:
        yield Matrix("up_proj", hidden, layer.embedded, "")
        yield Matrix("down_proj", layer.embedded, hidden, "")
    if layer.moe is not None:
        outside = layer.moe.latent or hidden
        if layer.moe.latent is not None:  # the projections to the width of experts, and back
            yield Matrix("up_proj", hidden, outside, "")
            yield Matrix("down_proj", outside, hidden, "")
        for matrix in _of_feed_forward(outside, layer.moe.expert_width, gated=layer.moe.gated):
            yield matrix._replace(target="experts", copies=layer.moe.experts)


def held_matrices(model: Model) -> Iterator[tuple[Matrix, int]]:
    """Yield the linear matrices of all layers, and how many of each there are: those that layers share once a block."""
    for kind, times in Counter(model.kind_of_layer).items():
        layer = model.kinds[kind]
        unshared = replace(layer, attention=None, mlp=None, shared=None) if layer.shared else layer
        beside = _beside_shared(layer, model.hidden)
        yield from ((matrix, times) for matrix in (*matrices(model, unshared), *beside))
    if model.shared_layer is not None:
        block = replace(model.shared_layer, mixer=None, shared=None)
        yield from ((matrix, model.shared_blocks or 1) for matrix in matrices(model, block))


def _beside_shared(layer: Layer, hidden: int) -> Iterator[Matrix]:
    """What a layer has of its own beside a block that it shares: the first product takes what the block gives."""
    for place, product in enumerate(layer.shared_products(hidden)):
        target: Target = "up_proj" if place else "o_proj"
        yield Matrix(target, product.inputs, product.outputs, "" if product.cut == "whole" else "outputs")


def _of_attention(attention: Attention, hidden: int, inputs: int) -> Iterator[Matrix]:
    mla = attention.latent
    if mla is None:
        names: tuple[Target, ...] = ("q_proj", "k_proj", "v_proj")
        for name, width in zip(names, attention.projected_widths, strict=False):
            yield Matrix(name, inputs, width, "outputs")
    else:
        if mla.query_rank is not None:
            yield Matrix("q_proj", hidden, mla.query_rank, "")
        yield Matrix("q_proj", mla.query_rank or hidden, attention.query_width, "outputs")
        yield Matrix("k_proj", hidden, mla.kv_rank + mla.rope_head_dim, "")
        widths = attention.heads * (mla.nope_head_dim + attention.value_head_dim)
        yield Matrix("v_proj", mla.kv_rank, widths, "outputs")
    if attention.gate is not None:
        yield Matrix("q_proj", hidden, attention.gate_width, "outputs")
    yield Matrix("o_proj", attention.out_width, hidden, "inputs")


def _of_mixer(mixer: Mixer, hidden: int) -> Iterator[Matrix]:
    """What a mixer goes in by is a query projection here, what it comes out by that of the output."""
    split: dict[str, Literal["inputs", "outputs", ""]] = {"columns": "outputs", "rows": "inputs", "whole": ""}
    for product in mixer.work(hidden).products:
        target: Target = "o_proj" if product.cut == "rows" else "q_proj"
        yield Matrix(target, product.inputs, product.outputs, split[product.cut])


def _of_feed_forward(hidden: int, width: int, *, gated: bool) -> Iterator[Matrix]:
    if gated:
        yield Matrix("gate_proj", hidden, width, "outputs")
    yield Matrix("up_proj", hidden, width, "outputs")
    yield Matrix("down_proj", width, hidden, "inputs")


def adapted(model: Model, layer: Layer, adapter: Adapter) -> list[Matrix]:
    """Return the matrices of a layer that have an adapter."""
    return [matrix for matrix in matrices(model, layer) if matrix.target in adapter.targets]


def matrix_adapter_parameters(matrix: Matrix, adapter: Adapter) -> int:
    """Return the weights of the adapter of one matrix: r (n + m), with DoRA also m."""
    return adapter.rank * (matrix.inputs + matrix.outputs) + adapter.dora * matrix.outputs


@lru_cache(maxsize=256)
def adapter_parameters(model: Model, adapter: Adapter) -> int:
    """Return the weights of all adapters of a model."""
    by_kind = [
        sum(matrix.copies * matrix_adapter_parameters(matrix, adapter) for matrix in adapted(model, kind, adapter))
        for kind in model.kinds
    ]
    return sum(by_kind[kind] for kind in model.kind_of_layer)


@lru_cache(maxsize=256)
def least_adapter_share(model: Model, adapter: Adapter) -> float:
    """Return the weights of adapters over those beside which they stand, in the layer where these are fewest."""
    return min(
        sum(matrix.copies * matrix_adapter_parameters(matrix, adapter) for matrix in adapted(model, kind, adapter))
        / model.layer_parameters(kind)
        for kind in model.kinds
    )


def peft_fields(adapter: Adapter, modules: Sequence[str] | str) -> dict[str, Any]:
    """Return the fields of PEFT's `LoraConfig` for adapters beside `modules`, and what kind it is."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.rank,
        "lora_alpha": adapter.scale * adapter.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": adapter.dora,
        "target_modules": modules,
    }


def parse_adapter(text: str, targets: str | Sequence[str] | None = None) -> Adapter:
    """Return the adapter that `lora:16`, `dora:16`, `qlora:16`, `qdora:16` or `lora8bit:16` stands for, beside the
    matrices that `targets` names, joined by `+` (`attention`, `linear` and `all` stand for several). Raises SpecError
    for anything else."""
    match = re.fullmatch(r"([a-z0-9]+)(?::([0-9]{1,9}))?", text.strip().casefold())
    if match is None or match[1] not in FORMS:
        form = text.partition(":")[0]
        raise bad("adapter", f"unknown adapter {text!r}", f"write {', '.join(FORMS)} with a rank, e.g. lora:16"
                  if form in FORMS else suggestion(form, FORMS))  # fmt: skip
    rank = int(match[2] or USUAL_RANK)
    if not 1 <= rank <= MOST_RANK:
        raise bad("adapter", f"has rank {rank}", f"write a rank of 1 to {MOST_RANK}, e.g. {match[1]}:16")
    dora, frozen = FORMS[match[1]]
    return Adapter(rank=rank, dora=dora, frozen=frozen, targets=_targets(targets))


def _targets(words: str | Sequence[str] | None) -> tuple[Target, ...]:
    if words is None:
        return LINEAR
    chosen: set[str] = set()
    for word in words.replace(",", "+").split("+") if isinstance(words, str) else words:
        if word not in SHORT and word not in TARGETS:
            raise bad("adapter_targets", f"unknown target {word!r}", suggestion(word, [*SHORT, *TARGETS]))
        chosen.update(SHORT.get(word, (cast("Target", word),)))
    return tuple(target for target in TARGETS if target in chosen)
