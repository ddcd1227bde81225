"""Frozen dataclasses to plain JSON data and back, by their type hints, with every fault of a document named.
Assumptions are one line of text."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shardwright.errors import Problem, suggestion
from shardwright.spec.cluster import Assumption
from shardwright.spec.text.fields import shown

NOTHING: Any = object()
LARGEST_WHOLE = 2**53


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Return the resolved type of each field of the dataclass `cls`, in order."""
    resolved = get_type_hints(cls)
    return {field.name: resolved[field.name] for field in dataclasses.fields(cls)}


def encode(value: Any, kind: Any) -> Any:
    """Return the JSON data of `value`, which has the type `kind`.

    A field whose value is its default is left out where that is None or a dataclass; numbers of a float field are
    written as floats, so that equal values give equal text. One of several dataclasses is named by its class.
    """
    if kind is Assumption:
        return str(value)
    if dataclasses.is_dataclass(kind):
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        pairs = ((name, getattr(value, name), hint) for name, hint in hints(kind).items())  # type: ignore[arg-type]
        return {name: encode(item, hint) for name, item, hint in pairs if not _left_out(item, defaults[name])}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        kinds = _kinds(arguments)
        return encode(value, kinds[0]) if len(kinds) == 1 else {type(value).__name__: encode(value, type(value))}
    if origin is tuple:
        item_kinds = [arguments[0]] * len(value) if Ellipsis in arguments else list(arguments)
        return [encode(item, item_kind) for item, item_kind in zip(value, item_kinds, strict=True)]
    return float(value) if kind is float else value


def _left_out(value: Any, default: Any) -> bool:
    """Whether a field is not written."""
    return (default is None or dataclasses.is_dataclass(default)) and value == default


def decode(data: object, kind: Any, place: str, problems: list[Problem]) -> Any:
    """Return the value of type `kind` that `data` stands for, or `NOTHING` after adding what is wrong to `problems`.

    Numbers have to be finite and not negative; there is no conversion of types, but for whole numbers in float fields.
    """
    if kind is Assumption:
        text = decode(data, str, place, problems)
        return text if text is NOTHING else Assumption.of(text)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return decode_fields(data, kind, place, problems)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        kinds = _kinds(arguments)
        return (
            decode(data, kinds[0], place, problems) if len(kinds) == 1 else _decode_kind(data, kinds, place, problems)
        )
    if origin is tuple:
        return _decode_tuple(data, arguments, place, problems)
    if origin is Literal:
        if isinstance(data, str) and data in arguments:
            return data
        return wrong(problems, place, f"is {shown(data)}", suggestion(data if isinstance(data, str) else "", arguments))
    return _decode_scalar(data, kind, place, problems)


def decode_fields(
    data: object, cls: type, place: str, problems: list[Problem], ready: Mapping[str, Any] | None = None
) -> Any:
    """Return the dataclass `cls` made of the mapping `data`; the fields in `ready` are taken as they are."""
    kinds = hints(cls)
    if not isinstance(data, Mapping):
        return wrong(problems, place, f"expected a mapping, got {shown(data)}", "with the keys " + ", ".join(kinds))
    before = len(problems)
    reject_unknown(data, kinds, place, problems)
    values = dict(ready or {})
    for field in dataclasses.fields(cls):
        if field.name in values:
            continue
        if field.name in data:
            values[field.name] = decode(data[field.name], kinds[field.name], join(place, field.name), problems)
        elif field.default is dataclasses.MISSING:
            hint = "add it; `shardwright plan` writes every key"
            wrong(problems, join(place, field.name), "is missing", hint)
    if len(problems) > before or any(value is NOTHING for value in values.values()):
        return NOTHING
    return cls(**values)


def reject_unknown(
    data: Mapping[Any, object], known: Mapping[str, object], place: str, problems: list[Problem]
) -> None:
    """Add a problem for each key of `data` that is not in `known`."""
    for key in data:
        if key not in known:
            wrong(problems, join(place, str(key)), "unknown key", suggestion(str(key), known))


def join(place: str, key: str) -> str:
    """Return the place of `key` in the mapping at `place` (`plan.json: replicas[0].count`)."""
    return f"{place}{'.' if ': ' in place else ': '}{key}"


def wrong(problems: list[Problem], place: str, message: str, hint: str) -> Any:
    """Add a problem and return `NOTHING`."""
    problems.append(Problem(place, message, hint))
    return NOTHING


def _kinds(arguments: tuple[Any, ...]) -> list[Any]:
    """Return what a union allows beside None."""
    return [argument for argument in arguments if argument is not type(None)]


def _decode_kind(data: object, kinds: list[Any], place: str, problems: list[Problem]) -> Any:
    """Return one of several dataclasses, which a mapping names by its only key."""
    names = {kind.__name__: kind for kind in kinds}
    if not isinstance(data, Mapping) or len(data) != 1:
        return wrong(problems, place, f"expected a mapping with one key, got {shown(data)}", "of " + ", ".join(names))
    ((name, inside),) = data.items()
    if name not in names:
        return wrong(problems, join(place, str(name)), "is no known kind", suggestion(str(name), names))
    return decode(inside, names[name], join(place, name), problems)


def _decode_tuple(data: object, arguments: tuple[Any, ...], place: str, problems: list[Problem]) -> Any:
    if not isinstance(data, list | tuple):
        return wrong(problems, place, f"expected a list, got {shown(data)}", "write it as […]")
    kinds = [arguments[0]] * len(data) if Ellipsis in arguments else list(arguments)
    if len(data) != len(kinds):
        return wrong(problems, place, f"has {len(data)} entries", f"write {len(kinds)} entries")
    items = [
        decode(item, kind, f"{place}[{i}]", problems) for i, (item, kind) in enumerate(zip(data, kinds, strict=True))
    ]
    return NOTHING if any(item is NOTHING for item in items) else tuple(items)


def _decode_scalar(data: object, kind: Any, place: str, problems: list[Problem]) -> Any:
    if kind in (str, bool):
        if isinstance(data, kind):
            return data
        wanted = "a text in quotes" if kind is str else "true or false"
        return wrong(problems, place, f"expected {wanted}, got {shown(data)}", f"write {wanted}")
    if isinstance(data, bool) or not isinstance(data, int | float):
        return wrong(problems, place, f"expected a number, got {shown(data)}", "write a number without quotes")
    if not math.isfinite(data) or data < 0:
        return wrong(problems, place, f"is {shown(data)}", "write a finite number, zero or more")
    if kind is float:
        return float(data)
    if not isinstance(data, int) or data > LARGEST_WHOLE:
        return wrong(
            problems, place, f"expected a whole number up to 2^53, got {shown(data)}", "write it without a dot"
        )
    return data
