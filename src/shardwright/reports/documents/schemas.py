"""JSON schemas of the documents that commands write and read: `shardwright schema NAME`.

`data/documents.yaml` has the documents that commands print, key by key. They may gain keys with time; those that they
have keep their meaning. The plan file is closed: its version says which keys it has (`plans.document`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from shardwright.cost.site.file import calibration_schema
from shardwright.discovery.document import MachineGroup
from shardwright.files import shipped_file
from shardwright.plans.document import DIALECT, Schema, plan_schema, schema_of
from shardwright.plans.ranking import Fewer, Nearby, SpmdProgram
from shardwright.reports.documents.input_schemas import cluster_schema, layers_schema, offers_schema, profile_schema
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Gpu
from shardwright.spec.text.reading import parse_yaml

FILES: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema,
    "cluster": cluster_schema,
    "offers": offers_schema,
    "profile": profile_schema,
    "layers": layers_schema,
    "calibration": calibration_schema,
}
WORDS: Mapping[str, Schema] = {
    "any": {},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
    "null": {"type": "null"},
    "number": {"type": "number"},
    "object": {"type": "object"},
    "text": {"type": "string"},
}
RECORDS = {kind.__name__: kind for kind in (Fewer, MachineGroup, MachinePrice, Nearby, SpmdProgram)}


def document_names() -> tuple[str, ...]:
    """Return the names of all documents that have a schema."""
    return (*_documents(), *FILES)


def document_schema(name: str) -> Schema:
    """Return the schema of the documents `name`, one of `document_names`."""
    schema = FILES[name]() if name in FILES else _schema(_documents()[name])
    return {"$schema": DIALECT, "title": f"Shardwright: {name}", **schema}


@cache
def _documents() -> Mapping[str, Any]:
    text = shipped_file("shardwright.reports.documents", "documents.yaml").decode()
    return parse_yaml(text, "documents.yaml")  # type: ignore[return-value]


def _schema(shape: Any) -> Schema:
    """Return the schema of a shape of `documents.yaml`."""
    if isinstance(shape, str):
        return _named(shape)
    if isinstance(shape, list):
        items = [_schema(item) for item in shape]
        pair = {"prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", **({"items": items[0]} if len(items) == 1 else pair)}
    if "enum" in shape:
        return dict(shape)
    if "either" in shape:
        return {"anyOf": [_schema(choice) for choice in shape["either"]]}
    if "*" in shape:
        return {"type": "object", "additionalProperties": _schema(shape["*"])}
    needed = [key for key in shape if not key.endswith("?")]
    keys = {key.removesuffix("?"): _schema(value) for key, value in shape.items()}
    return {"type": "object", "properties": keys, "required": needed}


def _named(word: str) -> Schema:
    if word.endswith("?"):
        return {"type": [WORDS[word[:-1]]["type"], "null"]}
    if word == "Plan":
        return plan_schema()
    if word == "Finding":  # and the figures of its kind
        return _schema({"kind": "text", "words": "text"})
    if word == "Gpu":  # its peaks are printed by precision
        schema = schema_of(Gpu)
        schema["properties"]["peak_flops"] = _schema({"*": "number"})
        return schema
    return schema_of(RECORDS[word]) if word in RECORDS else dict(WORDS[word])
