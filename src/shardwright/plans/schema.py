"""JSON schemas (draft 2020-12) of dataclasses by their type hints, and of the plan file.

A schema says what `plans.codec` reads and writes: which keys, of which types. What is well formed but illegal is
`plans.check`'s to say.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin

from shardwright.plans.codec import LARGEST_WHOLE, hints
from shardwright.plans.document import READ_VERSIONS
from shardwright.plans.plan import Plan
from shardwright.spec.assumption import Assumption

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_WHOLE}
TEXT: Schema = {"type": "string"}
SCALARS: dict[Any, Schema] = {str: TEXT, Assumption: TEXT, bool: {"type": "boolean"}, int: WHOLE, float: NUMBER}
RANGE: Schema = {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}


def plan_schema() -> Schema:
    """Return the schema of the plan file."""
    schema = schema_of(Plan)
    schema["properties"] = {"version": {"enum": list(READ_VERSIONS)}, **schema["properties"]}
    schema["required"].append("version")
    layer = schema["properties"]["model"]["properties"]["layers"]["items"]
    layer["properties"] = {"count": WHOLE, **layer["properties"]}
    stage = schema["properties"]["replicas"]["items"]["properties"]["stages"]["items"]
    stage["properties"]["layers"] = {"anyOf": [RANGE, {"type": "array", "items": RANGE}]}
    schema["properties"]["optimizer"]["properties"]["distributed"] = SCALARS[bool]
    prediction = schema["properties"]["prediction"]["anyOf"][0]
    prediction["properties"]["memory_bytes"] = {"type": "array", "items": {"type": "array", "items": NUMBER}}
    return schema


def schema_of(kind: Any) -> Schema:
    """Return the schema of what `codec.encode` makes of values of the type `kind`."""
    if kind in SCALARS:
        return dict(SCALARS[kind])
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = dataclasses.fields(kind)
        return {
            "type": "object",
            "properties": {name: schema_of(hint) for name, hint in hints(kind).items()},
            "required": [field.name for field in fields if field.default is dataclasses.MISSING],
            "additionalProperties": False,
        }
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [part for part in arguments if part is not type(None)]
        parts = [
            schema_of(part) if len(kinds) == 1 or not dataclasses.is_dataclass(part) else _named(part) for part in kinds
        ]
        return {"anyOf": [*parts, {"type": "null"}]}
    if origin is tuple:
        if Ellipsis in arguments:
            return {"type": "array", "items": schema_of(arguments[0])}
        items = [schema_of(part) for part in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    assert origin is Literal, kind
    return {"enum": list(arguments)}


def _named(kind: Any) -> Schema:
    """Return the schema of one of several dataclasses, which its class names."""
    name = kind.__name__
    return {"type": "object", "properties": {name: schema_of(kind)}, "required": [name], "additionalProperties": False}
