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
from shardwright.reports.documents.run_schemas import (
    export_schema,
    layout_schema,
    losses_schema,
    measurement_schema,
    program_schema,
    recovery_schema,
    simulation_schema,
    training_schema,
    validation_schema,
)
from shardwright.reports.documents.shapes import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    PERHAPS_NUMBER,
    TEXT,
    by_name,
    list_of,
    record,
)
from shardwright.spec.catalog.catalog import MachinePrice
from shardwright.spec.cluster import Gpu


def _ranking() -> Schema:
    """Return the schema of `plan --json`."""
    baseline = record({"rule": TEXT, "iteration_seconds": PERHAPS_NUMBER, "reason": TEXT})
    program = {"anyOf": [schema_of(SpmdProgram), schema_of(NoProgram)]}
    search = record(
        {
            "candidates": COUNT,
            "costed": COUNT,
            "seconds": NUMBER,
            "rejected": by_name(COUNT),
            "phases": by_name(NUMBER),
            "gap": PERHAPS_NUMBER,
            "lower_bound_dollars": PERHAPS_NUMBER,
            "not_covered": list_of(TEXT),
        }
    )
    switch = record({"name": TEXT, "runs": COUNT, "of": COUNT})
    passed_over = record(
        {
            "iteration_seconds": NUMBER,
            "saving": NUMBER,
            "switches": list_of(switch),
            "pins": list_of(TEXT),
            "words": TEXT,
        }
    )
    return record(
        {
            "plans": list_of(plan_schema()),
            "baselines": list_of(baseline),
            "search": search,
            "nearby": list_of(schema_of(Nearby)),
            "fewer": list_of(schema_of(Fewer)),
            "passed_over": {"anyOf": [passed_over, {"type": "null"}]},
        },
        {"infeasible": record({"reason": TEXT, "remedies": list_of(TEXT)}), "risk": list_of(ANY), "program": program},
    )


def _problem() -> Schema:
    return record({"path": TEXT, "message": TEXT, "hint": TEXT})


def _evaluation() -> Schema:
    """Return the schema of `evaluate --json`."""
    return record(
        {
            "plan": plan_schema(),
            "legal": FLAG,
            "violations": list_of(_problem()),
            "fits": FLAG,
            "shortage": list_of(TEXT),
            "remedies": list_of(TEXT),
            "best": {"anyOf": [plan_schema(), {"type": "null"}]},
            "verdict": TEXT,
            "settings": by_name(record({"plan": ANY, "best": ANY})),
            "terms": by_name(record({"plan": NUMBER, "best": NUMBER, "difference": NUMBER})),
            "differences": list_of(TEXT),
            "notes": list_of(TEXT),
        }
    )


def _check() -> Schema:
    """Return the schema of `check --json`."""
    return record({"legal": FLAG, "violations": list_of(_problem())})


def _fit() -> Schema:
    """Return the schema of `fit --json`."""
    way = record(
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
    return record({"model": TEXT, "gpu": TEXT, **sizes, "ways": list_of(way), "next": {"type": ["string", "null"]}})


def _shop() -> Schema:
    """Return the schema of `shop --json`."""
    figures = ("hours", "dollars", "preemptions", "interruptions", "lost_share", "dollars_per_million_tokens")
    choice = record({"gpus": COUNT, "rent": list_of(ANY), **dict.fromkeys(figures, NUMBER), "plan": plan_schema()})
    pick: Schema = {"anyOf": [choice, COUNT, {"type": "null"}]}
    return record(
        {
            "front": list_of(choice),
            "picks": by_name(pick),
            "deadline_hours": PERHAPS_NUMBER,
            "budget_dollars": PERHAPS_NUMBER,
            "search": ANY,
            "assumed": list_of(TEXT),
        }
    )


def _gpus() -> Schema:
    """Return the schema of `gpus --json`."""
    gpu = schema_of(Gpu)
    gpu["properties"]["peak_flops"] = by_name(NUMBER)
    return list_of(gpu)


def _models() -> Schema:
    """Return the schema of `models --json`."""
    texts = dict.fromkeys(("name", "source"), TEXT) | {"particular": {"type": ["string", "null"]}}
    counts = dict.fromkeys(("parameters", "active_parameters", "hidden", "layers", "vocab"), COUNT)
    return list_of(record({**texts, **counts, "assumed": list_of(TEXT)}))


def _discovery() -> Schema:
    """Return the schema of `discover --json`."""
    machines = list_of(schema_of(Machines))
    return record({"source": TEXT, "machines": machines, "unseen": list_of(TEXT), "text": TEXT})


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "plan": plan_schema,
    "ranking": _ranking,
    "evaluation": _evaluation,
    "check": _check,
    "fit": _fit,
    "shop": _shop,
    "gpus": _gpus,
    "models": _models,
    "prices": lambda: list_of(schema_of(MachinePrice)),
    "discovery": _discovery,
    "validation": validation_schema,
    "simulation": simulation_schema,
    "recovery": recovery_schema,
    "program": program_schema,
    "training": training_schema,
    "layout": layout_schema,
    "losses": losses_schema,
    "measurement": measurement_schema,
    "export": export_schema,
    "cluster": cluster_schema,
    "profile": profile_schema,
    "layers": layers_schema,
}


def document_schema(name: str) -> Schema:
    """Return the schema of the documents `name`, one of SCHEMAS."""
    return {"$schema": DIALECT, "title": f"Shardwright: {name}", **SCHEMAS[name]()}
