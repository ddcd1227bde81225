"""A layout in words and as data: every rank's layers, groups, neighbours and predicted memory (`train --dry-run`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from shardwright.rows import grouped
from shardwright.runtime.layout.groups import Layout, Place, expert_group
from shardwright.runtime.state.buckets import buckets_of, held_whole
from shardwright.units import format_bytes

FEWEST_IN_RUN = 5  # ranks that are shown as first and last


def layout_document(layout: Layout) -> dict[str, Any]:
    return {
        "world_size": layout.world_size,
        "ranks": [_rank_document(layout, place) for place in layout.places],
        "groups": [{"purpose": item.purpose, "ranks": list(item.ranks)} for item in layout.communicators()],
    }


def layout_text(layout: Layout) -> str:
    plan = layout.plan
    lines = [f"{plan.model.name} on {layout.world_size} ranks, {plan.data_parallel} copies of the model", ""]
    for place in layout.places:
        before, after = layout.neighbours(place)
        lines += [
            f"{place.name}, {place.gpu}",
            f"  holds      {_units(layout, place)}",
            f"  takes      {_sizes(place)}, from sample {place.first_sample} of each step",
            *_state_lines(layout, place),
            f"  memory     {_memory_words(layout, place)}",
            f"  neighbours before {_ranks(before) or '-'}, after {_ranks(after) or '-'}",
            *_group_lines(layout, place),
            "",
        ]
    return "\n".join(lines).rstrip()


def _sizes(place: Place) -> str:
    """Return the micro-batches of a rank: 5 micro-batches of 2, or of 3 and 2."""
    words = " and ".join(map(str, dict.fromkeys(place.sizes)))
    return f"{place.micro_batches} micro-batch{'es' * (place.micro_batches > 1)} of {words}"


def _state_lines(layout: Layout, place: Place) -> Iterator[str]:
    plan = layout.plan
    if plan.optimizer.parts:
        state = plan.replicas[place.replica].state or 0
        yield f"  keeps      {state} of {plan.optimizer.parts} parts of weights, gradients and optimizer state"
    if plan.job.adapter is not None:
        trained = sum(piece.elements for bucket in buckets_of(layout, place) for piece in bucket.pieces)
        yield f"  trains     {plan.job.adapter.name}, {trained:,} weights of adapters; all others are frozen"


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
        "predicted_memory_bytes": layout.predicted_bytes(place),
        "held_whole": held_whole(layout, place),
        "gradient_groups": [
            {"units": list(bucket.units), "experts": bucket.block, "shard": bucket.shard, "ranks": list(bucket.ranks)}
            for bucket in buckets_of(layout, place)
        ],
    }


def _memory_words(layout: Layout, place: Place) -> str:
    predicted = layout.predicted_bytes(place)
    words = "not predicted: the plan has no prediction" if predicted is None else f"{format_bytes(predicted)} predicted"
    whole = held_whole(layout, place)
    return f"{words}; it takes more: {whole} are held whole" if whole else words


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
    yield from _gradient_lines(layout, place)


def _gradient_lines(layout: Layout, place: Place) -> Iterator[str]:
    """Yield a line for each shard of the gradients and group of ranks that sums it, of however many buckets."""
    alike = grouped(
        ((bucket.block, bucket.shard, bucket.shards, bucket.ranks), unit)
        for bucket in buckets_of(layout, place)
        for unit in bucket.units
    )
    for (block, shard, shards, ranks), units in alike.items():
        part = "" if block is None else f", experts block {block}"
        part += f", shard {shard} of {shards}" if shards > 1 else ""
        with_whom = f"with ranks {_ranks(ranks)}" if len(ranks) > 1 else "alone"
        yield f"  gradients  {_unit_runs(layout, sorted(units))}{part}: {with_whom}"


def _unit_runs(layout: Layout, units: Sequence[int]) -> str:
    """Return rising units in words, neighbours together: embedding to layer 3, head."""
    words = []
    for _, run in groupby(enumerate(units), lambda item: item[1] - item[0]):
        first, *rest = [_name(layout, unit) for _, unit in run]
        words.append(f"{first} to {rest[-1]}" if rest else first)
    return ", ".join(words)


def _name(layout: Layout, unit: int) -> str:
    return "embedding" if unit == 0 else "head" if unit == layout.head else f"layer {unit - 1}"


def _ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks in words; many of them as runs: 0 to 31, or 0, 2, … 62."""
    if len(ranks) < FEWEST_IN_RUN:
        return ", ".join(map(str, ranks))
    words: list[str] = []
    start = 0
    while start < len(ranks):
        stop = start + 1
        while stop < len(ranks) and ranks[stop] - ranks[stop - 1] == ranks[start + 1] - ranks[start]:
            stop += 1
        run = ranks[start:stop]
        if len(run) < FEWEST_IN_RUN:
            words += map(str, run)
        else:
            words.append(f"{run[0]} to {run[-1]}" if run[1] - run[0] == 1 else f"{run[0]}, {run[1]}, … {run[-1]}")
        start = stop
    return ", ".join(words)
