"""What is cut over ranks under ZeRO-2 and ZeRO-3, and what is held whole."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.cost.frameworks.optimizer import state_width
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.sizes import copied_bytes, gradient_bytes, weight_bytes
from shardwright.cost.predict import predict
from shardwright.plans.plan import Plan, Sharding
from shardwright.runtime.job.describe import layout_text
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.state import buckets
from shardwright.runtime.state.buckets import held_whole, kept_apart
from shardwright.runtime.state.store import fill, make_store

MODEL, TIED = tiny_model(4), tiny_model(4, tied=True)
COPIES = replica(stage((0, 4)), count=4, micro_batches=2)
STAGES = replica(stage((0, 2)), stage((2, 4)), count=2, micro_batches=2)


def copies(sharding: Sharding) -> Plan:
    return plan_of(MODEL, COPIES, sharding=sharding)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (copies("zero1"), [""] * 4),
        (copies("zero2"), [""] * 4),
        (copies("zero3"), [""] * 4),
        (plan_of(MODEL, STAGES, sharding="zero3"), [""] * 4),
        (
            plan_of(TIED, STAGES, sharding="zero3"),
            ["weights and gradients of 1 of 3 units"] * 2 + ["weights and gradients of 1 of 4 units"] * 2,
        ),
        (
            plan_of(
                MODEL,
                replica(*STAGES.stages, micro_batches=2),
                replica(stage((0, 4)), micro_batches=1),
                sharding="zero2",
            ),
            ["gradients"] * 3,
        ),
    ],
)
def test_only_what_holders_pass_together_is_cut(plan: Plan, expected: list[str]) -> None:
    layout = layout_of(plan)
    assert [held_whole(layout, place) for place in layout.places] == expected
    assert ("it takes more" in layout_text(layout)) == any(expected)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_a_rank_keeps_its_part_of_the_memory(sharding: Sharding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "LARGEST_MERGED_ELEMENTS", 1)
    layout = layout_of(copies(sharding))
    place = layout.places[1]
    store = make_store(layout, place, torch.bfloat16, torch.device("cpu"))
    fill(store, lambda parameter: torch.ones(parameter.shape))
    for buffer in store.buffers:
        expected = kept_apart(layout, buffer.bucket)
        assert expected == (sharding == "zero3", sharding != "zero1")
        for flat, cut in zip((buffer.weights, buffer.gradients), expected, strict=True):
            assert flat.sharded == cut
            assert flat.kept.numel() * (4 if cut else 1) == buffer.bucket.elements
            assert flat.whole.untyped_storage().nbytes() == (0 if cut else flat.whole.nbytes)
    elements = sum(piece.elements for buffer in store.buffers for piece in buffer.bucket.pieces)
    ones = sum(int(buffer.weights.kept.sum()) for buffer in store.buffers)
    assert ones == elements if sharding != "zero3" else 0 < ones <= elements


def test_parts_of_all_ranks_make_the_whole() -> None:
    layout = layout_of(copies("zero3"))
    parts = []
    for place in layout.places:
        store = make_store(layout, place, torch.float32, torch.device("cpu"))
        fill(store, lambda parameter: torch.arange(float(torch.Size(parameter.shape).numel())).view(parameter.shape))
        parts.append(store.buffers[0])
    whole = torch.cat([buffer.weights.kept for buffer in parts])
    for piece in parts[0].bucket.pieces:
        found = whole[piece.offset : piece.offset + piece.elements]
        assert torch.equal(found, torch.arange(float(piece.elements)))


@pytest.mark.parametrize("degree", [1, 2])
def test_weights_and_gradients_of_unequal_degrees_take_what_is_priced(degree: int) -> None:
    """A rank with both shards of what others have one of each keeps them apart, and whole for its passes."""
    parts = replica(stage((0, 4), tp=2), micro_batches=1), replica(stage((0, 4), tp=degree), micro_batches=1)
    layout = layout_of(plan_of(tiny_model(4, vocab=64), *parts, sharding="zero1", precision="bf16"))
    store = make_store(layout, layout.places[-1], torch.bfloat16, torch.device("cpu"))
    found = [flat.whole for buffer in store.buffers for flat in (buffer.weights, buffer.gradients)]
    found += [tensor for weight in store.parameters.values() for tensor in (weight, weight.grad) if tensor is not None]
    kept = sum({value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in found}.values())
    held = sum(weight.numel() for weight in store.parameters.values())
    once = weight_bytes(layout.plan.job) + gradient_bytes(layout.plan.job)
    assert kept == pytest.approx(
        (once + (sum(copied_bytes(layout.plan.model, layout.plan.job)) if degree == 1 else 0.0)) * held, rel=0.02
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_account_has_the_state_that_ranks_keep(seed: int) -> None:
    """Of pipelines, whose two ends share out the state of a tied embedding, and of single stages."""
    draw = Random(seed)
    depth, tp = draw.choice((1, 2, 4)), draw.choice((1, 2))
    copies = draw.choice((1, 2, 4)) if depth * tp == 1 else draw.choice((1, 8 // (depth * tp)))
    sharding: Sharding = "zero1" if copies > 1 else "none"
    model = tiny_model(4, tied=draw.random() < 0.7, vocab=2048, hidden=256)
    stages = [stage((4 * rank // depth, 4 * (rank + 1) // depth), tp=tp) for rank in range(depth)]
    plan = plan_of(model, replica(*stages, count=copies, micro_batches=4), sharding=sharding)
    plan = replace(plan, job=replace(plan.job, framework="train"))
    layout, account = layout_of(plan), predict(plan, default_efficiency()).memory[0]
    for place in layout.places:
        parts = (
            bucket.own(place.rank, sharded=plan.optimizer.distributed) for bucket in buckets.buckets_of(layout, place)
        )
        elements = sum(stop - start for start, stop in parts)
        state = account[place.stage].optimizer_bytes / state_width(model, plan.job)
        assert state == pytest.approx(elements, rel=0.003)
