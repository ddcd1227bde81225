"""Rules that speak of one axis alone, as pins to the values that they leave: a search that keeps pins keeps these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.cost.context import Context
from shardwright.cost.strategies import strategies
from shardwright.search.rules.filters import Filters, strategy_columns
from shardwright.search.space.axes import OFFLOADS, Space, Value
from shardwright.search.space.parameters import AXES, AXIS_OF

if TYPE_CHECKING:
    from shardwright.search.rules.rules import Rule

NODES = "num_nodes"  # follows from the number of GPUs but for machines in part: such a rule counts as a pin, too
UNSAID = ("recompute_layers",)  # a rule of which drops what has no such value


def rules_as_pins(
    contexts: Sequence[Context], space: Space, filters: Filters, counts: Mapping[str, range]
) -> tuple[Space, Filters]:
    """Return the space with the pins that rules amount to, and the rules that are left. `counts` are all values of axes
    that are numbers."""
    pins, left = dict(space.pins), []
    alike = len({context.pool.gpus_per_node for context in contexts}) == 1
    for rule in filters.rules:
        axes = {"gpus" if name == NODES and alike else AXIS_OF.get(name) for name in rule.variables}
        (axis,) = axes if len(axes) == 1 else (None,)
        values = None if axis is None or axis in UNSAID else _values(axis, space, counts)
        if axis is None or values is None or NODES in rule.variables:
            left.append(rule)
        if axis is not None and values is not None:
            kept = tuple(_kept(contexts[0], rule, axis, values))
            if len(kept) < len(values):
                pins[axis] = tuple(value for value in pins.get(axis, kept) if value in kept)
    return replace(space, pins=pins), Filters(rules=tuple(left))


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
