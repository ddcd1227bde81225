"""JSON schemas of the files that users write or measure: clusters, offers, machine profiles, layer profiles.

A key that may be left out may also be null. What is well formed but makes no sense is for the readers (`spec.read`) to
say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from shardwright.plans.document import Schema, schema_of
from shardwright.spec.layer_profile import EXTRAS, TIMES
from shardwright.spec.layer_profile import Scope as LinkScope
from shardwright.spec.offers import MARKETS
from shardwright.spec.read import custom_gpu, layer_profile, offers
from shardwright.spec.read.cluster import TOP_KEYS
from shardwright.spec.read.machine_profile import SIZES, VERSION, Backend, CollectiveTime, Dtype, Kind, Pass
from shardwright.spec.read.pools import MOST_GPUS_PER_NODE, MOST_NODES, POOL_KEYS
from shardwright.spec.read.sites import LINK_KEYS

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
