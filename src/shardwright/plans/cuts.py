"""The parts into which degrees cut a model's matrices and sequences, and which parts the trainer of a framework takes:
one answer for search, check and exporters.

Tensor cores read rows that begin at multiples of 16 bytes: of matrices in fp8, and in any precision those of experts,
whose products `train` groups; in NF4 a block is 64 columns. Transformer Engine's products in fp8 take rows in eights
and columns in sixteens, both in 32s in mxfp8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Ints
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding
from shardwright.spec.adapter import NF4_BLOCK
from shardwright.spec.catalog.frameworks import MEGATRON, OWN
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model

WHOLE_ROW_BYTES = 16
FP8_ROWS, FP8_COLUMNS, MXFP8 = 8, 16, 32
Numbers = Ints | int
Size = tuple[str, int, Numbers]  # in words, of all ranks together, and the ways it is cut


@record(kw_only=False)
class Cut:
    """Degrees and micro-batches, [N] or a number each, that cut matrices and sequences."""

    tp: Numbers
    cp: Numbers
    etp: Numbers
    micro_batch: Numbers


@record(kw_only=False)
class Part:
    """Of what a rank has how much, `sizes` [N] or a number, under a cut; `whole` is what all ranks have together, and
    a trainer takes whole multiples of `multiple`. `of` says what they are sizes of: fp8, nf4, experts or tokens."""

    of: str
    what: str
    whole: int
    sizes: Numbers
    multiple: int


def misfits(plan: Plan, framework: str) -> list[tuple[str, str, int, int]]:
    """Return of what, and of which of its parts, some rank of a plan has how much, where the trainers of a framework
    take multiples alone, and of what."""
    degrees = [(stage.tensor_parallel, stage.context_parallel, stage.expert_tensor_parallel) for stage in plan.stages]
    tp, cp, etp = np.array(list(dict.fromkeys(degrees)), dtype=np.int64).T
    job = replace(plan.job, framework=framework)
    odd = {
        (part.of, part.what, int(size), part.multiple)
        for part in parts(plan.model, job, Cut(tp, cp, etp, plan.micro_batch))
        for size in np.atleast_1d(part.sizes)
        if size % part.multiple
    }
    return sorted(odd)


def parts(model: Model, job: Job, cut: Cut) -> Iterator[Part]:
    """Yield the parts that the trainers of a job's framework take in multiples alone."""
    if job.framework == OWN:
        yield from _of_train(model, job, cut)
    elif job.framework == MEGATRON and job.precision == "fp8":
        yield from _of_transformer_engine(model, job, cut)


def cuts_fit(model: Model, job: Job, cut: Cut) -> Bools | bool:
    """Return which cuts make no part that the trainers of a job's framework do not take, [N] or one answer for all.
    What they do not take whole either is no fault of a cut."""
    fit: Bools | bool = True
    for part in parts(model, job, cut):
        if part.whole % part.multiple == 0:
            fit = fit & (part.sizes % part.multiple == 0)
    return fit


def whole_sequences(model: Model, framework: str) -> Iterator[str]:
    """Yield what of a model no trainer of a framework runs in parts of sequences."""
    ours = framework == OWN
    yield from holding(
        (not model.causal, "attention to later tokens"),
        (ours and model.computed.sinks, "attention with sinks"),
        (ours and any(kind.mixer for kind in model.kinds), "layers without attention"),
    )


def split_sizes(kinds: Iterable[Layer]) -> tuple[tuple[str, int], ...]:
    """Return the sizes that tensor parallelism splits in layers of some kinds, with their names; equal ones once."""
    sizes: list[tuple[str, int]] = []
    for kind in kinds:
        moe = kind.moe
        sizes += [("the attention heads", kind.attention.heads)] if kind.attention else []
        sizes += kind.mixer.splits if kind.mixer else ()
        sizes += [("the feed-forward width", kind.mlp.width)] if kind.mlp else []
        sizes += [("the shared experts' width", moe.shared_width)] if moe and moe.shared_width else []
    return tuple(dict.fromkeys(sizes))


def sequences_split(model: Model, tp: Numbers, cp: Numbers) -> Bools | bool:
    """Return which degrees leave every mixer, whose heads context parallelism deals out where its sequence is in parts,
    whole heads on a rank, [N] or one answer for all."""
    split: Bools | bool = True
    for mixer in dict.fromkeys(kind.mixer for kind in model.kinds if kind.mixer):
        heads = mixer.context_heads
        split = split & ((cp == 1) | (heads // tp % cp == 0 if heads else False))
    return split


def _of_train(model: Model, job: Job, cut: Cut) -> Iterator[Part]:
    hidden: Size = ("the hidden size", model.hidden, 1)
    multiple = WHOLE_ROW_BYTES // (4 if job.precision == "fp32" else 2)
    for moe in (kind.moe for kind in model.kinds if kind.moe):
        outside: Size = ("the width of the experts' tokens", moe.latent, 1) if moe.latent else hidden
        yield from _parts("experts", (outside, ("the experts' width", moe.expert_width, cut.etp)), multiple)
    if job.nf4:
        for kind in model.kinds:
            yield from _parts("nf4", _inputs(kind, model.hidden, cut.tp), NF4_BLOCK)
    if job.precision == "fp8":
        yield from _parts("fp8", (hidden, ("a sequence", job.seq_len, cut.cp)), WHOLE_ROW_BYTES)
        for kind in model.kinds:
            yield from _parts("fp8", _matrices(kind, model.hidden, cut.tp), WHOLE_ROW_BYTES)


def _parts(of: str, sizes: Iterable[Size], multiple: int) -> Iterator[Part]:
    for what, whole, degree in sizes:
        yield Part(of, what, whole, whole // degree, multiple)


def _matrices(kind: Layer, hidden: int, tp: Numbers) -> Iterator[Size]:
    """Yield what the matrices of a layer beside its experts have of rows or columns, and by what they are cut."""
    attention = kind.attention
    yield from _in_and_out(kind, tp)
    if attention is not None:
        keys = np.minimum(tp, attention.kv_heads)  # ranks beyond have the same heads
        yield from (
            ("the queries", attention.query_width, tp),
            ("the keys", attention.key_width, keys),
            ("the values", attention.value_width, keys),
            ("the gates of attention", attention.gate_width, tp),
        )
    for product in kind.mixer.work(hidden).products if kind.mixer is not None else ():
        size = product.inputs if product.cut == "rows" else product.outputs
        yield "what a mixer takes", size, 1 if product.cut == "whole" else tp


def _inputs(kind: Layer, hidden: int, tp: Numbers) -> Iterable[Size]:
    """Return what the matrices of a layer beside its experts have of columns, and by what these are cut."""
    return ("the hidden size", hidden, 1), *_in_and_out(kind, tp)


def _in_and_out(kind: Layer, tp: Numbers) -> tuple[Size, ...]:
    """Return the sizes that matrices of a layer beside its experts both give and take; 0 for those that it has not."""
    attention = kind.attention
    latent = attention.latent if attention else None
    return (
        ("the output of attention", attention.out_width if attention else 0, tp),
        ("the latent keys", latent.kv_rank if latent else 0, 1),
        ("the latent queries", (latent.query_rank or 0) if latent else 0, 1),
        ("the feed-forward width", kind.mlp.width if kind.mlp else 0, tp),
        ("the shared experts' width", kind.moe.shared_width if kind.moe else 0, tp),
    )


def _of_transformer_engine(model: Model, job: Job, cut: Cut) -> Iterator[Part]:
    columns, rows = (MXFP8, MXFP8) if job.fp8_recipe == "mxfp8" else (FP8_COLUMNS, FP8_ROWS)
    yield from _parts("fp8", (("model.hidden", model.hidden, 1),), columns)
    for kind in model.kinds:
        sizes: tuple[Size, ...] = (
            ("the attention output of a rank", kind.attention.out_width if kind.attention else 0, cut.tp),
            ("the expert width of a rank", kind.moe.expert_width if kind.moe else 0, cut.etp),
            ("the feed-forward width of a rank", kind.mlp.width if kind.mlp else 0, cut.tp),
        )
        yield from _parts("fp8", sizes, columns)
    tokens = job.sample_tokens * cut.micro_batch // cut.cp
    yield Part("tokens", "tokens of a rank", job.tokens_per_iteration, tokens, rows)
