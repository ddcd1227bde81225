"""The plan file: versioned JSON that holds all of a `Plan`, so that it can be read without any other file.

The file is deterministic: equal plans give equal bytes. Runs of equal layers of the model are written once with a
`count`. Version 1 has no shares of rows and state (`Replica.rows`, `Replica.state`, `OptimizerPlan.parts`) and no
schedule `layered`; it is read like version 2. Jobs of earlier releases say of adapters only whether there are any
(`adapters`, `attention_adapters`); these are read as LoRA of the usual rank. `optimizer.distributed` and
`prediction.memory_bytes` repeat, for the reader's convenience, what `sharding` and the memory terms say; they are
checked when a file is read and may be missing.

A schema says what `plans.codec` reads and writes: which keys, of which types. What is well formed but illegal is
`plans.check`'s to say.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from shardwright.errors import Problem, bad, reject
from shardwright.files import write_atomically
from shardwright.plans.codec import (
    LARGEST_WHOLE,
    NOTHING,
    decode,
    decode_fields,
    encode,
    hints,
    join,
    reject_unknown,
    wrong,
)
from shardwright.plans.plan import PLAN_VERSION, OptimizerPlan, Plan, Prediction, Replica, Stage
from shardwright.spec.adapter import ATTENTION, LINEAR, Adapter
from shardwright.spec.cluster import Assumption, Cluster
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import parse_json, read_text

LARGEST_PLAN_BYTES = 64_000_000
MOST_LAYERS = 100_000
READ_VERSIONS = (1, PLAN_VERSION)
PRINTED = frozenset(("plans", "front", "plan"))  # keys of documents that commands print
BESIDE = ("memory_bytes", "binding")  # of a prediction: sums for readers, and a sentence of earlier releases
EARLIER = {"adapters", "attention_adapters"}  # keys of a job in earlier releases
Problems = list[Problem]
Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER: Schema = {"type": "number", "minimum": 0}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST_WHOLE}
TEXT: Schema = {"type": "string"}
SCALARS: dict[Any, Schema] = {str: TEXT, Assumption: TEXT, bool: {"type": "boolean"}, int: WHOLE, float: NUMBER}
RANGE: Schema = {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}


def to_document(plan: Plan) -> dict[str, Any]:
    """Return `plan` as plain JSON data, with the keys in the order of the file."""
    special = {
        "model": model_document(plan.model),
        "replicas": [_replica_out(replica) for replica in plan.replicas],
        "optimizer": {"distributed": plan.optimizer.distributed, **encode(plan.optimizer, OptimizerPlan)},
        "prediction": None if plan.prediction is None else _prediction_out(plan.prediction),
    }
    fields = {
        name: special[name] if name in special else encode(getattr(plan, name), kind)
        for name, kind in hints(Plan).items()
    }
    return {"version": PLAN_VERSION, **fields}


def model_document(model: Model) -> dict[str, Any]:
    """Return a model as it stands in a plan file."""
    data: dict[str, Any] = encode(dataclasses.replace(model, layers=()), Model)
    return data | {"layers": _layers_out(model)}


def part_of_plan(data: object, part: Literal["model", "cluster"]) -> Any:
    """Return the model or the cluster of a plan file. Raises SpecError with every fault."""
    problems: Problems = []
    value = _model_in(data, part, problems) if part == "model" else decode(data, Cluster, part, problems)
    reject(problems)
    return value


def dumps(plan: Plan) -> str:
    """Return the text of the plan file of `plan`."""
    return json.dumps(to_document(plan), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_document(document: object, name: str = "plan") -> Plan:
    """Return the plan that `document` holds; `name` stands for it in messages.

    Raises SpecError with every fault: unknown or missing keys, wrong types, numbers that are negative or not finite,
    another version. What is well-formed but illegal is `shardwright.plans.check.check`'s to say.
    """
    if isinstance(document, Mapping) and document.keys() & PRINTED and "replicas" not in document:
        raise bad(name, "is what a command printed, not a plan file", "`out=plan.json` beside `plan` writes one")
    problems: Problems = []
    plan = _plan_in(document, name, problems)
    reject(problems)
    assert isinstance(plan, Plan)
    return plan


def save(plan: Plan, path: Path | str) -> None:
    """Write the plan file of `plan` to `path`, whole or not at all. Raises SpecError where that fails."""
    write_atomically(Path(path), dumps(plan))


def load_plan(source: str | Path) -> Plan:
    """Read a plan file. Raises SpecError for a file that is missing, no JSON, cut off, or no plan."""
    name = str(source)
    return from_document(parse_json(read_text(Path(source), limit_bytes=LARGEST_PLAN_BYTES), name), name)


def _layers_out(model: Model) -> list[dict[str, Any]]:
    runs = itertools.groupby(model.layers)
    return [{"count": len(list(run))} | encode(layer, Layer) for layer, run in runs]


def _replica_out(replica: Replica) -> dict[str, Any]:
    data: dict[str, Any] = encode(dataclasses.replace(replica, stages=()), Replica)
    return data | {"stages": [_stage_out(stage) for stage in replica.stages]}


def _stage_out(stage: Stage) -> dict[str, Any]:
    ranges = [list(part) for part in stage.layers]
    return dict(encode(stage, Stage)) | {"layers": ranges[0] if len(ranges) == 1 else ranges}


def _prediction_out(prediction: Prediction) -> dict[str, Any]:
    data: dict[str, Any] = encode(prediction, Prediction)
    return data | {"memory_bytes": [[stage.total_bytes for stage in row] for row in prediction.memory]}


def _plan_in(document: object, name: str, problems: Problems) -> Any:
    if not isinstance(document, Mapping):
        return wrong(problems, name, f"expected a mapping, got {shown(document)}", "is this a plan file?")
    version = document.get("version")
    if version not in READ_VERSIONS or isinstance(version, bool):
        known = " and ".join(map(str, READ_VERSIONS))
        hint = f"this release reads versions {known}; make the plan anew with `shardwright plan`"
        return wrong(problems, f"{name}: version", f"is {shown(version)}", hint)
    data = {key: value for key, value in document.items() if key != "version"}
    readers = {
        "model": _model_in, "job": _job_in, "replicas": _replicas_in, "optimizer": _optimizer_in,
        "prediction": _prediction_in,
    }  # fmt: skip
    ready = {key: read(data[key], f"{name}: {key}", problems) for key, read in readers.items() if key in data}
    return decode_fields(data, Plan, name, problems, ready)


def _model_in(data: object, place: str, problems: Problems) -> Any:
    layers = data.get("layers") if isinstance(data, Mapping) else None
    ready = {} if layers is None else {"layers": _layers_in(layers, join(place, "layers"), problems)}
    return decode_fields(data, Model, place, problems, ready)


def _job_in(data: object, place: str, problems: Problems) -> Any:
    """A job; `adapters` and `attention_adapters` are of releases before there were ranks."""
    if not isinstance(data, Mapping) or not EARLIER & data.keys():
        return decode_fields(data, Job, place, problems)
    for name in EARLIER & data.keys():
        decode(data[name], bool, join(place, name), problems)
    return decode_fields(job_of_today(data), Job, place, problems)


def job_of_today(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job as it is written today; adapters of earlier releases are LoRA of the usual rank."""
    rest = {key: value for key, value in data.items() if key not in EARLIER}
    if any(data.get(name) is True for name in EARLIER) and "adapter" not in rest:
        targets = ATTENTION if data.get("attention_adapters") is True else LINEAR
        rest["adapter"] = encode(Adapter(targets=targets), Adapter)
    return rest


def _layers_in(data: object, place: str, problems: Problems) -> Any:
    if not isinstance(data, list):
        return wrong(problems, place, f"expected a list, got {shown(data)}", "one mapping for each run of equal layers")
    layers: list[Layer] = []
    for index, item in enumerate(data):
        where = f"{place}[{index}]"
        if not isinstance(item, Mapping):
            wrong(problems, where, f"expected a mapping, got {shown(item)}", "write {count, attention, …}")
            continue
        count = decode(item.get("count", 1), int, join(where, "count"), problems)
        layer = decode_fields({k: v for k, v in item.items() if k != "count"}, Layer, where, problems)
        if layer is NOTHING or count is NOTHING:
            continue
        if layer.mlp is not None and layer.moe is not None:
            wrong(problems, where, "has both mlp and moe", "set one of them to null")
        elif not layer.sublayers:
            wrong(problems, where, "has nothing in it", "set attention, mixer, mlp or moe")
        elif count > MOST_LAYERS:
            wrong(problems, join(where, "count"), f"is {count:,}", f"at most {MOST_LAYERS:,} layers")
        else:
            layers.extend([layer] * count)
    return tuple(layers)


def _replicas_in(data: object, place: str, problems: Problems) -> Any:
    if not isinstance(data, list):
        return wrong(problems, place, f"expected a list, got {shown(data)}", "write it as […]")
    return tuple(_replica_in(item, f"{place}[{i}]", problems) for i, item in enumerate(data))


def _replica_in(data: object, place: str, problems: Problems) -> Any:
    stages = data.get("stages") if isinstance(data, Mapping) else None
    ready: dict[str, Any] = {}
    if isinstance(stages, list):
        ready["stages"] = tuple(_stage_in(item, f"{place}.stages[{i}]", problems) for i, item in enumerate(stages))
    return decode_fields(data, Replica, place, problems, ready)


def _stage_in(data: object, place: str, problems: Problems) -> Any:
    """A stage; its `layers` are one range [a, b], or a list of ranges, one for each virtual stage."""
    layers = data.get("layers") if isinstance(data, Mapping) else None
    ready: dict[str, Any] = {}
    if layers is not None:
        single = isinstance(layers, list) and len(layers) == 2 and not any(isinstance(end, list) for end in layers)
        ranges = [layers] if single else layers
        ready["layers"] = decode(ranges, tuple[tuple[int, int], ...], join(place, "layers"), problems)
    return decode_fields(data, Stage, place, problems, ready)


def _optimizer_in(data: object, place: str, problems: Problems) -> Any:
    if not isinstance(data, Mapping) or "distributed" not in data:
        return decode_fields(data, OptimizerPlan, place, problems)
    distributed = decode(data["distributed"], bool, join(place, "distributed"), problems)
    rest = {"sharding": "zero1" if distributed is True else "none"}
    rest |= {key: value for key, value in data.items() if key != "distributed"}
    plan = decode_fields(rest, OptimizerPlan, place, problems)
    if plan is not NOTHING and distributed is not NOTHING and plan.distributed != distributed:
        hint = f"write {str(plan.distributed).lower()}, or leave it out"
        return wrong(problems, join(place, "distributed"), f"contradicts sharding {plan.sharding!r}", hint)
    return plan


def _prediction_in(data: object, place: str, problems: Problems) -> Any:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        return decode_fields(data, Prediction, place, problems)
    reject_unknown(data, hints(Prediction) | dict.fromkeys(BESIDE), place, problems)
    rest = {key: value for key, value in data.items() if key in hints(Prediction)}
    prediction = decode_fields(rest, Prediction, place, problems)
    if prediction is not NOTHING and "memory_bytes" in data:
        where = join(place, "memory_bytes")
        totals = decode(data["memory_bytes"], tuple[tuple[float, ...], ...], where, problems)
        if totals is not NOTHING and totals != tuple(tuple(s.total_bytes for s in row) for row in prediction.memory):
            return wrong(problems, where, "differs from the sums of prediction.memory", "correct it, or leave it out")
    return prediction


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
