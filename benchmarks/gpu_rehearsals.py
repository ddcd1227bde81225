"""Rehearsals beside the GPU, for `gpu.py`: a rank of a plan of many GPUs runs on the one of this machine, with
collectives that move nothing, and the peaks of PyTorch's allocator stand beside the rehearsal on fake tensors and the
account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwright import Plan, SpecError, load_cluster, load_model, make_job
from shardwright.rehearsal.document import expected, memory_of
from shardwright.rehearsal.rehearse import NoRoomError, asked
from shardwright.rehearsal.trainers import question_of
from shardwright.reports.text.layout import table
from shardwright.runtime.layout.groups import places_of
from shardwright.search.planner import plan
from shardwright.search.space.axes import parse_pins
from shardwright.spec.adapter import parse_adapter
from shardwright.units import GIBIBYTE, GIGA

SECONDS, LIMIT_BYTES = 300.0, 8.0 * GIGA
NONE, FULL = "recompute=none", "recompute=uniform recompute_layers=1"
HEADER = ("trainer", "model", "rank", "setting", "account", "rehearsed", "allocated", "reserved", "beside tensors")
TITLE = """5. A rank of a plan on this GPU, GiB
Tensors as the account has them, as rehearsed on fake tensors, and as PyTorch's allocator counted them; what it had from
the driver, and what the account adds beside tensors.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A rank of a plan of some GPUs, with tokens a sample and samples a step; `compiled`: its layers are."""

    trainer: str
    model: str
    rank: int
    gpus: int
    seq_len: int
    batch: int
    pins: str
    adapter: str | None = None
    compiled: bool = False


CASES = (
    Case("fsdp", "llama-3.2-1b", 0, 8, 4096, 16, f"sharding=zero3 micro_batch=2 {NONE}"),
    Case("fsdp", "llama-3-8b", 0, 8, 8192, 8, f"sharding=zero3 micro_batch=1 {FULL}"),
    Case("fsdp", "qwen3-8b", 0, 16, 4096, 16, f"sharding=zero2 micro_batch=1 {FULL}"),
    Case("fsdp", "llama-3-8b", 0, 2, 4096, 4, f"sharding=zero3 micro_batch=2 {NONE}", "lora:16"),
    Case("fsdp", "llama-3-70b", 0, 64, 4096, 64, f"sharding=zero3 micro_batch=1 {FULL}"),
    Case("train", "llama-3-8b", 0, 8, 4096, 8, f"tp=2 pp=1 sharding=zero1 micro_batch=1 {NONE}"),
    Case("train", "llama-3-8b", 0, 8, 4096, 16, f"tp=1 pp=4 vpp=4 sharding=zero1 micro_batch=1 {NONE}"),
    Case("train", "llama-3-8b", 7, 8, 4096, 16, f"tp=1 pp=4 vpp=4 sharding=zero1 micro_batch=1 {NONE}"),
    Case("train", "llama-2-7b", 0, 8, 4096, 16, f"tp=1 pp=1 sharding=zero3 micro_batch=2 {FULL}"),
    Case("train", "olmoe-1b-7b", 0, 8, 4096, 8, f"tp=1 pp=1 ep=1 sharding=zero1 micro_batch=1 {NONE}"),
)


def text(on_gpu: bool) -> str:
    """Return the table of all cases; without a GPU, of what needs none and of the first case alone."""
    lines = [_cells(case, on_gpu) for case in (_cases() if on_gpu else CASES[:1])]
    return f"{TITLE}{table(HEADER, lines, words=HEADER[:4])}"


def _cases() -> Iterator[Case]:
    for case in CASES:
        yield case
        if case.trainer == "train":
            yield replace(case, compiled=True)


def _plan(case: Case) -> Plan:
    job = make_job(global_batch=case.batch, seq_len=case.seq_len, framework=case.trainer)
    if case.adapter is not None:
        job = replace(job, adapter=parse_adapter(case.adapter, "linear"))
    pins = f"{case.pins} cp=1 offload=0" + (" tp=1 pp=1 gradient_sync=every" if case.trainer == "fsdp" else "")
    cluster = load_cluster(f"{-(-case.gpus // 8)}x{min(case.gpus, 8)}xH200-SXM")
    return plan(load_model(case.model), cluster, job, space=parse_pins(pins.split()), top=1, fit=0.01).best


def _cells(case: Case, on_gpu: bool) -> list[str]:
    chosen = _plan(case)
    place = places_of(chosen)[case.rank]
    wanted = expected(chosen, place, memory_of(chosen))
    question = question_of(chosen, case.trainer, place) | {"compiled": case.compiled}
    rehearsed = _answer(question | {"compiled": False}).get("peak_bytes")
    there = _answer(question | {"on_gpu": True}) if on_gpu else {}
    setting = f"{case.pins}{' adapter=' + case.adapter if case.adapter else ''}{', compiled' if case.compiled else ''}"
    sizes = (wanted.tensor_bytes, rehearsed, there.get("allocated_bytes"), there.get("reserved_bytes"))
    told = "" if not there.get("exhausted") else " (memory ended)"
    return [case.trainer, case.model, f"{case.rank} of {case.gpus}", setting + told, *map(_gib, sizes),
            _gib(wanted.memory.context_bytes)]  # fmt: skip


def _answer(question: dict[str, object]) -> dict[str, float]:
    """Return what a process says of a rank; what is refused here, as on another PyTorch, has no figures."""
    try:
        return asked(question, python=None, seconds=SECONDS, limit_bytes=LIMIT_BYTES)
    except (SpecError, NoRoomError) as error:
        print(f"rank {question['rank']}: {error}", flush=True)
        return {}


def _gib(size: float | None) -> str:
    return "–" if size is None else f"{size / GIBIBYTE:.2f}"
