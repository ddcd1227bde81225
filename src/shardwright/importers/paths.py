"""Fields of a configuration by path: from nested sections, filled in where they name one another, changed by a command
line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardwright.importers.python_values import COMPUTED, Path

NAMED_FIELD = re.compile(r"\$\{([\w.]+)\}")
RESOLVED = re.compile(r"\$\{(multiply|divide_ceil|divide_floor):\s*(\d+)\s*,\s*(\d+)\s*\}")  # NeMo's, of two numbers
DEEPEST_NAMES = 8  # of fields that name fields


def flattened(document: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields of nested mappings by path."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, Mapping):
                yield from flattened(value, (*path, str(key)))
            else:
                yield (*path, str(key)), value


def interpolated(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return fields with OmegaConf's `${a.b}` (or `${.b}`, beside the field) replaced by what they name, and NeMo's
    resolvers by what they compute of whole numbers. Those that name nothing, and resolvers such as `${oc.env:…}`,
    stay."""
    filled = dict(values)
    for _ in range(DEEPEST_NAMES):
        before = dict(filled)
        for path, value in before.items():
            if isinstance(value, str) and "${" in value:
                filled[path] = _filled(value, path, before)
        if filled == before:
            break
    return filled


def _filled(text: str, place: Path, values: Mapping[Path, Any]) -> Any:
    def target(name: str) -> Any:
        path = (*place[:-1], *name[1:].split(".")) if name.startswith(".") else tuple(name.split("."))
        return values.get(path, f"${{{name}}}")

    if whole := NAMED_FIELD.fullmatch(text):
        return target(whole[1])
    if (computed := RESOLVED.fullmatch(text)) and int(computed[3]):
        first, second = int(computed[2]), int(computed[3])
        return {"multiply": first * second, "divide_floor": first // second}.get(computed[1], -(-first // second))
    return NAMED_FIELD.sub(lambda match: str(target(match[1])), text)


def first(values: Mapping[Path, Any], *leaves: str) -> Any:
    """Return the value of the first of these fields that is there and said, None where none is."""
    for leaf in leaves:
        for path, value in values.items():
            if path[-1] == leaf and value is not None and value is not COMPUTED:
                return value
    return None


def overridden(values: Mapping[Path, Any], words: Iterable[str]) -> dict[Path, Any]:
    """Return fields with those of a command line over them: `model.tensor_model_parallel_size=2`, `--a.b=c`; without
    those that `~a.b` takes away."""
    fields = dict(values)
    for word in words:
        key, sign, text = word.lstrip("+-~").partition("=")
        if (sign or word.startswith("~")) and key.replace(".", "").replace("_", "").replace("-", "").isalnum():
            path = tuple(key.replace("-", "_").split("."))
            fields = without(fields, path) | ({path: literal(text)} if sign else {})
    return fields


def without(values: Mapping[Path, Any], path: Path) -> dict[Path, Any]:
    """Return fields without those of a path, of which either may leave out the sections around, and those in it."""
    size = len(path)
    return {
        old: value
        for old, value in values.items()
        if path not in (old[:size], old[-size:]) and old != path[-min(len(old), size) :]
    }


def literal(text: str) -> Any:
    """Return a word of a command line as the value that it means."""
    plain = text.strip("'\"")
    if plain.casefold() in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(plain.casefold())
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain
