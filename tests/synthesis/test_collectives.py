"""All-to-alls take as long as the fullest link, counted rank by rank; copies as long as the slowest memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.synthesis.clusters import unequal

from shardwright.synthesis.machines import Machines, conversion, exchange
from shardwright.synthesis.properties import PARTIAL, REPLICATED, Property, Sharded


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
