"""Measured operators read from files into columns, without what is known to be wrong. docs/calibration.md has the
format of the files."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.arrays import Array, Bools, Columns, Floats
from shardwright.cost.compute.operator_table import BACKWARD, FORWARD, LOOKUP, NORM, POINTWISE, SOFTMAX
from shardwright.cost.learned.features import Shapes
from shardwright.errors import bad
from shardwright.spec.catalog.gpus import gpus

COMPUTE_FILE = "compute.csv.gz"
SUSTAINED = ("simumax", "vidur", "sailor_aceso")  # sources that keep the GPU busy for long
EAGER = ("neusight", "neusight_trace", "sailor_aceso")  # sources whose times include launching from Python
SHORTEST_EAGER_SECONDS = 40e-6
EXCLUDED_SOURCES = ("mamf_best",)  # single best points, no sample of shapes
ATTENTION_SOURCES = ("aiconfigurator", "simumax", "github_issue_fa")
MEMORY_FORMS = {"elementwise": POINTWISE, "layernorm": NORM, "rmsnorm": NORM, "softmax": SOFTMAX, "embedding": LOOKUP}
# Element counts of these do not fit their times (dropout of Sailor's profiles counts a whole block, views, scatters).
WRONG_BYTES = ("dropout", "enc-post-MLP-dropout", "enc-post-attention-dropout", "pow", "powu", "where", "truediv")
TRAINING_FLOPS, TRAINING_TOKENS = 2e9, 256.0
SHORTEST_SEQUENCE = 512.0
# Sources whose fp8 products include quantising the 16-bit activations: bytes read and written for each element (blocks:
# 3, tensors up to 5, since their maximum is found before), at a share of the memory's bandwidth.
QUANTISING = ("aiconfigurator",)
QUANTISE_BYTES, QUANTISE_EFFICIENCY, QUANTISE_SECONDS = 4.0, 0.8, 3e-6
LARGEST_QUANTISING_SHARE = 0.4
TIMES = ("seconds", "best_seconds")
VERSIONS = {"aiconfigurator": 3.0}  # of a kernel, that the best is taken of; fewer where a GPU has no more


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRows(Columns):
    """Measured operators of one family, as columns [R]. `best_seconds` is the best of several versions of the same
    kernel, `seconds` their median; `training` marks sizes as in training."""

    gpu: Array
    method: Array
    precision: Array
    block: Bools
    kind: Array
    m: Floats
    n: Floats
    k: Floats
    groups: Floats
    flops: Floats
    bytes: Floats
    form: Floats
    direction: Floats
    seconds: Floats
    best_seconds: Floats
    versions: Floats
    training: Bools

    @property
    def shapes(self) -> Shapes:
        """The columns that say what is computed."""
        return Shapes(**{field.name: getattr(self, field.name) for field in fields(Shapes)})


def read_columns(path: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the named columns of a (gzipped) CSV file, row by row. Raises SpecError where a column is missing or the
    file cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
            reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            header = next(reader, [])
            missing = [name for name in names if name not in header]
            if missing:
                raise bad(str(path), f"has no column {', '.join(missing)}", "docs/calibration.md lists the columns")
            places = [header.index(name) for name in names]
            for row in reader:
                if len(row) != len(header):
                    message = f"has {len(row)} cells below {len(header)} columns"
                    raise bad(f"{path}, line {reader.line_num}", message, "mend the line")
                yield tuple(row[place] for place in places)
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "name the folder of the files") from None


def _number(text: str, missing: float = np.nan) -> float:
    return float(text) if text else missing


def _rows(records: list[dict[str, Any]]) -> OperatorRows:
    """Return records as columns; numbers that a record lacks are 0."""

    def column(name: str, dtype: Any, missing: Any = 0) -> Array:
        return np.array([record.get(name, missing) for record in records], dtype=dtype)

    words = {name: column(name, str, "") for name in ("gpu", "method", "precision", "kind")}
    flags = {name: column(name, bool, False) for name in ("block", "training")}
    numbers = {
        f.name: column(f.name, float) for f in fields(OperatorRows) if f.name not in words and f.name not in flags
    }
    return OperatorRows(**words, **flags, **numbers)


_COMPUTE = (
    *("source", "gpu", "dtype", "op", "subop", "pass", "b", "m", "n", "k", "seq_q", "seq_kv", "heads", "head_dim"),
    *("window", "flops", "bytes", "time_us", "time_us_min", "n_obs"),
)


def read_operators(folder: Path) -> dict[str, OperatorRows]:
    """Return the measured rows of each family (gemm, attention, memory) in the files of `folder`."""
    rows: dict[str, list[dict[str, Any]]] = {"gemm": [], "attention": [], "memory": []}
    path = folder / COMPUTE_FILE
    for line, values in enumerate(read_columns(path, _COMPUTE), start=2):
        cells = dict(zip(_COMPUTE, values, strict=True))
        family, reader = READERS.get(cells["op"], ("memory", _traffic))
        try:
            record = _record(cells, reader)
        except ValueError as error:
            raise bad(f"{path}, line {line}", str(error), "docs/calibration.md has the format") from None
        if record is not None:
            rows[family].append(record)
    return {family: _settled(_rows(records)) for family, records in rows.items()}


def _record(cells: dict[str, str], reader: Callable[[dict[str, str]], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return a row as a record, None where it is not to be fitted to. Raises ValueError for a cell that is not a number
    where one belongs, and for a GPU that the catalogue lacks."""
    source, seconds = cells["source"], _number(cells["time_us"]) * 1e-6
    usable = source not in EXCLUDED_SOURCES and np.isfinite(seconds) and seconds > 0.0
    if not usable or (source in EAGER and seconds < SHORTEST_EAGER_SECONDS):
        return None
    record = reader(cells)
    if record is None:
        return None
    if cells["gpu"] not in gpus():
        raise ValueError(f"the catalogue has no GPU {cells['gpu']!r}")
    precision = cells["dtype"].removesuffix("_block")
    best = min(seconds, _number(cells["time_us_min"], np.inf) * 1e-6)
    record |= {"gpu": cells["gpu"], "method": source, "precision": precision, "block": cells["dtype"] != precision}
    record |= {"seconds": seconds, "best_seconds": best, "versions": _number(cells["n_obs"], 1.0)}
    if precision == "fp8" and source in QUANTISING:
        less, least = _quantising_seconds(record), 1.0 - LARGEST_QUANTISING_SHARE
        record |= {name: max(record[name] - less, least * record[name]) for name in TIMES}
    return record


def _quantising_seconds(record: dict[str, Any]) -> float:
    """Return the time in which the (m, k) activations of a product are quantised before it."""
    size = QUANTISE_BYTES * record["m"] * record["k"] * record["groups"]
    return float(size / (gpus()[record["gpu"]].memory_bytes_per_second * QUANTISE_EFFICIENCY) + QUANTISE_SECONDS)


def _settled(rows: OperatorRows) -> OperatorRows:
    """Return the rows whose best time is of enough versions of the kernel to be that of a good one."""
    keep = np.ones(len(rows), dtype=bool)
    for method, needed in VERSIONS.items():
        for gpu in np.unique(rows.gpu[rows.method == method]):
            mine = (rows.gpu == gpu) & (rows.method == method)
            keep &= ~mine | (rows.versions >= min(needed, rows.versions[mine].max()))
    return rows.take(keep)


def _product(cells: dict[str, str]) -> dict[str, Any] | None:
    m, n, k = (_number(cells[name], 0.0) for name in ("m", "n", "k"))
    groups = _number(cells["b"], 1.0)
    both_gradients = cells["pass"] == "bwd"
    if min(m, n, k) < 1 or both_gradients:
        return None
    flops = 2.0 * m * n * k * groups
    return {
        "m": m,
        "n": n,
        "k": k,
        "groups": groups,
        "flops": flops,
        "direction": _direction(cells["pass"]),
        "training": flops >= TRAINING_FLOPS and m >= TRAINING_TOKENS,
    }


def _direction(name: str) -> int:
    return FORWARD if name == "fwd" else BACKWARD


def _fused_attention(cells: dict[str, str]) -> dict[str, Any] | None:
    if cells["source"] not in ATTENTION_SOURCES or cells["gpu"] == "RTXA5000":
        return None
    queries, keys = _number(cells["seq_q"]), _number(cells["seq_kv"])
    if 0.0 < _number(cells["window"], 0.0) < keys or keys < SHORTEST_SEQUENCE:
        return None
    backward = cells["op"] == "attention_bwd"
    flops = _number(cells["flops"])
    tokens = _number(cells["b"], 1.0) * queries
    return {
        "m": tokens,
        "n": keys,
        "k": _number(cells["head_dim"]),
        "groups": _number(cells["heads"]),
        "flops": flops,
        "bytes": _number(cells["bytes"]),
        "direction": BACKWARD if backward else FORWARD,
        "kind": "backward" if backward else "forward",
        "training": flops >= TRAINING_FLOPS and tokens >= TRAINING_TOKENS,
    }


def _traffic(cells: dict[str, str]) -> dict[str, Any] | None:
    form = MEMORY_FORMS.get(cells["op"])
    scatter = form == LOOKUP and cells["source"] != "vidur"
    if form is None or scatter or cells["subop"] in WRONG_BYTES:
        return None
    size = _number(cells["bytes"], 0.0)
    if size <= 0:
        return None
    return {
        "bytes": size,
        "form": form,
        "direction": _direction(cells["pass"]),
        "kind": "memory",
        "training": size >= 1e7,
    }


READERS: Mapping[str, tuple[str, Callable[[dict[str, str]], dict[str, Any] | None]]] = {
    **dict.fromkeys(("gemm", "bmm", "grouped_gemm"), ("gemm", _product)),
    **dict.fromkeys(("attention_fwd", "attention_bwd"), ("attention", _fused_attention)),
}
"""The family of an operator, and what reads its cells; the others are bound by memory traffic."""
