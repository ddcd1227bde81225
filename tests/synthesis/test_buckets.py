"""The gradients of a block are all-reduced in one call, and priced so: a call takes its latency once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.test_synthesize import GRAPHS

from shardwright.synthesis.baselines import data_parallel
from shardwright.synthesis.decisions import DEFERRED
from shardwright.synthesis.extract import program
from shardwright.synthesis.machines import reduce_flat, reduce_hierarchical
from shardwright.synthesis.prices import prices
from shardwright.synthesis.schedule import Send, schedule
from shardwright.synthesis.synthesize import search


@pytest.mark.parametrize("full", [25e6, 1e4])
def test_calls_are_priced_as_they_are_made(full: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.synthesis.schedule.BUCKET_BYTES", full)
    net, graph = unequal(network=1e30), GRAPHS["gpt2"]()
    net = replace(net, machines=tuple(replace(one, link_bytes_per_second=1e30) for one in net.machines))
    found = search(graph, net, rules=data_parallel)
    made = program(graph, found.space, found.choice, net, found.shares)
    calls = [one.several for one in schedule(graph, made) if isinstance(one, Send) and one.several[0].deferred]
    assert {one.tensor for call in calls for one in call} == {*graph.gradients.values(), graph.loss}
    costs = prices(found.space, net, found.shares)
    times = np.array([use.weight for use in found.space.uses])[costs.columns.use]
    deferred = (found.choice.sent > 0.5) & (costs.columns.kind == DEFERRED)
    latency = min(way(net, 0.0).seconds for way in (reduce_flat, reduce_hierarchical))
    priced = float((times * costs.seconds)[deferred].sum()) / latency
    assert len(calls) < len(graph.gradients) / (8 if full > 1e6 else 1.5)
    assert priced == pytest.approx(len(calls), abs=2 if full > 1e6 else 0.25 * len(calls))
