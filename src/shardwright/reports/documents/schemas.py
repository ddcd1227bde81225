"""JSON schemas of the documents that commands write and read, and of the files that users write or measure:
`shardwright schema NAME`.

`data/documents.yaml` has the documents that commands print, key by key. They may gain keys with time; those that they
have keep their meaning. The plan file is closed: its version says which keys it has (`plans.document`).

In files that users write, a key that may be left out may also be null. What is well formed but makes no sense is for
the readers (`spec.read`) to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, get_args

from shardwright.cost.site.file import calibration_schema
from shardwright.discovery.document import MachineGroup
from shardwright.files import shipped_file
from shardwright.plans.document import DIALECT, Schema, plan_schema, schema_of
from shardwright.plans.ranking import Fewer, Nearby, SpmdProgram
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Gpu
from shardwright.spec.layer_profile import EXTRAS, TIMES
from shardwright.spec.layer_profile import Scope as LinkScope
from shardwright.spec.offers import MARKETS
from shardwright.spec.read import custom_gpu, layer_profile, offers
from shardwright.spec.read.cluster import TOP_KEYS
from shardwright.spec.read.machine_profile import SIZES, VERSION, Backend, CollectiveTime, Dtype, Kind, Pass
from shardwright.spec.read.pools import MOST_GPUS_PER_NODE, MOST_NODES, POOL_KEYS
from shardwright.spec.read.sites import LINK_KEYS
from shardwright.spec.text.reading import parse_yaml

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


TEXT: Schema = {"type": "string"}
ABOVE_ZERO: Schema = {"type": "number", "exclusiveMinimum": 0}
FROM_ZERO: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer", "minimum": 1}
FIGURES: Schema = {"type": "array", "items": FROM_ZERO, "minItems": 1}


def _closed(keys: Iterable[str], kinds: Mapping[str, Schema], required: Iterable[str]) -> Schema:
    """Return the schema of an object that has no other keys: numbers above zero where `kinds` says nothing else."""
    needed = list(required)
    schemas = {name: kinds.get(name, ABOVE_ZERO) for name in keys}
    optional = {name: {"anyOf": [kind, {"type": "null"}]} for name, kind in schemas.items() if name not in needed}
    return {"type": "object", "properties": {**schemas, **optional}, "required": needed, "additionalProperties": False}


def _gpu() -> Schema:
    """Return the schema of a GPU by name, or by the figures of one that the catalogue does not have."""
    texts = dict.fromkeys(("name", "architecture", "link"), TEXT)
    needed = ("name", "memory_gb", "memory_gb_per_second")
    return {"anyOf": [TEXT, _closed(custom_gpu.KEYS, texts | {"link_domain": WHOLE}, needed)]}


def _machines(keys: Iterable[str], required: Iterable[str]) -> Schema:
    """Return the schema of an entry of equal machines."""
    texts = dict.fromkeys(("machine", "provider", "region", "site"), TEXT)
    kinds: dict[str, Schema] = {
        "gpu": _gpu(),
        "count": WHOLE | {"maximum": MOST_NODES},
        "at_most": WHOLE | {"maximum": MOST_NODES},
        "gpus": WHOLE | {"maximum": MOST_GPUS_PER_NODE},
        "domain_gpus": WHOLE,
        "rack_nodes": WHOLE,
        "market": {"enum": list(MARKETS)},
        "spot": {"type": "boolean"},
        "preemptions_per_hour": FROM_ZERO,
    }
    return _closed(keys, texts | kinds, required)


def _site_links() -> Schema:
    ends: Schema = {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 2}
    links = {"between": ends, "latency_ms": FROM_ZERO, "egress_dollars_per_gb": FROM_ZERO}
    return {"type": "array", "items": _closed(LINK_KEYS, links, ("between",))}


def cluster_schema() -> Schema:
    """Return the schema of a cluster file, which is YAML or JSON."""
    machines = _machines(POOL_KEYS, ("count",))
    whole = WHOLE | {"maximum": MOST_GPUS_PER_NODE}
    types: Schema = {"type": "object", "additionalProperties": whole, "minProperties": 1}
    machines["properties"]["gpus"]["anyOf"].insert(1, types)  # of machines with GPUs of several types
    nodes: Schema = {"type": "array", "items": machines, "minItems": 1}
    return _closed(TOP_KEYS, {"name": TEXT, "nodes": nodes, "site_links": _site_links()}, ("nodes",))


def offers_schema() -> Schema:
    """Return the schema of a file of offers, what `shop --offers` reads: YAML or JSON."""
    kinds: dict[str, Schema] = {
        "name": TEXT,
        "offers": {"type": "array", "items": _machines(offers.OFFER_KEYS, ()), "minItems": 1},
        "site_links": _site_links(),
        "failures_per_gpu_hour": FROM_ZERO,
        "restart_minutes": FROM_ZERO,
    }
    return _closed(offers.TOP_KEYS, kinds, ("offers",))


def profile_schema() -> Schema:
    """Return the schema of a machine profile, what `profile -o` writes."""
    measured = {"seconds": ABOVE_ZERO, "spread": FROM_ZERO}
    words: dict[str, Schema] = {
        "pass": {"enum": list(get_args(Pass))},
        "dtype": {"enum": list(get_args(Dtype))},
        "operation": TEXT,
    }
    operators = [
        _closed(
            ("kind", *words, *SIZES[kind], *measured),
            {"kind": {"const": kind}, **words, **dict.fromkeys(SIZES[kind], WHOLE), **measured},
            ("kind", "pass", "dtype", *SIZES[kind], "seconds"),
        )
        for kind in get_args(Kind)
    ]
    head: dict[str, Schema] = {
        "version": {"const": VERSION},
        "complete": {"type": "boolean"},
        "gpu": _gpu(),
        "backend": {"enum": list(get_args(Backend))},
        "count": WHOLE,
        "threads": WHOLE,
        "operators": {"type": "array", "items": {"anyOf": operators}},
        "collectives": {"type": "array", "items": schema_of(CollectiveTime)},
    }
    texts = dict.fromkeys(("device", "torch", "cuda", "driver", "date"), TEXT)
    names = (*head, *texts, "memory_bytes", "row_seconds", "flops_per_second")
    return _closed(names, head | texts, ("version", "gpu", "device", "backend", "count", "memory_bytes", "operators"))


def layers_schema() -> Schema:
    """Return the schema of a layer profile: a user's own measurements of a model."""
    columns = dict.fromkeys((*TIMES, *EXTRAS), FIGURES)
    sizes = dict.fromkeys(("tensor_parallel", "micro_batch"), WHOLE)
    entry = _closed(layer_profile.ENTRY_KEYS, {"gpu": TEXT, **sizes, **columns}, ("gpu", *sizes, *TIMES))
    ends: dict[str, Schema] = {"from": TEXT, "to": TEXT, "scope": {"enum": list(get_args(LinkScope))}}
    curve = {**ends, "ranks": WHOLE, "bytes": FIGURES, "seconds": FIGURES}
    link = _closed(layer_profile.LINK_KEYS, curve, (*ends, "bytes", "seconds"))
    kinds: dict[str, Schema] = {
        "version": {"const": layer_profile.VERSION},
        "seq_len": WHOLE,
        "sequence_parallel": {"type": "boolean"},
        "entries": {"type": "array", "items": entry, "minItems": 1},
        "links": {"type": "array", "items": link},
    }
    texts = dict.fromkeys(("model", "precision", "source"), TEXT)
    return _closed(layer_profile.PROFILE_KEYS, kinds | texts, ("version", "model", "seq_len", "entries"))


FILES: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema,
    "cluster": cluster_schema,
    "offers": offers_schema,
    "profile": profile_schema,
    "layers": layers_schema,
    "calibration": calibration_schema,
}
