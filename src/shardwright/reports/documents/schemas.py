"""JSON schemas of the documents that commands write and read: `shardwright schema NAME`.

A document may gain keys with time; those that it has keep their meaning. The plan file is closed: its version says
which keys it has (`plans.schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardwright.discovery.machine import Machines
from shardwright.plans.ranking import Fewer, Nearby, NoProgram, SpmdProgram
from shardwright.plans.schema import DIALECT, Schema, plan_schema, schema_of
from shardwright.reports.documents.input_schemas import cluster_schema, layers_schema, profile_schema
from shardwright.spec.catalog.catalog import MachinePrice
from shardwright.spec.cluster import Gpu

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PERHAPS_NUMBER: Schema = {"type": ["number", "null"]}


def _record(keys: Mapping[str, Schema], more: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with `keys`, and perhaps with `more`."""
    return {"type": "object", "properties": {**keys, **(more or {})}, "required": list(keys)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _ranking() -> Schema:
    """Return the schema of `plan --json`."""
    baseline = _record({"rule": TEXT, "iteration_seconds": PERHAPS_NUMBER, "reason": TEXT})
    program = {"anyOf": [schema_of(SpmdProgram), schema_of(NoProgram)]}
    search = _record(
        {
            "candidates": COUNT,
            "costed": COUNT,
            "seconds": NUMBER,
            "rejected": _by_name(COUNT),
            "phases": _by_name(NUMBER),
            "gap": PERHAPS_NUMBER,
            "lower_bound_dollars": PERHAPS_NUMBER,
            "not_covered": _list(TEXT),
        }
    )
    switch = _record({"name": TEXT, "runs": COUNT, "of": COUNT})
    passed_over = _record(
        {"iteration_seconds": NUMBER, "saving": NUMBER, "switches": _list(switch), "pins": _list(TEXT), "words": TEXT}
    )
    return _record(
        {
            "plans": _list(plan_schema()),
            "baselines": _list(baseline),
            "search": search,
            "nearby": _list(schema_of(Nearby)),
            "fewer": _list(schema_of(Fewer)),
            "passed_over": {"anyOf": [passed_over, {"type": "null"}]},
        },
        {"infeasible": _record({"reason": TEXT, "remedies": _list(TEXT)}), "risk": _list(ANY), "program": program},
    )


def _problem() -> Schema:
    return _record({"path": TEXT, "message": TEXT, "hint": TEXT})


def _evaluation() -> Schema:
    """Return the schema of `evaluate --json`."""
    return _record(
        {
            "plan": plan_schema(),
            "legal": FLAG,
            "violations": _list(_problem()),
            "fits": FLAG,
            "shortage": _list(TEXT),
            "remedies": _list(TEXT),
            "best": {"anyOf": [plan_schema(), {"type": "null"}]},
            "verdict": TEXT,
            "settings": _by_name(_record({"plan": ANY, "best": ANY})),
            "terms": _by_name(_record({"plan": NUMBER, "best": NUMBER, "difference": NUMBER})),
            "differences": _list(TEXT),
            "notes": _list(TEXT),
        }
    )


def _check() -> Schema:
    """Return the schema of `check --json`."""
    return _record({"legal": FLAG, "violations": _list(_problem())})


def _fit() -> Schema:
    """Return the schema of `fit --json`."""
    way = _record(
        {
            "name": TEXT,
            "training": TEXT,
            "sharding": TEXT,
            "optimizer_offload": NUMBER,
            "recompute": FLAG,
            "memory_bytes": ANY,
            "host_memory_bytes": NUMBER,
            "fit_probability": NUMBER,
            "fits": FLAG,
            "longest_sequence": PERHAPS_NUMBER,
            "fewest_gpus": PERHAPS_NUMBER,
            "smallest_gpu": {"type": ["string", "null"]},
        }
    )
    sizes = {"parameters": COUNT, "gpus": COUNT, "seq_len": COUNT, "sure": NUMBER}
    return _record({"model": TEXT, "gpu": TEXT, **sizes, "ways": _list(way), "next": {"type": ["string", "null"]}})


def _shop() -> Schema:
    """Return the schema of `shop --json`."""
    figures = ("hours", "dollars", "preemptions", "interruptions", "lost_share", "dollars_per_million_tokens")
    choice = _record({"gpus": COUNT, "rent": _list(ANY), **dict.fromkeys(figures, NUMBER), "plan": plan_schema()})
    pick: Schema = {"anyOf": [choice, COUNT, {"type": "null"}]}
    return _record(
        {
            "front": _list(choice),
            "picks": _by_name(pick),
            "deadline_hours": PERHAPS_NUMBER,
            "budget_dollars": PERHAPS_NUMBER,
            "search": ANY,
            "assumed": _list(TEXT),
        }
    )


def _gpus() -> Schema:
    """Return the schema of `gpus --json`."""
    gpu = schema_of(Gpu)
    gpu["properties"]["peak_flops"] = _by_name(NUMBER)
    return _list(gpu)


def _models() -> Schema:
    """Return the schema of `models --json`."""
    texts = dict.fromkeys(("name", "source"), TEXT) | {"particular": {"type": ["string", "null"]}}
    counts = dict.fromkeys(("parameters", "active_parameters", "hidden", "layers", "vocab"), COUNT)
    return _list(_record({**texts, **counts, "assumed": _list(TEXT)}))


def _discovery() -> Schema:
    """Return the schema of `discover --json`."""
    machines = _list(schema_of(Machines))
    return _record({"source": TEXT, "machines": machines, "unseen": _list(TEXT), "text": TEXT})


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema,
    "ranking": _ranking,
    "evaluation": _evaluation,
    "check": _check,
    "fit": _fit,
    "shop": _shop,
    "gpus": _gpus,
    "models": _models,
    "prices": lambda: _list(schema_of(MachinePrice)),
    "discovery": _discovery,
    "cluster": cluster_schema,
    "profile": profile_schema,
    "layers": layers_schema,
}


def document_schema(name: str) -> Schema:
    """Return the schema of the documents `name`, one of SCHEMAS."""
    return {"$schema": DIALECT, "title": f"Shardwright: {name}", **SCHEMAS[name]()}
