"""The pieces that JSON schemas of documents are made of."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.plans.schema import Schema

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PERHAPS_NUMBER: Schema = {"type": ["number", "null"]}


def record(keys: Mapping[str, Schema], more: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with `keys`, and perhaps with `more`."""
    return {"type": "object", "properties": {**keys, **(more or {})}, "required": list(keys)}


def list_of(items: Schema) -> Schema:
    """Return the schema of a list of `items`."""
    return {"type": "array", "items": items}


def by_name(values: Schema) -> Schema:
    """Return the schema of an object with any keys, and such values."""
    return {"type": "object", "additionalProperties": values}
