"""The user's rules, applied to layouts and to complete strategies; rules of one axis alone also as pins.

A search that keeps pins keeps the rules that pins stand for (`rules_as_pins`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from shardwright.arrays import Array, Bools, Ints
from shardwright.cost.context import Context
from shardwright.cost.strategies import (
    BLOCK,
    RANK_ORDERS,
    SHARDING,
    UNIFORM,
    UNSHARDED,
    Layouts,
    Strategies,
    strategies,
)
from shardwright.plans.findings import Cause, Rejection
from shardwright.records import record
from shardwright.search.rules.evaluation import Column
from shardwright.search.space.axes import OFFLOADS, Space, Value
from shardwright.search.space.parameters import AXES, AXIS_OF, BEYOND_LAYOUT
from shardwright.spec.options import VALUES, said

if TYPE_CHECKING:  # a search without rules does without the parser and its tree
    from shardwright.search.rules.rules import Rule

NONE_OTHER: Mapping[str, int] = MappingProxyType({})
GRANULARITY = ("none", "selective", "full")
METHOD = ("uniform", "block")
NODES = "num_nodes"  # follows from the number of GPUs but for machines in part: such a rule counts as a pin, too
UNSAID = ("recompute_layers",)  # a rule of which drops what has no such value


@record
class Filters:
    """Rules that drop candidates."""

    rules: tuple[Rule, ...] = ()

    @property
    def axes(self) -> frozenset[str]:
        """The axes of which the rules speak, beyond the layout."""
        named = {AXIS_OF[name] for rule in self.rules for name in rule.variables & BEYOND_LAYOUT}
        return frozenset(named | ({"recompute"} if "recompute_layers" in named else set()))

    def narrowings(self, context: Context, space: Space) -> Iterator[tuple[Rejection, Space]]:
        """Yield, for each rule that speaks of one axis alone, beyond the layout, the space with the pins that it and
        those before it amount to: what they drop need not be enumerated. A rule against all that is not sharded is
        none: such pins also shard what is on a single rank."""
        for rule in self.rules:
            of_axis = _of_one_axis(context, rule, space, {}) if rule.variables <= BEYOND_LAYOUT else None
            if of_axis is None:
                continue
            axis, values, kept = of_axis
            if len(kept) < len(values) and (axis != "sharding" or UNSHARDED in kept or not kept):
                space = replace(space, pins={**space.pins, axis: kept})
                yield Rejection(Cause.RULE, rule.name), space

    def layout_masks(self, context: Context, rows: Layouts) -> Iterator[tuple[Rejection, Bools]]:
        """Yield why and which rows are dropped: for want of measured times, and by each rule that speaks of the layout
        alone. The caller drops these rows before it asks for the next mask, which then has fewer."""
        mask = ~context.timed(rows)
        yield Rejection(Cause.UNMEASURED), mask
        kept = rows.take(~mask)
        for rule in self.rules:
            if not rule.variables & BEYOND_LAYOUT:
                mask = _evaluated(rule, layout_columns(context, kept), len(kept))
                yield Rejection(Cause.RULE, rule.name), mask
                kept = kept.take(~mask)

    def masks(self, context: Context, rows: Strategies) -> Iterator[tuple[Rejection, Bools]]:
        """Yield the same for complete strategies and the rules that speak of more than the layout."""
        rules = [rule for rule in self.rules if rule.variables & BEYOND_LAYOUT]
        columns = strategy_columns(context, rows) if rules else {}
        left = np.ones(len(rows), dtype=bool)
        for rule in rules:
            mask = _evaluated(rule, columns, len(rows))[left]
            yield Rejection(Cause.RULE, rule.name), mask
            left[left] = ~mask

    def mask(self, context: Context, rows: Strategies, counts: Mapping[str, int] = NONE_OTHER) -> Bools:
        """Return which of `rows` are dropped, [N]. `counts` are variables that do not follow from a row where it is a
        part of a plan."""
        dropped = ~context.timed(rows)
        columns = strategy_columns(context, rows) | {name: number(value) for name, value in counts.items()}
        for rule in self.rules:
            dropped |= _evaluated(rule, columns, len(rows))
        return dropped


def _evaluated(rule: Rule, columns: Mapping[str, Column], size: int) -> Bools:
    return np.array(np.broadcast_to(rule.holds(columns), (size,)))


def number(value: Array | float) -> Column:
    """Return a variable that is a number for every candidate."""
    return Column(values=np.asarray(value), words=None, none=None)


def layout_columns(context: Context, rows: Layouts | Strategies) -> dict[str, Column]:
    """Return the variables that a layout decides."""
    pool, model, job = context.pool, context.model, context.job
    given = said(job.options)
    return {
        "tensor_model_parallel_size": number(rows.tp),
        "pipeline_model_parallel_size": number(rows.pp),
        "data_parallel_size": number(rows.dp),
        "context_parallel_size": number(rows.cp),
        "expert_model_parallel_size": number(rows.ep),
        "expert_tensor_parallel_size": number(rows.etp),
        "virtual_stages": number(rows.vpp),
        "micro_batch_size": number(rows.micro_batch),
        "num_micro_batches": number(job.global_batch // (rows.dp * rows.micro_batch)),
        "global_batch_size": number(job.global_batch),
        "seq_length": number(job.seq_len),
        "num_gpus": number(rows.gpus),
        "num_nodes": number(-(-rows.gpus // pool.gpus_per_node)),
        "gpus_per_node": number(pool.gpus_per_node),
        "num_layers": number(len(model.layers)),
        "hidden_size": number(model.hidden),
        "num_attention_heads": number(model.max_heads),
        "num_query_groups": number(min((attention.kv_heads for attention in model.attentions), default=0)),
        "gpu": Column(values=np.asarray(0), words=(pool.gpu.kind,), none=None),
        **{
            name: _option(given.get(name)) if words else _number(getattr(job.options, name))
            for name, words in VALUES.items()
        },
    }


def _number(value: float | None) -> Column:
    return Column(values=np.asarray(value or 0.0), words=None, none=np.asarray(value is None))


def _option(word: str | None) -> Column:
    return Column(values=np.asarray(0), words=(word or "",), none=np.asarray(word is None))


def strategy_columns(context: Context, rows: Strategies) -> dict[str, Column]:
    """Return all variables of complete strategies."""

    def plain(values: Array) -> Column:
        return Column(values=values, words=None, none=None)

    def word(values: Ints, words: tuple[str, ...], none: Bools | None = None) -> Column:
        return Column(values=values, words=words, none=none)

    granularity = np.array([0, 1, 2, 2])[rows.recompute]
    full = (rows.recompute == UNIFORM) | (rows.recompute == BLOCK)
    return {
        **layout_columns(context, rows),
        "sequence_parallel": plain(rows.sequence_parallel),
        "use_flash_attn": plain(rows.flash),
        "tp_comm_overlap": plain(rows.overlap_tp),
        "overlap_p2p_comm": plain(rows.overlap_pp),
        "zero_bubble": plain(rows.zero_bubble),
        "overlap_grad_reduce": plain(rows.overlap_grad),
        "overlap_param_gather": plain(rows.overlap_param),
        "recompute_granularity": word(granularity, GRANULARITY),
        "recompute_method": word(np.where(rows.recompute == BLOCK, 1, 0), METHOD, ~full),
        "recompute_num_layers": Column(values=rows.recompute_layers, words=None, none=~full),
        "sharding": word(rows.sharding, SHARDING),
        "use_distributed_optimizer": plain(rows.sharding != UNSHARDED),
        "optimizer_offload_fraction": plain(rows.offload),
        "first_stage_layers": plain(rows.first_layers),
        "last_stage_layers": plain(rows.last_layers),
        "rank_order": word(rows.rank_order, RANK_ORDERS),
    }


def rules_as_pins(
    contexts: Sequence[Context], space: Space, filters: Filters, counts: Mapping[str, range]
) -> tuple[Space, Filters]:
    """Return the space with the pins that rules amount to, and the rules that are left. `counts` are all values of axes
    that are numbers."""
    pins, left = dict(space.pins), []
    alike = len({context.pool.gpus_per_node for context in contexts}) == 1
    for rule in filters.rules:
        of_axis = _of_one_axis(contexts[0], rule, space, counts, machines_alike=alike)
        if of_axis is None or NODES in rule.variables:
            left.append(rule)
        if of_axis is not None:
            axis, values, kept = of_axis
            if len(kept) < len(values):
                pins[axis] = tuple(value for value in pins.get(axis, kept) if value in kept)
    return replace(space, pins=pins), Filters(rules=tuple(left))


def _of_one_axis(
    context: Context, rule: Rule, space: Space, counts: Mapping[str, range], *, machines_alike: bool = False
) -> tuple[str, tuple[Value, ...], tuple[Value, ...]] | None:
    """Return the axis that a rule speaks of alone, the values that it has in the space, and those that the rule keeps;
    None where there is no such axis, or its values are not known. On `machines_alike` their number is one of GPUs."""
    axes = {"gpus" if name == NODES and machines_alike else AXIS_OF.get(name) for name in rule.variables}
    (axis,) = axes if len(axes) == 1 else (None,)
    values = None if axis is None or axis in UNSAID else _values(axis, space, counts)
    return None if axis is None or values is None else (axis, values, tuple(_kept(context, rule, axis, values)))


def _values(axis: str, space: Space, counts: Mapping[str, range]) -> tuple[Value, ...] | None:
    if axis in space.pins:
        return space.pins[axis]
    if axis == "offload":
        return OFFLOADS
    return tuple(counts.get(axis, ())) or tuple(dict.fromkeys(AXES[axis].values())) or None


def _kept(context: Context, rule: Rule, axis: str, values: tuple[Value, ...]) -> Iterator[Value]:
    """Yield the values that a rule does not drop."""
    rows = strategies([{"tp": value} if axis == "gpus" else {axis: value} for value in values])
    dropped = rule.holds(strategy_columns(context, rows))
    for value, gone in zip(values, dropped.tolist() if dropped.ndim else [bool(dropped)] * len(values), strict=True):
        if not gone:
            yield value
