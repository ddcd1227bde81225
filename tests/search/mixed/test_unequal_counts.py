"""GPUs of one type whose number does not divide the batch are not left idle where experts or sequences are spread."""

from __future__ import annotations

from itertools import product

import pytest
from tests.nightly import nightly

import shardwright
from shardwright.plans.check import check
from shardwright.runtime.layout.limits import unrunnable
from shardwright.search.mixed.heuristics.unequal_counts import shares, unequal_counts
from shardwright.search.planner import contexts_for
from shardwright.search.planner import plan as search
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, parse_pins

# Batch, sequence, and the part of the seconds of equal replicas that is gained.
GAINS = {
    ("deepseek-v2-lite", "7x8xA100-SXM-80"): (256, 4096, 0.15),
    ("llama-3.1-8b", "5x8xH100-SXM"): (32, 65536, 0.07),
}


@pytest.mark.parametrize("total", range(1, 30))
def test_shares_are_all_ways_to_have_the_fewest_micro_batches_on_the_busiest(total: int) -> None:
    for copies, step in product(range(1, 13), (1, 2, 4)):
        every = range(1, total + 1)
        ways = {
            ((first, most), (copies - first, fewer))
            for first in range(1, copies)
            for most, fewer in product(every, every)
            if fewer < most and first * most + (copies - first) * fewer == total
            if first % step == 0 and (copies - first) % step == 0
        }
        least = -(-total // copies)
        assert set(shares(total, copies, step)) == {way for way in ways if way[0][1] == least}


@pytest.mark.parametrize(("name", "machines"), [("llama-3.1-8b", "5x8xH100-SXM"), *nightly(list(GAINS)[:1])])
def test_all_gpus_work_at_a_batch_that_their_number_does_not_divide(name: str, machines: str) -> None:
    batch, seq_len, gain = GAINS[name, machines]
    job = shardwright.make_job(global_batch=batch, seq_len=seq_len, framework="train")
    model, cluster = shardwright.load_model(name), shardwright.load_cluster(machines)
    best, other = search(model, cluster, job, top=2).plans
    assert best.gpus == cluster.gpus and len(best.replicas) == 2 and not check(best) and not unrunnable(best)
    assert any(stage.context_parallel * stage.expert_parallel > 1 for stage in best.replicas[0].stages)
    assert best.iteration_seconds < (1.0 - gain) * other.iteration_seconds


@pytest.mark.parametrize("pins", ["dp=4", "gpus=32", "vpp=2", "sharding=zero3", "cp=1"])
def test_pins_are_kept(pins: str) -> None:
    batch, seq_len, _ = GAINS["llama-3.1-8b", "5x8xH100-SXM"]
    job = shardwright.make_job(global_batch=batch, seq_len=seq_len, framework="train")
    cluster = shardwright.load_cluster("5x8xH100-SXM")
    (context,) = contexts_for(shardwright.load_model("llama-3.1-8b"), cluster, job, 0.9, None)
    assert len(unequal_counts(context, cluster, Space(), Filters(), float("inf"))) == 1
    assert not unequal_counts(context, cluster, parse_pins([pins]), Filters(), float("inf"))
