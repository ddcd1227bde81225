"""Ranks and groups of a plan, as pure data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.plans import cluster_of
from tests.runtime.random_plans import plans
from tests.runtime.samples import mixed_cluster, plan_of, replica, stage, tiny_model

from shardwright import Plan, check
from shardwright.runtime.job.describe import layout_document, layout_text
from shardwright.runtime.layout.groups import Layout, expert_group, key_value_copies, layout_of, vocabulary
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.runtime.state.buckets import buckets_of
from shardwright.runtime.step.channels import make_channels, transfers

MIXED = plan_of(
    tiny_model(6),
    replica(stage((0, 2), tp=2), stage((2, 6), gpu="other"), micro_batches=5),
    replica(stage((0, 6), gpu="other"), count=2, micro_batches=3),
)


def held_parameters(layout: Layout) -> Counter[str]:
    """Return how many elements of each parameter are counted over all ranks' buckets, divided by the copies."""
    found: Counter[str] = Counter()
    for place in layout.places:
        for bucket in buckets_of(layout, place):
            if place.rank == bucket.ranks[0]:
                for piece in bucket.pieces:
                    found[piece.parameter.name] += piece.elements if piece.counted else 0
    return found


def whole_parameters(plan: Plan) -> Counter[str]:
    rows = vocabulary(plan)
    sizes: Counter[str] = Counter()
    for unit in range(len(plan.model.layers) + 2):
        for parameter in unit_parameters(plan.model, unit, rows):
            elements = 1
            for size in parameter.shape:
                elements *= size
            sizes[parameter.name] = elements
    return sizes


def test_places_of_a_mixed_plan() -> None:
    layout = layout_of(MIXED)
    assert [place.gpu for place in layout.places] == ["H100-SXM"] * 2 + ["other"] * 3
    assert [(p.replica, p.copy, p.stage, p.tensor_rank) for p in layout.places] == [
        (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (1, 0, 0, 0), (1, 1, 0, 0),
    ]  # fmt: skip
    assert [p.first_sample for p in layout.places] == [0, 0, 0, 5, 8]
    assert layout.places[0].chunks == ((0, 1, 2),) and layout.places[2].chunks == ((3, 4, 5, 6, 7),)
    assert layout.units[1].holders == ((0, 3, 4), (1, 3, 4)) and layout.units[5].holders == ((2, 3, 4),)
    assert layout.neighbours(layout.places[0]) == ((), (2,)) and layout.neighbours(layout.places[2]) == ((0, 1), ())


def test_uniform_plans_are_numbered_as_megatron_does() -> None:
    plan = replace(
        plan_of(tiny_model(4), replica(stage((0, 2)), stage((2, 4)), count=2, micro_batches=2)), cluster=cluster_of(1)
    )
    outer = [(p.stage, p.copy) for p in layout_of(plan).places]
    inner = [(p.copy, p.stage) for p in layout_of(replace(plan, rank_order="tp-cp-ep-pp-dp")).places]
    assert outer == inner == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_tensor_parallel_group_stays_on_one_machine() -> None:
    cluster = replace(mixed_cluster(), pools=tuple(replace(p, nodes=2, gpus_per_node=4) for p in mixed_cluster().pools))
    replicas = (
        replica(stage((0, 1)), stage((1, 3), tp=4), micro_batches=1),
        replica(stage((0, 3), tp=2), micro_batches=1),
    )
    layout = layout_of(plan_of(tiny_model(3), *replicas, cluster=cluster))
    ranks = {(p.replica, p.stage): layout.tensor_group(p) for p in layout.places}
    assert ranks == {(0, 0): (0,), (1, 0): (1, 2), (0, 1): (3, 4, 5, 6)}  # the first machine has room for the pair


def test_tied_embeddings_join_first_and_last_stage() -> None:
    plan = plan_of(
        tiny_model(4, tied=True),
        replica(stage((0, 2)), stage((2, 4)), micro_batches=1),
        replica(stage((0, 4)), micro_batches=1),
    )
    layout = layout_of(plan)
    assert layout.units[0].holders == ((0, 1, 2),)
    assert layout.unit_numbers(layout.places[1]) == (0, 3, 4, 5)
    assert all(0 not in bucket.units or bucket.units == (0,) for p in layout.places for bucket in buckets_of(layout, p))


@pytest.mark.parametrize(
    ("ranks", "heads", "groups"), [((4, 5), 2, ()), ((0, 1, 2, 3), 2, ((0, 1), (2, 3))), ((6, 7), 1, ((6, 7),))]
)
def test_ranks_with_the_same_key_value_heads(ranks: tuple[int, ...], heads: int, groups: tuple) -> None:
    assert key_value_copies(ranks, heads) == groups


@given(plans())
def test_every_weight_counts_once_and_holders_agree(plan: Plan) -> None:
    layout = layout_of(plan)
    assert check(plan) == () and held_parameters(layout) == whole_parameters(plan)
    seen: dict[tuple, list] = {}
    for place in layout.places:
        buckets = buckets_of(layout, place)
        assert [bucket.units[0] for bucket in buckets] == sorted((b.units[0] for b in buckets), reverse=True)
        for bucket in buckets:
            seen.setdefault((bucket.units, bucket.block, bucket.shard), []).append((place.rank, bucket))
    for holders in seen.values():
        first = holders[0][1]
        assert tuple(rank for rank, _ in holders) == first.ranks
        for _, bucket in holders:
            assert [(p.parameter.name, p.offset, p.start, p.stop) for p in bucket.pieces] == [
                (p.parameter.name, p.offset, p.start, p.stop) for p in first.pieces
            ]
            assert bucket.elements == first.elements and bucket.elements % len(bucket.ranks) == 0


@given(plans())
def test_all_groups_that_are_looked_up_exist(plan: Plan) -> None:
    layout = layout_of(plan)
    there = {(c.purpose, c.ranks) for c in layout.communicators()}
    assert len(there) == len(layout.communicators())
    for place in layout.places:
        group = layout.tensor_group(place)
        assert len(group) == 1 or ("tensor", group) in there
        sharing = expert_group(layout.pipelines, place)
        assert place.rank in sharing and (len(sharing) == 1 or ("experts", sharing) in there)
        for bucket in buckets_of(layout, place):
            assert len(bucket.ranks) == 1 or ("gradient", bucket.ranks) in there


@pytest.mark.parametrize(("experts", "most"), [(0, 9), (8, 16)])
def test_a_rank_of_512_has_few_groups_and_no_more_than_one_of_64(experts: int, most: int) -> None:
    """Three stages on one type of GPU, five on another; experts on four ranks and on eight."""

    def groups_of_a_rank(copies: int) -> int:
        fast = [stage((first, first + 5), tp=4, ep=4 if experts else 1, etp=1) for first in (0, 5, 10)]
        slow = [
            stage((first, first + 3), tp=4, gpu="other", ep=8 if experts else 1, etp=1) for first in range(0, 15, 3)
        ]
        parts = (replica(*stages, count=copies, micro_batches=2) for stages in (fast, slow))
        pools = tuple(replace(pool, nodes=nodes) for pool, nodes in zip(mixed_cluster().pools, (24, 40), strict=True))
        cluster = replace(mixed_cluster(), pools=pools)
        layout = layout_of(plan_of(tiny_model(15, experts=experts), *parts, cluster=cluster, sharding="zero1"))
        assert check(layout.plan) == () and layout.world_size == 32 * copies
        return max(Counter(rank for group in layout.communicators() for rank in group.ranks).values())

    assert groups_of_a_rank(16) == groups_of_a_rank(2) == most


@given(plans())
def test_messages_of_each_way_have_a_group_of_their_own(plan: Plan) -> None:
    """On NCCL a message would else wait for others of its group that have nothing to do with it."""
    layout = layout_of(plan)
    groups = ProcessGroups(groups={each: each for each in layout.communicators()})
    links = [make_channels(layout, place, groups, torch.float32, torch.device("cpu")).links for place in layout.places]
    for place, own in zip(layout.places, links, strict=True):
        assert len({link.group for link in own.values()}) == len(own)
        for (kind, way, wraps), link in own.items():
            assert place.rank in link.group.ranks
            if way == "out":
                assert all(links[part.target][kind, "in", wraps].group == link.group for part in link.parts)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.booleans())
def test_transfers_bring_every_position_once(sources: int, targets: int, sharded: bool) -> None:
    before, after = range(10, 10 + sources), range(20, 20 + targets)
    messages = transfers(before, after, 16, sharded=sharded)
    for index, target in enumerate(after):
        length = 16 // targets if sharded else 16
        start = index * length if sharded else 0
        got: list[int | None] = [None] * length
        for message in messages:
            if message.target == target:
                origin = before.index(message.source) * (16 // sources) if sharded else 0
                for offset, position in enumerate(range(*message.into)):
                    assert got[position] is None
                    got[position] = origin + message.part[0] + offset
        assert got == list(range(start, start + length))


def test_dry_run_shows_every_rank() -> None:
    layout = layout_of(MIXED)
    text, document = layout_text(layout), layout_document(layout)
    assert all(place.name in text for place in layout.places)
    assert "embedding to layer 1, shard 1 of 2: with ranks 1, 3, 4" in text
    assert [rank["layers"] for rank in document["ranks"]][2:4] == [[[2, 3, 4, 5]], [[0, 1, 2, 3, 4, 5]]]
    assert {"purpose": "tensor", "ranks": [0, 1]} in document["groups"]


def test_many_ranks_and_buckets_make_few_lines() -> None:
    model = replace(tiny_model(4), vocab=200_000)  # so large that the head has a bucket of its own
    wide = layout_of(plan_of(model, replica(stage((0, 4)), count=8, micro_batches=1), cluster=cluster_of(1)))
    assert len(buckets_of(wide, wide.places[0])) > 1
    lines = [line for line in layout_text(wide).splitlines() if "gradients" in line]
    assert lines == ["  gradients  embedding to head: with ranks 0 to 7"] * 8


def test_what_cannot_be_run_is_said_with_its_place() -> None:
    plan = replace(MIXED, model=replace(MIXED.model, family="llama4_text", activation="xielu", mtp_layers=1))
    paths = [problem.path for problem in unrunnable(plan)]
    assert paths == ["model"] * 3
    assert unrunnable(MIXED) == ()
