"""`MachineProfile`: what `shardwright profile` measured on a machine, and the reader and writer of its file.

It is another thing than a layer profile (seconds of a model's layers): a machine profile knows no model. The file is
JSON, version 1:

    {"version": 1, "complete": true,
     "gpu": "H200" or the mapping of a GPU that the catalogue does not have, as in a cluster file,
     "device": "NVIDIA H200", "backend": "cuda", "count": 8, "threads": null, "memory_bytes": …,
     "torch": "2.13.0", "cuda": "13.0", "driver": "580.1", "date": "2026-11-21",
     "row_seconds": 1.2, "flops_per_second": 7.1e14,
     "operators": [{"kind": "gemm", "pass": "forward", "dtype": "bf16", "m": …, "n": …, "k": …, "groups": 1,
                    "seconds": …, "spread": …},
                   {"kind": "attention", "pass": "backward", "dtype": "bf16", "tokens": …, "seq": …, "heads": …,
                    "kv_heads": …, "head_dim": …, "seconds": …, "spread": …},
                   {"kind": "memory", "pass": "forward", "dtype": "bf16", "operation": "add", "bytes": …, …}],
     "collectives": [{"collective": "all_reduce", "ranks": 8, "scope": "intra_node", "bytes": …, …}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, get_args

from shardwright.errors import SpecError, bad, reject, suggestion
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.spec.catalog.gpus import resolve_gpu
from shardwright.spec.cluster import Gpu
from shardwright.spec.read.custom_gpu import custom_gpu, description
from shardwright.spec.text.fields import Section, shown
from shardwright.spec.text.reading import document

VERSION = 1
Kind = Literal["gemm", "attention", "memory"]
Pass = Literal["forward", "backward", "dgrad", "wgrad"]
Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
Backend = Literal["cuda", "cpu"]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
Scope = Literal["intra_node", "inter_node"]
SIZES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "groups"),
    "attention": ("tokens", "seq", "heads", "kv_heads", "head_dim"),
    "memory": ("bytes",),
}
LARGEST = 10**15


@record
class OperatorTime:
    """One measured operator. A "gemm" is `groups` products (m × k)(k × n); "attention" is causal, over `tokens` tokens
    in sequences of `seq`; "memory" moves `bytes`. Sizes that do not belong to the kind are 0. `seconds` is the median
    of sustained repetition, `spread` the distance between the quartiles as a part of it."""

    kind: Kind
    direction: Pass
    dtype: Dtype
    seconds: float
    spread: float = 0.0
    operation: str = ""
    m: int = 0
    n: int = 0
    k: int = 0
    groups: int = 0
    tokens: int = 0
    seq: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    bytes: int = 0


@record
class CollectiveTime:
    """One measured collective. `bytes` is the full buffer: the output of an all-gather, the input of a reduce-scatter,
    what a rank sends in all of an all-to-all, the message of a send. With scope "inter_node" every rank is on another
    machine, and all GPUs of the machines do the same at the same time."""

    collective: Collective
    ranks: int
    bytes: int
    seconds: float
    spread: float = 0.0
    scope: Scope = "intra_node"


@record
class MachineProfile:
    """What was measured on one machine with `count` GPUs (or, on a CPU, processes of `threads` threads each).

    `memory_bytes` is the memory of one of them. `row_seconds` and `flops_per_second` are the settings from which the
    shapes were chosen; measuring that goes on after an interruption takes them up again. `complete` is False for a
    file that holds only a part.
    """

    gpu: Gpu
    device: str
    backend: Backend
    count: int
    memory_bytes: float
    operators: tuple[OperatorTime, ...]
    collectives: tuple[CollectiveTime, ...]
    threads: int | None = None
    torch: str = ""
    cuda: str = ""
    driver: str = ""
    date: str = ""
    row_seconds: float = 1.0
    flops_per_second: float = 1.0
    complete: bool = True


def to_document(profile: MachineProfile) -> dict[str, Any]:
    """Return a profile as plain JSON data, in the order of the file."""
    document = asdict(profile)
    gpu = profile.gpu
    head = {"version": VERSION, "complete": document.pop("complete")}
    head["gpu"] = description(gpu) if gpu.vendor == "custom" else gpu.name
    document["operators"] = [_operator_out(row) for row in profile.operators]
    document["collectives"] = list(document["collectives"])
    return head | {key: value for key, value in document.items() if key not in head}


def _operator_out(row: OperatorTime) -> dict[str, Any]:
    sizes = {name: getattr(row, name) for name in SIZES[row.kind]}
    words = {"operation": row.operation} if row.operation else {}
    head = {"kind": row.kind, "pass": row.direction, "dtype": row.dtype}
    return head | words | sizes | {"seconds": row.seconds, "spread": row.spread}


def save_profile(profile: MachineProfile, path: Path) -> None:
    """Write the profile to `path`, whole or not at all. Raises SpecError where that fails."""
    write_atomically(path, json.dumps(to_document(profile), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def load_profile(path: Path | str) -> MachineProfile:
    """Return the profile that a file holds. Raises SpecError, naming every faulty field, for any other file."""
    with document(Path(path)) as data:
        return from_document(data, str(path))


def from_document(data: object, name: str = "profile") -> MachineProfile:
    """Return the profile that JSON data hold; `name` stands for the file in messages. Raises SpecError."""
    remedy = "make one with `shardwright profile -o profile.json`"
    if not isinstance(data, Mapping):
        raise bad(name, f"expected a mapping, got {shown(data)}", remedy)
    if "entries" in data and "operators" not in data:
        raise bad(name, "is a profile of a model's layers, not of a machine", remedy)
    if data.get("version") != VERSION or isinstance(data.get("version"), bool):
        raise bad(f"{name}: version", f"is {shown(data.get('version'))}, not {VERSION}", remedy)
    root = Section(name, data, [])
    root.reject_unknown(("version", *(field.name for field in fields(MachineProfile))))
    for key in ("gpu", "device", "backend", "count", "memory_bytes", "operators"):
        root.require(key, remedy)
    gpu = _gpu(root)
    backend = _word(root, "backend", get_args(Backend))
    count, memory = root.integer("count", most=LARGEST), root.number("memory_bytes")
    operators = [_operator(section) for section in root.sections("operators")]
    collectives = [_collective(section) for section in root.sections("collectives")]
    words: dict[str, Any] = {key: _words(root, key) for key in ("device", "torch", "cuda", "driver", "date")}
    settings: dict[str, Any] = {key: root.number(key) or 1.0 for key in ("row_seconds", "flops_per_second")}
    threads = root.integer("threads", most=LARGEST)
    complete = root.flag("complete", default=True)
    reject(root.problems)
    if gpu is None or count is None or memory is None:
        raise bad(name, "is not a whole profile", remedy)
    return MachineProfile(
        gpu=gpu,
        backend=backend,
        count=count,
        threads=threads,
        memory_bytes=memory,
        operators=tuple(row for row in operators if row is not None),
        collectives=tuple(row for row in collectives if row is not None),
        complete=complete,
        **words,
        **settings,
    )


def _gpu(root: Section) -> Gpu | None:
    value = root.fields.get("gpu")
    if isinstance(value, Mapping):
        return custom_gpu(Section(root.place_of("gpu"), value, root.problems))
    name = root.text("gpu")
    if name is None:
        return None
    try:
        return resolve_gpu(name, root.place_of("gpu"))[0]
    except SpecError as error:
        root.problems.extend(error.problems)
        return None


def _words(section: Section, key: str) -> str:
    value = section.fields.get(key)
    return "" if value in (None, "") else section.text(key) or ""


def _word(section: Section, key: str, known: tuple[str, ...]) -> Any:
    """Return a text that is one of `known`, else add a problem."""
    value = section.fields.get(key)
    if value in known:
        return value
    section.report(key, f"is {shown(value)}", suggestion(str(value or ""), known))
    return None


def _sizes(section: Section, names: tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        section.require(name, "a whole number above zero")
    return {name: section.integer(name, most=LARGEST) or 0 for name in names}


def _seconds(section: Section) -> dict[str, Any]:
    section.require("seconds", "the measured time")
    return {
        "seconds": section.number("seconds", most=1e6) or 0.0,
        "spread": section.number("spread", zero=True) or 0.0,
    }


def _operator(section: Section) -> OperatorTime | None:
    before = len(section.problems)
    kind = _word(section, "kind", get_args(Kind))
    names = SIZES.get(kind, ())
    if kind is not None:
        section.reject_unknown(("kind", "pass", "dtype", "operation", *names, "seconds", "spread"))
    direction, dtype = _word(section, "pass", get_args(Pass)), _word(section, "dtype", get_args(Dtype))
    sizes, times, operation = _sizes(section, names), _seconds(section), _words(section, "operation")
    if len(section.problems) > before:
        return None
    return OperatorTime(kind=kind, direction=direction, dtype=dtype, operation=operation, **sizes, **times)


def _collective(section: Section) -> CollectiveTime | None:
    before = len(section.problems)
    section.reject_unknown(field.name for field in fields(CollectiveTime))
    collective, scope = _word(section, "collective", get_args(Collective)), _word(section, "scope", get_args(Scope))
    sizes, times = _sizes(section, ("ranks", "bytes")), _seconds(section)
    if sizes["ranks"] == 1:
        section.report("ranks", "one rank alone exchanges nothing", "2 or more")
    if len(section.problems) > before:
        return None
    return CollectiveTime(collective=collective, scope=scope, **sizes, **times)
