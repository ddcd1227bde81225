"""Collectives: exact in simple cases, monotone in everything, and never better than their links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.cost.samples import pool

from shardwright.cost.network.collectives import (
    Fabric,
    Group,
    exchange_seconds,
    exposed_seconds,
    fabric,
    gather_seconds,
    group,
    product,
    reduce_seconds,
    stage_crossings,
    transfer_seconds,
)

LINKS = Fabric(
    domain_gpus=8, intra_bytes_per_second=200e9, intra_latency_seconds=2e-6, inter_bytes_per_second=20e9,
    inter_latency_seconds=1e-5,
)  # fmt: skip

sizes = st.integers(0, 40).map(lambda step: 10 ** (step / 4))
links = st.builds(
    Fabric, domain_gpus=st.sampled_from([1, 2, 4, 8, 72]), intra_bytes_per_second=st.floats(1e9, 1e12),
    intra_latency_seconds=st.floats(0, 1e-4), inter_bytes_per_second=st.floats(1e8, 1e12),
    inter_latency_seconds=st.floats(0, 1e-3), call_steps=st.floats(0, 20), ramp_bytes=st.floats(0, 1e7),
    ramp_bytes_per_rank=st.floats(0, 1e7), ramp_slowdown=st.floats(0, 4), inter_ramp_bytes=st.floats(0, 1e7),
    pair_loss=st.floats(0, 1.6), reduce_gain=st.floats(1, 1.4), mesh_gpus=st.sampled_from([0, 4, 8]),
)  # fmt: skip
ranks, strides = st.integers(1, 300), st.sampled_from([1, 2, 3, 4, 8, 16, 64])


def one(fabric_: Fabric, size: int, stride: int) -> Group:
    return group(fabric_, np.array([size]), np.array([stride]))


def test_a_ring_inside_a_domain():
    seconds = gather_seconds(LINKS, one(LINKS, 4, 2), np.array([8e9]))
    assert seconds == pytest.approx(8e9 * 3 / 4 / 200e9 + 3 * 2e-6)


def test_a_ring_between_domains():
    assert gather_seconds(LINKS, one(LINKS, 4, 8), np.array([8e9])) == pytest.approx(8e9 * 3 / 4 / 20e9 + 3 * 1e-5)


def test_an_all_reduce_between_many_domains_is_a_tree():
    """Sixteen domains: 2 · 4 steps instead of 2 · 15."""
    seconds = reduce_seconds(LINKS, one(LINKS, 16, 8), np.array([8e9]))
    assert seconds == pytest.approx(2 * (8e9 * 15 / 16 / 20e9 + 4 * 1e-5))


def test_local_ranks_carry_the_traffic_between_domains_together():
    """Of 16 ranks 8 share a domain: one ring through all enters each domain over eight adapters, in 14 steps inside
    domains and one between them."""
    seconds = gather_seconds(LINKS, one(LINKS, 16, 1), np.array([8e9]))
    assert seconds == pytest.approx(max(7.5e9 / 200e9, 7.5e9 / (8 * 20e9)) + 14 * 2e-6 + 1e-5)


def test_small_messages_do_not_fill_a_ring():
    """At `ramp_slowdown` 2 they take three times as long as at full bandwidth, long ones twice the ramp more."""
    slow = replace(LINKS, ramp_bytes=1e6, ramp_slowdown=2.0, intra_latency_seconds=0.0)
    small, large = (gather_seconds(slow, one(slow, 4, 1), np.array([size])) * 200e9 for size in (1e2, 1e12))
    assert small == pytest.approx(3 * 0.75e2, rel=1e-3)
    assert large == pytest.approx(0.75e12 + 2e6, abs=1e4)


def test_a_mesh_gives_few_ranks_few_of_its_links():
    mesh = replace(LINKS, mesh_gpus=8, intra_latency_seconds=0.0)
    two, all_ranks = (gather_seconds(mesh, one(mesh, n, 1), np.array([8e9])) for n in (2, 8))
    assert two == pytest.approx(8e9 / 2 / (200e9 / 7))
    assert all_ranks == pytest.approx(8e9 * 7 / 8 / 200e9)


def test_an_exchange_sends_most_of_itself_out_of_the_domain():
    seconds = exchange_seconds(LINKS, one(LINKS, 32, 1), np.array([3.2e9]))
    assert seconds == pytest.approx(3.2e9 * 24 / 32 / 20e9 + 1e-5)


def test_a_machine_shares_its_network():
    """The catalogue gives the network of a whole machine; a GPU has its part of it."""
    made = fabric(pool(2, 8, inter_bytes_per_second=400e9), intra_efficiency=0.5, inter_efficiency=0.25)
    assert made.inter_bytes_per_second == pytest.approx(400e9 / 8 / 4)
    assert made.intra_bytes_per_second == pytest.approx(150e9)


@given(fabric_=links, size=ranks, stride=strides, size_bytes=sizes, more=st.floats(1, 100))
def test_more_bytes_are_never_faster(fabric_, size, stride, size_bytes, more):
    groups = one(fabric_, size, stride)
    for seconds in (gather_seconds, reduce_seconds, exchange_seconds):
        fewer, many = (seconds(fabric_, groups, np.array([s])) for s in (size_bytes, size_bytes * more))
        assert 0 <= fewer <= many


@given(fabric_=links, stride=strides, size_bytes=sizes)
def test_one_rank_has_nothing_to_say(fabric_, stride, size_bytes):
    for seconds in (gather_seconds, reduce_seconds, exchange_seconds):
        assert seconds(fabric_, one(fabric_, 1, stride), np.array([size_bytes])) == 0.0


@given(fabric_=links, size=ranks, stride=strides, size_bytes=sizes)
def test_an_all_reduce_is_never_slower_than_a_reduce_scatter_and_an_all_gather(fabric_, size, stride, size_bytes):
    groups, buffer = one(fabric_, size, stride), np.array([size_bytes])
    assert reduce_seconds(fabric_, groups, buffer) <= 2 * gather_seconds(fabric_, groups, buffer) * (1 + 1e-12)


@given(fabric_=links, size=ranks, stride=strides, size_bytes=sizes, faster=st.floats(1, 10))
def test_faster_links_are_never_slower(fabric_, size, stride, size_bytes, faster):
    better = replace(
        fabric_, intra_bytes_per_second=faster * fabric_.intra_bytes_per_second,
        inter_bytes_per_second=faster * fabric_.inter_bytes_per_second,
        intra_latency_seconds=fabric_.intra_latency_seconds / faster,
        inter_latency_seconds=fabric_.inter_latency_seconds / faster,
    )  # fmt: skip
    groups = one(fabric_, size, stride)
    for seconds in (gather_seconds, exchange_seconds):
        assert seconds(better, groups, np.array([size_bytes])) <= seconds(fabric_, groups, np.array([size_bytes]))


@given(fabric_=links, size=ranks, stride=strides, size_bytes=sizes)
def test_no_rank_receives_faster_than_its_links(fabric_, size, stride, size_bytes):
    assume(size > 1)
    groups = one(fabric_, size, stride)
    fastest = max(fabric_.intra_bytes_per_second, fabric_.inter_bytes_per_second * groups.local[0])
    seconds = gather_seconds(fabric_, groups, np.array([size_bytes]))
    assert seconds * (1 + 1e-12) >= size_bytes / 2 / fastest


@given(inner=st.integers(1, 16), outer=st.integers(1, 16), stride=st.sampled_from([1, 2, 4]))
def test_groups_of_groups_are_the_group_of_all(inner, outer, stride):
    """Context parallel ranks and, outside them, data parallel ranks are one group of neighbours."""
    small, large = one(LINKS, inner, stride), one(LINKS, outer, stride * inner)
    joint = product(small, large)
    assert joint.size == inner * outer
    assert 1 <= joint.local[0] <= min(8, inner * outer)
    if 8 % (stride * inner) == 0:
        whole = one(LINKS, inner * outer, stride)
        assert joint.local == whole.local


@given(communication=st.floats(0, 10), computation=st.floats(0, 10))
def test_overlap_hides_only_what_fits_beside_computation(communication, computation):
    exposed = float(exposed_seconds(np.array(communication), np.array(computation)))
    assert max(0.0, communication - computation) <= exposed * (1 + 1e-12) + 1e-12
    assert exposed <= communication * (1 + 1e-12)


def test_stage_crossings_leave_a_domain_where_its_ranks_end():
    crosses = stage_crossings(LINKS.domain_gpus, 4, np.array([1, 4, 8]))
    np.testing.assert_array_equal(crosses, [[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
    slow, fast = transfer_seconds(LINKS, np.array([1e9, 1e9]), np.array([True, False]))
    assert slow == pytest.approx(1e9 / 20e9 + 1e-5) and fast == pytest.approx(1e9 / 200e9 + 2e-6)
