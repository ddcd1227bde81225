"""The space of uniform strategies: its axes, their values, and what the user pins, options of the trainer too.

A candidate is one value for every axis that Megatron-LM's constraints allow together. The axes fall in two groups:
a *layout* (tp, cp, pp, dp, ep, etp, vpp, micro-batch) decides which GPU holds what; the *switches* (placement,
sequence parallelism, FlashAttention, overlaps, layer split, recomputation, sharding, offload) decide how it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from math import inf, nan
from types import MappingProxyType
from typing import Any

import numpy as np

from shardwright.arrays import Bools, Ints, distinct
from shardwright.cost.context import Context
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO3, Strategies
from shardwright.errors import Problem, SpecError, bad, reject, suggestion
from shardwright.plans.abilities import (
    computes_weights_apart,
    flash_attention_runs,
    tensor_parallel_overlaps,
)
from shardwright.plans.cuts import sequences_split, split_sizes, whole_sequences
from shardwright.records import record
from shardwright.rows import holding
from shardwright.search.space.parameters import AXES, SYNONYMS
from shardwright.spec.catalog.frameworks import framework_has
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import VALUES, ordered, word_of
from shardwright.spec.options import VALUES as OPTIONS

Value = int | float
OFFLOADS = (0.0, 0.25, 0.5, 0.75, 1.0)  # parts of the optimizer state in host memory; Megatron-LM takes any
MAX_CONTEXT_PARALLEL = 64

FULL: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({("recompute", "full"): ("uniform", "block")})
DEFAULT = "default"  # the framework's own
Choice = str | float | tuple[str, ...] | None
Choices = Mapping[str, tuple[Choice, ...]]


@record
class Space:
    """What is searched: the values allowed for the pinned axes (all legal values for the others). With `tp_per_type`,
    GPU types of one plan may differ in their tensor-parallel degree. `options` are those of the trainer to choose
    among; the others are the job's."""

    pins: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    tp_per_type: bool = False
    options: Choices = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise SpecError for pins that are no numbers of an axis, as `parse_pins` makes them."""
        for axis, values in self.pins.items():
            if axis not in AXES:
                raise bad("`pins=`", f"there is no parameter {axis!r}", suggestion(str(axis), AXES))
            if not isinstance(values, Sequence) or not all(isinstance(value, int | float) for value in values):
                raise bad("`pins=`", f"{values!r:.60} are no numbers of {axis}", 'plan(pins={"tp": 8}) takes words')

    def allowed(self, axis: str, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return those of `values` that the pins leave."""
        pinned = self.pins.get(axis)
        return tuple(values) if pinned is None else tuple(value for value in values if value in pinned)


def parse_pins(settings: Sequence[str]) -> Space:
    """Return the space with axes and options pinned by `name=value[,value…]` settings. Raises SpecError for what it
    cannot read."""
    pins: dict[str, tuple[Value, ...]] = {}
    options: dict[str, tuple[Choice, ...]] = {}
    problems: list[Problem] = []
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip().lstrip("$").replace("-", "_")
        axis = SYNONYMS.get(name, name)
        if not equals or not text.strip():
            problems.append(Problem(f"`set={setting}`", "is not of the form name=value", "for example `set=tp=8`"))
        elif axis not in AXES and axis not in OPTIONS:
            hint = suggestion(name, [*AXES, *OPTIONS, *SYNONYMS])
            problems.append(Problem(f"`set={setting}`", f"there is no parameter {name!r}", hint))
        elif axis in pins or axis in options:
            problems.append(Problem(f"`set={setting}`", f"{axis} is set twice", "give all its values at once"))
        else:
            try:
                words = [part for word in text.split(",") for part in FULL.get((axis, word.strip()), (word.strip(),))]
                if axis in OPTIONS:
                    options[axis] = tuple(dict.fromkeys(parse_choice(axis, word) for word in words))
                else:
                    pins[axis] = tuple(dict.fromkeys(_value(axis, word) for word in words))
            except SpecError as error:
                problems += error.problems
    reject(problems)
    return Space(pins=MappingProxyType(pins), options=MappingProxyType(options))


def _value(axis: str, word: str) -> Value:
    words = AXES[axis]
    if words:
        if word.casefold() in words:
            return words[word.casefold()]
        raise bad(f"`set={axis}={word}`", f"{word!r} is no value of {axis}", "one of " + ", ".join(words))
    try:
        value = float(word)
    except ValueError:
        raise bad(f"`set={axis}={word}`", f"{word!r} is not a number") from None
    if axis == "offload":
        if 0.0 <= value <= 1.0:
            return value
        raise bad(f"`set={axis}={word}`", "offload is a fraction", "give a number from 0 to 1")
    low = 0 if axis in ("first_layers", "last_layers", "recompute_layers") else 1
    if not (np.isfinite(value) and value == int(value) and low <= value <= 10**7):
        raise bad(f"`set={axis}={word}`", f"{axis} is a whole number of at least {low}")
    return int(value)


def pin_words(axis: str, values: Sequence[Value]) -> str:
    """Return a pin as a user writes it: sharding=zero1,zero2."""
    names = {code: name for name, code in AXES[axis].items()}
    return f"{axis}=" + ",".join(names.get(int(value), f"{value:g}") for value in values)


def within(space: Space, rows: Strategies) -> Bools:
    """Return which rows have only values that the pins allow, [N]."""
    kept = np.ones(len(rows), dtype=bool)
    for axis, values in space.pins.items():
        kept &= np.isin(rows.gpus if axis == "gpus" else getattr(rows, axis), values)
    return kept


def offload_fractions(space: Space, *, sharded: bool) -> tuple[Value, ...]:
    """Return the fractions of the optimizer state to try in host memory; pinned ones replace the usual. State that is
    not sharded stays on the GPU."""
    return space.pins.get("offload", OFFLOADS) if sharded else space.allowed("offload", (0.0,))


def told_to_shard(space: Space) -> bool:
    """Return whether even a single rank has a distributed optimizer: nothing of it to shard, so else only with state in
    host memory."""
    return not space.allowed("sharding", (UNSHARDED,))


def sharded_alone(context: Context, sharding: int) -> bool:
    """Return whether a sharding may be of a single rank, for what it moves to host memory: ZeRO-1 for the state, ZeRO-2
    and ZeRO-3 where the trainer's gradients follow, else they are ZeRO-1 by another name."""
    return sharding == ZERO1 or memory_facts(context.job.framework).gradients_follow


def searched(context: Context, space: Space) -> Space:
    """Return what of the space a search on the machines of one type goes through."""
    return _measurable(context, _runnable(context, as_needed(space, context.model, context.job)))


def _measurable(context: Context, space: Space) -> Space:
    """Return the space without what measured layers say nothing of, unless it is pinned: an optimizer in host memory,
    which would be predicted beside a measured one."""
    known = {axis: values for axis, values in context.source.only.items() if axis == "offload"}
    return replace(space, pins={**known, **space.pins})


def as_needed(space: Space, model: Model, job: Job) -> Space:
    """Return the space without what does not go with the model or with the job's options: layers that share blocks are
    of one stage; the precision-aware optimizer is a distributed one on the GPU, and where weights are kept in fp8 it is
    a distributed one; weights in host memory are sharded."""
    options = job.options
    needed = holding(
        (model.sharing, ("pp", (1,))),
        (options.precision_aware or options.param_gather == "fp8", ("sharding", (ZERO1,))),
        (options.weights_in_host, ("sharding", (ZERO3,))),
        (options.precision_aware, ("offload", (0.0,))),
    )
    return replace(space, pins={**space.pins, **{axis: space.allowed(axis, values) for axis, values in needed}})


def _runnable(context: Context, space: Space) -> Space:
    """Return the space without what the job's framework cannot run on the GPUs of the context. Measured layers
    have run."""
    runs = flash_attention_runs(context.pool.gpu, context.job)
    measured = "flash" in context.source.only
    able = holding(
        (not runs and not measured, ("flash", (0,))),
        (not runs and not measured, ("cp", (1,))),  # which Transformer Engine does with fused attention alone
        (runs and not measured and framework_has(context.job.framework, "fused_alone"), ("flash", (1,))),
        (not tensor_parallel_overlaps(context.pool, context.job), ("overlap_tp", (0,))),
    )
    return replace(space, pins={**space.pins, **{axis: space.allowed(axis, values) for axis, values in able}})


def divisors(number: int, limit: int) -> list[int]:
    """Return the divisors of `number` up to `limit`, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def tensor_parallel_degrees(context: Context) -> list[int]:
    """Return the degrees that a model can be split into whose groups tile the machines and NVLink domains of a pool."""
    return [tp for tp in _degrees_of_the_model(context, context.pool.domain_gpus) if _tiles(context.pool, tp)]


def idling_degrees(context: Context) -> list[int]:
    """Return the degrees that a model can be split into whose groups leave GPUs of every machine idle: 4 of 6."""
    pool = context.pool
    degrees = _degrees_of_the_model(context, pool.domain_gpus)
    return [tp for tp in degrees if tp < pool.gpus_per_node and not _tiles(pool, tp)]


def spread_degrees(context: Context) -> list[int]:
    """Return the degrees that a model can be split into whose groups are wider than a NVLink domain: no search looks at
    these."""
    domain = context.pool.domain_gpus
    return [tp for tp in _degrees_of_the_model(context, context.pool.gpus) if tp > domain]


def _tiles(pool: NodePool, tp: int) -> bool:
    return pool.domain_gpus % tp == 0 and tiles_machines(pool, tp)


def tiles_machines(pool: NodePool, gpus: float) -> bool:
    """Return whether groups of so many GPUs tile a machine, or machines tile a group."""
    return not pool.gpus_per_node % gpus or not gpus % pool.gpus_per_node


def _degrees_of_the_model(context: Context, most: int) -> list[int]:
    """Return degrees up to `most` that divide heads, feed-forward widths and hidden size of every layer, and that
    Megatron-LM can give key-value heads for (one divides the other). They divide what mixers of other kinds deal out
    too."""
    model = context.model
    sizes = [model.hidden, *(size for _, size in split_sizes(model.kinds))]
    return [
        tp
        for tp in divisors(model.max_heads, most)
        if all(size % tp == 0 for size in sizes)
        and all(heads % tp == 0 or tp % heads == 0 for heads in (attention.kv_heads for attention in model.attentions))
    ]


def context_parallel_degrees(context: Context) -> list[int]:
    """Return degrees for which each rank has two equal chunks of the sequence (Megatron-LM balances the causal mask
    so). What the framework does not run in parts (`plans.cuts.whole_sequences`) has one, and so have mixers that no
    trainer splits; heads of the others are dealt out, those that tensor parallelism leaves a rank."""
    if any(whole_sequences(context.model, context.job.framework)):
        return [1]
    half = context.job.seq_len // 2 if context.job.seq_len % 2 == 0 else 1
    degrees = divisors(half, min(MAX_CONTEXT_PARALLEL, context.pool.gpus))
    return [cp for cp in degrees if sequences_split(context.model, 1, cp)]


def expert_degrees(context: Context) -> list[int]:
    """Return degrees that divide the number of experts of every expert layer; 1 for dense models, and where a GPU runs
    all experts one after another."""
    experts = {kind.moe.experts for kind in context.model.kinds if kind.moe is not None}
    return (
        [1]
        if not experts or context.job.options.expert_products == "loop"
        else [d for d in divisors(min(experts), context.pool.gpus) if all(e % d == 0 for e in experts)]
    )


def schedules(context: Context, space: Space) -> tuple[Value, ...]:
    """Return whether gradients of weights are apart in pipelines of a space. They are looked at where they are asked
    for: on GPUs `train` compiles layers, but not these."""
    asked = "zero_bubble" in space.pins and computes_weights_apart(context.job)
    return space.allowed("zero_bubble", (0, 1) if asked else (0,))


def virtual_stages(context: Context, space: Space, pp: int) -> list[int]:
    """Return numbers of virtual stages per rank on a pipeline of `pp` ranks: one, and those that share the layers
    evenly, counting embedding, logits, both or neither as a layer (Megatron-LM's own choices for an even split, by
    which the first and the last may have none). A pinned number need not be even."""
    layers = context.layer_count
    if pp < 2:
        return [1]
    most = (layers + 2) // pp
    pinned = [int(value) for value in space.pins.get("vpp", ()) if 1 <= value <= most]
    even = [v for v in range(2, most + 1) if any((layers + more) % (v * pp) == 0 for more in (0, 1, 2))]
    return sorted({1, *even, *pinned})


def split_choices(context: Context, space: Space, stages: int, head_layers: float) -> tuple[Ints, Ints]:
    """Return pairs (first, last) of layers on the first and the last of `stages` virtual stages.

    Around the even share: two fewer to one more on the first, and on the last, which also does the work of
    `head_layers` layers for the logits, as many fewer as that work and one, to one more. Pinned values replace these. A
    single stage is the first and the last one, with all layers.
    """
    layers = context.layer_count
    share = layers // stages
    deepest = -(int(np.ceil(head_layers)) + 1)
    firsts = space.pins.get("first_layers", tuple(share + offset for offset in (-2, -1, 0, 1)))
    lasts = space.pins.get("last_layers", tuple(share + offset for offset in range(deepest, 2)))
    grid = np.meshgrid(np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64), indexing="ij")
    first, last = (column.ravel() for column in grid)
    legal = (first >= 0) & (last >= 0) & (first + last <= layers)
    if stages < 3:
        chosen = np.concatenate([first, layers - last]) if stages == 2 else np.array([layers])
        first = distinct(chosen[(chosen >= 0) & (chosen <= layers)])
        last = layers - first if stages == 2 else first
        legal = np.ones(len(first), dtype=bool)
        for name, column in (("first_layers", first), ("last_layers", last)):
            if name in space.pins:
                legal &= np.isin(column, space.pins[name])
    return first[legal], last[legal]


def parse_choice(name: str, word: str) -> Choice:
    """Return the value of the option `name` that a word stands for: modules are joined by `+`. Raises SpecError."""
    if word.casefold() == DEFAULT:
        return None
    if not VALUES[name]:
        return _positive(name, word)
    parts = [part.strip().casefold() for part in word.split("+")]
    several = name == "recompute_modules"
    if (len(parts) > 1 and not several) or any(part not in VALUES[name] for part in parts):
        joined = "some joined by + of " if several else "one of "
        hint = joined + ", ".join(VALUES[name]) + f", or {DEFAULT}"
        raise bad(f"`set={name}={word}`", f"{word!r} is no value of {name}", hint)
    return ordered(set(parts)) if several else parts[0]


def _positive(name: str, word: str) -> float:
    """Return the number that an option has as its value. Raises SpecError."""
    try:
        value = float(word)
    except ValueError:
        value = nan
    if not 0.0 < value < inf:
        raise bad(f"`set={name}={word}`", f"{word!r} is no number above 0", f"write 1.25, or {DEFAULT}")
    return value


def choice_words(name: str, values: tuple[Choice, ...]) -> str:
    """Return a choice as a user writes it: dispatcher=alltoall,flex."""
    return f"{name}=" + ",".join(DEFAULT if value is None else word_of(value) for value in values)


def only_job(job: Job, choices: Choices) -> Job:
    """Return the job with the options chosen. Raises SpecError where these have several values."""
    for name, values in choices.items():
        if len(values) > 1:
            raise bad(f"`set={choice_words(name, values)}`", "has several values", "give one here")
    return jobs_of(job, choices)[0]


def jobs_of(job: Job, choices: Choices) -> tuple[Job, ...]:
    """Return the job with every combination of the options chosen; those that are not chosen stay as they are."""
    rows: list[Mapping[str, Any]] = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    return tuple(replace(job, options=replace(job.options, **row)) for row in rows)
