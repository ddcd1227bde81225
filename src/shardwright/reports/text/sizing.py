"""The memory of each way to train, on a terminal and as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from shardwright.reports.text import question
from shardwright.reports.text.layout import WIDTH, listed, table, wrapped
from shardwright.search.sizing import SURE, Size, Sizing
from shardwright.units import GIBIBYTE

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "context")
USUAL = {"precision": "bf16", "optimizer": "adam"}  # what `plan` takes unasked
UNPLANNED = "adapters are sized here, not planned: train them with the PEFT trainer of your framework"


def sizing_text(sizing: Sizing, source: str, width: int = WIDTH) -> str:
    """Return a row for each way, what would make the rest fit, and the command to type next. `source` is how the user
    named the model."""
    pool = sizing.cluster.pools[0]
    samples = sizing.job.global_batch // sizing.cluster.gpus
    lines = (
        question.model_line(sizing.model),
        f"{sizing.cluster.gpus} {pool.gpu.name}, {pool.memory_bytes / GIBIBYTE:.1f} GiB each; "
        f"{samples} × {sizing.job.seq_len} tokens at a time on each, {sizing.job.precision}, {sizing.job.framework}",
        f"Fits with a probability of {SURE:.0%} or more: {_verdict(sizing)}.",
    )
    header = ("way to train", *TERMS, "GiB", "of", "sure", "")
    rows = [_cells(size) for size in sizing.sizes]
    body = table(header, rows, words=("way to train", ""), width=width)
    advice = [f"{size.way.name}: {words}" for size in sizing.sizes if not size.fits and (words := _advice(size))]
    return "\n\n".join(
        part
        for part in (
            "\n".join(wrapped(line, "", width) for line in lines),
            "Memory of the fullest GPU in GiB\n" + body,
            listed("What would make the rest fit", advice, width),
            f"Next\n{_whole(next_command(sizing, source), width)}",
        )
        if part
    )


def _whole(words: str, width: int) -> str:
    """Return a sentence in lines, a command in one, to be copied."""
    return f"  {words}" if words.startswith("shardwright ") else wrapped(words, "  ", width)


def _verdict(sizing: Sizing) -> str:
    names = [size.way.name for size in sizing.sizes if size.fits]
    return ", ".join(names) if names else "nothing"


def _cells(size: Size) -> list[str]:
    parts = [getattr(size.memory, f"{term}_bytes") for term in TERMS]
    parts[-1] += size.memory.buffers_bytes
    cells = [f"{part / GIBIBYTE:.1f}" for part in parts]
    total, room = size.memory.total_bytes / GIBIBYTE, size.memory.capacity_bytes / GIBIBYTE
    return [size.way.name, *cells, f"{total:.1f}", f"{room:.1f}", f"{size.fit_probability:.0%}", "fits" * size.fits]


def _advice(size: Size) -> str:
    words = []
    if size.longest_sequence:
        words.append(f"sequences of at most {size.longest_sequence:,} tokens, one at a time")
    if size.fewest_gpus:
        words.append(f"{size.fewest_gpus} GPUs of this type")
    if size.smallest_gpu:
        words.append(f"a GPU with the memory of the {size.smallest_gpu}")
    return ", or ".join(words)


def next_command(sizing: Sizing, source: str) -> str:
    """Return what to type next: plan on these GPUs where full training fits, else on the fewest that do."""
    pool, job = sizing.cluster.pools[0], sizing.job
    full = [size for size in sizing.sizes if size.way.training == "full"]
    nodes, per_node = pool.nodes, pool.gpus_per_node
    if not any(size.fits for size in full):
        more = min((size.fewest_gpus for size in full if size.fewest_gpus), default=None)
        if more is None and sizing.first is not None:
            return UNPLANNED
        nodes = nodes if more is None else -(-more // per_node)
    batch = max(job.global_batch, nodes * per_node)
    asked = [(name, getattr(job, name)) for name, usual in USUAL.items() if getattr(job, name) != usual]
    return (
        f"shardwright plan --model {source} --cluster {nodes}x{per_node}x{pool.gpu.name} --global-batch {batch} "
        f"--seq-len {job.seq_len}{''.join(f' --{name} {value}' for name, value in asked)}"
    )


def sizing_document(sizing: Sizing, source: str) -> Mapping[str, object]:
    """Return what `fit --json` prints."""
    return {
        "model": sizing.model.name,
        "parameters": sizing.model.parameters,
        "gpu": sizing.cluster.pools[0].gpu.name,
        "gpus": sizing.cluster.gpus,
        "seq_len": sizing.job.seq_len,
        "sure": SURE,
        "ways": [_document(size) for size in sizing.sizes],
        "next": next_command(sizing, source),
    }


def _document(size: Size) -> Mapping[str, object]:
    return {
        "name": size.way.name,
        "training": size.way.training,
        "sharding": size.way.sharding,
        "optimizer_offload": size.way.offload,
        "recompute": size.way.recompute,
        "memory_bytes": asdict(size.memory) | {"total_bytes": size.memory.total_bytes},
        "host_memory_bytes": size.host_bytes,
        "fit_probability": size.fit_probability,
        "fits": size.fits,
        "longest_sequence": size.longest_sequence,
        "fewest_gpus": size.fewest_gpus,
        "smallest_gpu": size.smallest_gpu,
    }
