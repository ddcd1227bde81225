"""A layout in words and as data: every rank's layers, groups, neighbours and predicted memory (`train --dry-run`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardwright.runtime.buckets import buckets_of
from shardwright.runtime.groups import Layout, expert_group
from shardwright.runtime.places import Place
from shardwright.units import format_bytes


def layout_document(layout: Layout) -> dict[str, Any]:
    """Return the layout as JSON data."""
    return {
        "world_size": layout.world_size,
        "ranks": [_rank_document(layout, place) for place in layout.places],
        "groups": [{"purpose": item.purpose, "ranks": list(item.ranks)} for item in layout.communicators()],
    }


def layout_text(layout: Layout) -> str:
    """Return the layout as text for a terminal."""
    plan = layout.plan
    lines = [f"{plan.model.name} on {layout.world_size} ranks, {plan.data_parallel} copies of the model", ""]
    for place in layout.places:
        before, after = layout.neighbours(place)
        lines += [
            f"{place.name}, {place.gpu}",
            f"  holds      {_units(layout, place)}",
            f"  takes      {place.micro_batches} micro-batches of {plan.micro_batch}, "
            f"from sample {place.first_sample} of each step",
            f"  memory     {_memory_words(layout, place)}",
            f"  neighbours before {_ranks(before) or '-'}, after {_ranks(after) or '-'}",
            *_group_lines(layout, place),
            "",
        ]
    return "\n".join(lines).rstrip()


def _rank_document(layout: Layout, place: Place) -> dict[str, Any]:
    before, after = layout.neighbours(place)
    return {
        "rank": place.rank,
        "gpu": place.gpu,
        "replica": place.replica,
        "copy": place.copy,
        "stage": place.stage,
        "context_rank": place.context_rank,
        "tensor_rank": place.tensor_rank,
        "layers": [[unit - 1 for unit in chunk if 0 < unit < layout.head] for chunk in place.chunks],
        "embedding": 0 in place.units,
        "head": layout.head in place.units,
        "micro_batches": place.micro_batches,
        "first_sample": place.first_sample,
        "before": list(before),
        "after": list(after),
        "predicted_memory_bytes": _memory(layout, place),
        "gradient_groups": [
            {"units": list(bucket.units), "experts": bucket.block, "shard": bucket.shard, "ranks": list(bucket.ranks)}
            for bucket in buckets_of(layout, place)
        ],
    }


def _memory(layout: Layout, place: Place) -> float | None:
    prediction = layout.plan.prediction
    if prediction is None or place.replica >= len(prediction.memory):
        return None
    return prediction.memory[place.replica][place.stage].total_bytes


def _memory_words(layout: Layout, place: Place) -> str:
    predicted = _memory(layout, place)
    return "not predicted: the plan has no prediction" if predicted is None else f"{format_bytes(predicted)} predicted"


def _units(layout: Layout, place: Place) -> str:
    return "; ".join(", ".join(_unit_words(layout, chunk)) or "nothing" for chunk in place.chunks)


def _unit_words(layout: Layout, chunk: tuple[int, ...]) -> Iterable[str]:
    layers = [unit - 1 for unit in chunk if 0 < unit < layout.head]
    if 0 in chunk:
        yield "embedding"
    if layers:
        yield f"layers {layers[0]}-{layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}"
    if layout.head in chunk:
        yield "head"


def _group_lines(layout: Layout, place: Place) -> Iterable[str]:
    tensor = layout.tensor_group(place)
    if len(tensor) > 1:
        yield f"  tensor     ranks {_ranks(tensor)}"
    if place.context_parallel > 1:
        yield f"  context    parts of the sequence on ranks {_ranks(layout.context_group(place))}"
    sharing = expert_group(layout.pipelines, place)
    if len(sharing) > 1:
        yield f"  experts    spread over ranks {_ranks(sharing)}"
    for bucket in buckets_of(layout, place):
        names = [_name(layout, unit) for unit in sorted(bucket.units)]
        what = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        part = "" if bucket.block is None else f", experts block {bucket.block}"
        part += f", shard {bucket.shard} of {bucket.shards}" if bucket.shards > 1 else ""
        with_whom = f"with ranks {_ranks(bucket.ranks)}" if len(bucket.ranks) > 1 else "alone"
        yield f"  gradients  {what}{part}: {with_whom}"


def _name(layout: Layout, unit: int) -> str:
    return "embedding" if unit == 0 else "head" if unit == layout.head else f"layer {unit - 1}"


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))
