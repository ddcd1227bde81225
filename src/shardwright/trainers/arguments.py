"""What a call of `plan` is told, in the forms that Python has for it: one value or several, text or object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardwright.errors import bad
from shardwright.search.rules.check import schema_with_gpus
from shardwright.search.rules.rules import Rule, check_rules, parse_rules
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.cluster import Cluster

PINS = 'give values by name: pins={"tp": 8, "recompute": ["none", "selective"]}'


def pinned(space: Space | None, pins: Mapping[str, Any] | None) -> Space:
    """Return a space with settings pinned to one or more values. Raises SpecError for what is none, and beside a space
    that has pins of its own."""
    if not pins:
        return space or Space()
    if not isinstance(pins, Mapping):
        raise bad("`pins=`", f"{pins!r:.60} has no values by name", PINS)
    if space is not None and space != Space():
        raise bad("`pins=`", "are given beside a space", "pin them in the space: Space(pins={…})")
    said = {name: _listed(value) for name, value in pins.items()}
    if unsaid := [name for name, values in said.items() if not values]:
        raise bad("`pins=`", f"{unsaid[0]!r} has no value", PINS)
    return parse_pins([f"{name}={','.join(map(_word, values))}" for name, values in said.items()])


def rules_of(rules: str | Rule | Sequence[Rule | str] | None, cluster: Cluster) -> tuple[Rule, ...]:
    """Return rules, those of them read that are text. Raises SpecError for what is none, and as `parse_rules` and
    `check_rules` do."""
    listed = _listed(rules)
    if strange := [rule for rule in listed if not isinstance(rule, str | Rule)]:
        raise bad("`rules=`", f"{strange[0]!r:.60} is no rule", 'write it as text: rules=["$tp > 8"]')
    texts = [rule for rule in listed if isinstance(rule, str)]
    read = parse_rules("\n".join(texts), "`rules=`")
    check_rules(read, schema_with_gpus([pool.gpu.kind for pool in cluster.pools]))
    return (*(rule for rule in listed if isinstance(rule, Rule)), *read)


def named(argument: str, names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names that an argument gives. Raises SpecError for what is no name."""
    listed = _listed(names)
    if strange := [name for name in listed if not isinstance(name, str)]:
        raise bad(argument, f"{strange[0]!r:.60} is no name", 'write it as text: framework="megatron"')
    return listed


def _listed(value: Any) -> tuple[Any, ...]:
    """Return the values of an argument that may be one, several or none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def _word(value: Any) -> str:
    return str(value).casefold() if isinstance(value, bool) else str(value)
