"""All-to-alls take as long as the fullest link, copies as long as the slowest memory, and a call its latency once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.synthesis.clusters import unequal
from tests.synthesis.test_synthesize import GRAPHS

from shardwright.synthesis.baselines import data_parallel
from shardwright.synthesis.decisions import DEFERRED
from shardwright.synthesis.extract import program
from shardwright.synthesis.graph import PARTIAL, REPLICATED, Property, Sharded
from shardwright.synthesis.machines import Machines, conversion, exchange, reduce_flat, reduce_hierarchical
from shardwright.synthesis.prices import prices
from shardwright.synthesis.schedule import Send, schedule
from shardwright.synthesis.synthesize import search


@pytest.mark.parametrize("seed", range(5))
def test_an_exchange_takes_as_long_as_the_fullest_link(seed: int) -> None:
    net, draw = unequal(2, 1, gpus=2, network=1e6), np.random.default_rng(seed)
    old, new = (draw.dirichlet(np.full(net.ranks, 0.3)) for _ in range(2))
    moved = np.outer(old, new) * 1e6
    card, link = np.zeros((2, 3)), np.zeros((2, net.ranks))
    for source in range(net.ranks):
        for target in range(net.ranks):
            ends = net.machine_of[source], net.machine_of[target]
            if ends[0] != ends[1]:
                card[0, ends[0]] += moved[source, target]
                card[1, ends[1]] += moved[source, target]
            elif source != target:
                link[0, source] += moved[source, target]
                link[1, target] += moved[source, target]
    rates = np.array([machine.link_bytes_per_second for machine in net.machines])[net.machine_of]
    found = exchange(net, 1e6, old, new)
    assert found.seconds - found.latency_seconds == pytest.approx(max(card.max() / 1e6, (link / rates).max()))


@pytest.mark.parametrize(
    ("source", "target", "copied"),
    [
        (Sharded(0, 8), REPLICATED, 1.125),
        (PARTIAL, Sharded(1, 8), 1.125),
        (Sharded(0, 8), Sharded(1, 8), 0.25),
        (PARTIAL, REPLICATED, 1.0),
        (REPLICATED, Sharded(0, 8), 0.0),
    ],
)
def test_what_is_sent_is_copied_in_and_out(source: Property, target: Property, copied: float) -> None:
    """The slow ranks hold an eighth each, and copy at 10 GB/s, reading and writing."""
    fast, slow = unequal(gpus=2).machines
    limited = replace(slow, device=replace(slow.device, memory_bytes_per_second=1e10))
    pace = replace(unequal(), machines=(fast, limited))
    shares = np.array([3, 3, 1, 1]) / 8

    def seconds(net: Machines) -> float:
        return conversion(net, 1e9, source, target, lambda _: shares).seconds

    assert seconds(pace) - seconds(unequal()) == pytest.approx(copied * 2 * 1e9 / 1e10)


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
