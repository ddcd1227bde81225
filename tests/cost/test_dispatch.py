"""Tokens on their way to experts: closed forms, and a token crosses to a machine once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.network.collectives import Fabric, Group, dispatch_seconds
from shardwright.spec.options import Dispatcher


def links(inter: float = 50e9) -> Fabric:
    return Fabric(
        domain_gpus=8,
        intra_bytes_per_second=200e9,
        intra_latency_seconds=0.0,
        inter_bytes_per_second=inter,
        inter_latency_seconds=0.0,
    )


def time(
    size: int, local: int, size_bytes: float, top_k: int, fabric: Fabric | None = None, dispatcher: Dispatcher = "flex"
) -> float:
    group = Group(size=np.array([size]), local=np.array([local]))
    return float(dispatch_seconds(fabric or links(), group, np.array([size_bytes]), top_k, dispatcher)[0])


def test_within_a_machine_all_copies_travel_but_those_that_stay():
    assert time(8, 8, 1e9, 1) == pytest.approx(7 / 8 * 1e9 / 200e9)
    assert time(8, 8, 1e9, 6) == pytest.approx(6 * time(8, 8, 1e9, 1))
    assert time(1, 1, 1e9, 6) == 0.0


def test_between_machines_one_expert_a_token_is_an_all_to_all():
    assert time(16, 8, 1e9, 1, links(inter=1e9)) == pytest.approx(0.5 * 1e9 / 1e9)


@given(machines=st.integers(2, 32), top_k=st.integers(1, 16), size_bytes=st.floats(1e3, 1e10))
def test_a_token_visits_no_more_machines_than_there_are_or_it_has_experts(machines, top_k, size_bytes):
    slow = links(inter=1e9)
    once = size_bytes * (machines - 1) / machines / slow.inter_bytes_per_second
    found = time(8 * machines, 8, size_bytes, top_k, slow)
    assert once * (1 - 1e-12) <= found <= once * min(top_k, machines) * (1 + 1e-12)


def test_an_all_to_all_sends_each_copy_and_a_gather_all_tokens():
    slow = links(inter=1e9)
    assert time(8, 8, 1e9, 4, slow, "alltoall") == time(8, 8, 1e9, 4, slow)
    assert time(32, 8, 1e9, 4, slow, "alltoall") == pytest.approx(4 * 0.75)  # 3/4 of the copies leave
    assert time(32, 8, 1e9, 4, slow) == pytest.approx(4 * (1 - 0.75**4) * 0.75)
    few, many = (time(32, 8, 1e9, top_k, slow, "allgather") for top_k in (1, 8))
    assert few == many > 3.0
