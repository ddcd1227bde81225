"""Published training runs, those that ship with the package and a user's own: one run a row of a CSV file, with the
configuration, what was measured, and what its notes say that has no column: the phrases that are understood, in one
table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from shardwright.errors import bad
from shardwright.files import shipped_file
from shardwright.records import record
from shardwright.spec.job import FP8_RECIPES
from shardwright.spec.text.reading import read_text

NEEDED = ("model", "gpu", "n_gpus", "seq_len", "global_batch")
MEASURED = ("measured_iter_time_s", "measured_tokens_per_s_per_gpu", "measured_mem_gb")
RUNS_FILE, FAILED_FILE = "published.csv.gz", "published_failed.csv.gz"
BLANK = {"", "nan", "none", "null", "n/a", "na", "-", "?"}

SPECIAL = r"([0-9.]+) TB/s, ([0-9.]+) W"
MACHINES, PSEUDO_LAYERS = r"([0-9]+)x ([a-z0-9]+\.[a-z0-9]+)", r"pseudo-layers \[([0-9, ]+)\]"
BLOCK = r"recompute block num_layers=([0-9]+)"
# What notes say or do not say, by field of `Notes`.
SAID = {
    "optimizer_offload": r"optimizer offload|cpu offload \(optimizer\) yes",
    "attention_adapters": r"attention adapters only",
    "fused_loss": r"\bliger\b",
    "first_dense": r"first layer dense",
    "few_steps": r"few steps|steady iterations",
    "rounded": r"digitised|back-computed|computed from rounded",
    "flagged": r"\bflag\b|possible outlier|severe regression",
}


@record
class PublishedRun:
    """One published run. None and "" mean: not published. Sizes of the model are those of its configuration;
    `measured_iter_time_s` are seconds, `measured_mem_gb` GiB or GB as `mem_kind` says, `network_gbps` Gbit/s of one
    machine, `grad_bytes` and `gather_bytes` bytes of an element of what is reduced and gathered, `zero_group` the ranks
    that state is sharded over, `step_sd` the standard deviation of a step over its time."""

    row_id: str
    source: str = ""
    source_file: str = ""
    model: str = ""
    n_params: float | None = None
    layers: float | None = None
    hidden: float | None = None
    ffn: float | None = None
    heads: float | None = None
    kv_heads: float | None = None
    vocab: float | None = None
    n_experts: float | None = None
    top_k: float | None = None
    seq_len: float | None = None
    gpu: str = ""
    gpu_mem_gb: float | None = None
    gpus_per_node: float | None = None
    n_gpus: float | None = None
    precision: str = ""
    framework: str = ""
    tp: float | None = None
    pp: float | None = None
    vpp: float | None = None
    cp: float | None = None
    ep: float | None = None
    dp: float | None = None
    zero_or_fsdp_stage: float | None = None
    micro_batch: float | None = None
    global_batch: float | None = None
    recompute: str = ""
    seq_parallel: str = ""
    dist_optimizer: str = ""
    measured_iter_time_s: float | None = None
    measured_tokens_per_s_per_gpu: float | None = None
    measured_mem_gb: float | None = None
    mem_kind: str = ""
    notes: str = ""
    kind: str = ""
    hetero: str = ""
    quality: str = ""
    dup_group: str = ""
    network_gbps: float | None = None
    machine: str = ""
    power_limit_w: float | None = None
    version: str = ""
    month: str = ""
    cuda_graph: str = ""
    dispatcher: str = ""
    a2a_overlap: str = ""
    tp_overlap: str = ""
    dp_overlap: str = ""
    pp_overlap: str = ""
    grad_bytes: float | None = None
    gather_bytes: float | None = None
    zero_group: float | None = None
    fp32_matmul: str = ""
    fp8_recipe: str = ""
    deterministic: str = ""
    compiled: str = ""
    attention_backend: str = ""
    document_tokens: float | None = None
    routing: str = ""
    layer_pattern: str = ""
    step_sd: float | None = None
    state: str = ""

    @property
    def noted(self) -> Notes:
        """What the notes say that has no column."""
        return notes_of(self.notes)

    @property
    def seconds(self) -> float | None:
        """Measured seconds of one iteration, computed from tokens/s where only that is published."""
        if self.measured_iter_time_s:
            return self.measured_iter_time_s
        rate = self.measured_tokens_per_s_per_gpu
        if not rate or not self.global_batch or not self.seq_len or not self.n_gpus:
            return None
        return self.global_batch * self.seq_len / (rate * self.n_gpus)


# The words that a column may have, beside none.
SWITCHES = ("a2a_overlap", "tp_overlap", "dp_overlap", "pp_overlap", "deterministic", "compiled")
WORDS: Mapping[str, tuple[str, ...]] = {
    "cuda_graph": ("none", "moe", "attention", "layers", "full"),
    "dispatcher": ("alltoall", "allgather", "flex"),
    "fp32_matmul": ("ieee", "tf32"),
    "fp8_recipe": FP8_RECIPES,
    "attention_backend": ("flash", "fused", "unfused"),
    "routing": ("forced", "natural"),
    "state": ("good", "stalled", "capped", "unknown"),
    **dict.fromkeys(SWITCHES, ("true", "false")),
}
TEXT = {field.name for field in fields(PublishedRun) if field.type in ("str", str)}
COLUMNS = tuple(field.name for field in fields(PublishedRun))


def read_runs(path: Path) -> tuple[PublishedRun, ...]:
    """Return the runs of a CSV file. Raises SpecError for a file without rows or without a column it needs, and for a
    cell that is not a number where one belongs, naming the line."""
    return parse_runs(read_text(path), str(path))


def parse_runs(text: str, place: str) -> tuple[PublishedRun, ...]:
    """Return the runs of a CSV text; `place` is named in errors."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise bad(f"{place}, line {reader.line_num + 1}", f"not valid CSV: {error}", "mend the line") from None
    have = set(reader.fieldnames or ())
    missing = [name for name in NEEDED if name not in have]
    if missing:
        raise bad(place, f"lacks the columns {', '.join(missing)}", "see docs/how-to-validate.md for the columns")
    if not have & set(MEASURED):
        raise bad(place, "has no measured column", f"give one of {', '.join(MEASURED)}")
    runs = tuple(_run(row, f"{place}, line {number}", have) for number, row in enumerate(rows, start=2))
    if not runs:
        raise bad(place, "has no rows", "give one run a row")
    return runs


@lru_cache
def published_runs() -> tuple[PublishedRun, ...]:
    return _shipped(RUNS_FILE)


@lru_cache
def published_failed_runs() -> tuple[PublishedRun, ...]:
    return _shipped(FAILED_FILE)


def _shipped(name: str) -> tuple[PublishedRun, ...]:
    return parse_runs(shipped_file("shardwright.validation", name).decode("utf-8"), name)


def _run(row: Mapping[str, str | None], place: str, have: set[str]) -> PublishedRun:
    values: dict[str, object] = {}
    for name in COLUMNS:
        cell = (row.get(name) or "").strip() if name in have else ""
        if name in TEXT:
            values[name] = _word(name, cell, f"{place}, {name}")
        elif cell.casefold() not in BLANK:
            words = name == "network_gbps" and not cell.replace(".", "", 1).isdigit()
            values[name] = _network(row, cell, place) if words else _number(cell, f"{place}, {name}")
    if not values["row_id"]:
        text = "\x1f".join(f"{name}={row.get(name) or ''}" for name in sorted(have))
        values["row_id"] = hashlib.sha256(text.encode()).hexdigest()[:10]
    return PublishedRun(**values)  # type: ignore[arg-type]


def _word(name: str, cell: str, place: str) -> str:
    if name in WORDS and cell and cell.casefold() not in WORDS[name]:
        raise bad(place, f"{cell[:40]!r} is unknown", f"write {', '.join(WORDS[name])}, or leave the cell empty")
    return cell.casefold() if name == "precision" or name in WORDS else cell


def _network(row: Mapping[str, str | None], words: str, place: str) -> float:
    per_machine = (row.get("gpus_per_node") or "").strip()
    gbps = machine_gbps(words, float(per_machine) if per_machine.replace(".", "", 1).isdigit() else 8.0)
    if gbps is None:
        hint = 'write the Gbit/s of one machine, "8x 400 Gb/s" or "400 Gb/s per GPU", or leave the cell empty'
        raise bad(f"{place}, network_gbps", f"{words[:40]!r} says no bandwidth", hint)
    return gbps


def machine_gbps(words: str, gpus: float) -> float | None:
    """Return the Gbit/s of a machine with so many GPUs that a description of its network says, None where it says none:
    adapters times their speed ("8x200Gb/s HDR IB per node"; of several lists that of the computing network), the speed
    of each GPU, or that between machines."""
    lists = [part for part in re.split(r"[,;|]", words) if re.search(r"gb(?:/s|it/s|ps)", part, re.IGNORECASE)]
    stated = next((part for part in lists if "compute" in part.casefold()), lists[0] if lists else "")
    speed = re.search(r"([0-9]+(?:\.[0-9]+)?)\s?gb(?:/s|it/s|ps)", stated, re.IGNORECASE)
    if speed is None:
        return None
    adapters = re.search(r"\b([0-9]+)\s?x", stated[: speed.end()], re.IGNORECASE)
    times = gpus if re.search(r"(?:per|a|each) gpu\b", stated, re.IGNORECASE) else 1.0
    return float(speed[1]) * (float(adapters[1]) if adapters else times)


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise bad(place, f"{cell[:40]!r} is not a number", "write a number, or leave the cell empty") from None
    if not 0.0 <= value < 1e18:
        raise bad(place, f"{cell[:40]} is out of range", "write a number from 0, or leave the cell empty")
    return value


@record
class Notes:
    """What notes say. None and "" mean: nothing of it. `special` are bytes per second and watts of a GPU unlike the
    catalogue's, `block_layers` the layers of a stage that run again, `machines` counts with their types, `boundaries`
    those of stages in the layers of the source, which may count others too."""

    optimizer_offload: bool
    attention_adapters: bool
    fused_loss: bool
    first_dense: bool
    few_steps: bool
    rounded: bool
    flagged: bool
    special: tuple[float, float] | None
    block_layers: int | None
    machines: tuple[tuple[int, str], ...]
    boundaries: tuple[int, ...]


@lru_cache(maxsize=4096)
def notes_of(text: str) -> Notes:
    special, block, boundaries = (_found(pattern, text) for pattern in (SPECIAL, BLOCK, PSEUDO_LAYERS))
    return Notes(
        **{name: _found(pattern, text) is not None for name, pattern in SAID.items()},
        special=(float(special[1]) * 1e12, float(special[2])) if special else None,
        block_layers=int(block[1]) if block else None,
        machines=tuple((int(count), kind) for count, kind in re.findall(MACHINES, text)),
        boundaries=tuple(map(int, boundaries[1].split(","))) if boundaries else (),
    )


def _found(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.IGNORECASE)
