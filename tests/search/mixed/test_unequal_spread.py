"""Unequal replicas where experts or sequences are spread: over several types, which are priced beside the proof, and of
one type, whose number need not divide the batch.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from tests.nightly import nightly

import shardwright
from shardwright.cost.context import Context
from shardwright.plans.check import check
from shardwright.plans.findings import NotCovered
from shardwright.runtime.layout.limits import unrunnable
from shardwright.search.mixed.drafts.draft import fitting_seconds
from shardwright.search.mixed.entry import run_by_train
from shardwright.search.mixed.heuristics.unequal_counts import shares, unequal_counts
from shardwright.search.mixed.heuristics.unequal_spread import hint_of, unequal_spread
from shardwright.search.mixed.one_mesh import mesh_search
from shardwright.search.planner import contexts_for, plan
from shardwright.search.planner import plan as search
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, parse_pins

LONG = ("llama-3.1-8b", "1x8xH100-SXM+2x8xA100-SXM-80", 16, 65536)
EXPERTS = ("qwen3-30b-a3b", "3x8xH100-SXM+5x8xA100-SXM-80", 512, 4096)


def question(name: str, cluster: str, batch: int, length: int) -> tuple[list[Context], shardwright.Cluster]:
    machines = shardwright.load_cluster(cluster)
    job = shardwright.make_job(global_batch=batch, seq_len=length, framework="train")
    return run_by_train(contexts_for(shardwright.load_model(name), machines, job, 0.9, None), 0.9), machines


@pytest.mark.parametrize(("asked", "gain"), [(LONG, 0.08), *nightly([(EXPERTS, 0.08)])])
def test_unequal_replicas_are_faster_than_the_best_equal_ones(asked: tuple[str, str, int, int], gain: float) -> None:
    contexts, cluster = question(*asked)
    (equal,) = mesh_search(contexts, cluster, Space(), Filters(), gap=0.01, incumbent=np.inf, top=1).plans
    (unequal,) = unequal_spread(contexts, cluster, Space(), Filters(), [hint_of(equal)], np.inf)
    assert unequal.iteration_seconds < (1.0 - gain) * equal.iteration_seconds
    assert len({(len(item.stages), item.micro_batches) for item in unequal.replicas}) > 1


def test_the_plan_is_found_and_the_certificate_says_that_it_is_not_covered() -> None:
    name, cluster, batch, length = LONG
    job = shardwright.make_job(global_batch=batch, seq_len=length, framework="train")
    ranking = plan(shardwright.load_model(name), shardwright.load_cluster(cluster), job, top=1)
    best = ranking.best
    assert len(best.gpus_by_type) == 2 and best.stages[0].context_parallel > 1
    assert len({item.micro_batches for item in best.replicas}) > 1
    assert NotCovered.CONTEXT_OR_EXPERTS in ranking.search.not_covered
    pinned = plan(best.model, best.cluster, job, space=Space(pins={"dp": (2,)}), top=1)
    assert pinned.best.iteration_seconds >= best.iteration_seconds


@pytest.mark.parametrize("seed", [0, 1, *nightly(range(2, 12))])
def test_no_share_of_the_batch_is_faster(seed: int) -> None:
    """Against all ways to share the micro-batches out among replicas that are as unequal."""
    chance = Random(seed)
    cluster = f"1x8xH100-SXM+{chance.randint(1, 2)}x8x{chance.choice(('A100-SXM-80', 'H20', 'L40S'))}"
    contexts, machines = question("qwen1.5-moe-a2.7b", cluster, 16 * chance.randint(2, 6), 2048)
    hint = (1, 1, chance.choice((2, 4, 8)), chance.choice((1, 2)))
    for unequal in unequal_spread(contexts, machines, Space(), Filters(), [hint], np.inf):
        counts = [item.count for item in unequal.replicas]
        total = sum(item.count * item.micro_batches for item in unequal.replicas)
        others = []
        for share in range(1, total) if len(counts) == 2 else ():
            rest, odd = divmod(total - counts[0] * share, counts[1])
            if not odd and rest > 0:
                sizes = zip(unequal.replicas, (share, rest), strict=True)
                other = replace(unequal, replicas=tuple(replace(item, micro_batches=size) for item, size in sizes))
                assert check(other) == ()
                others.append(fitting_seconds(contexts, other, {}) or np.inf)
        assert unequal.iteration_seconds <= 1.02 * min(others, default=np.inf)


def test_without_such_settings_nothing_is_found() -> None:
    contexts, cluster = question("llama-3.2-1b", "1x8xH100-SXM+1x8xA100-SXM-80", 32, 2048)
    assert unequal_spread(contexts, cluster, Space(), Filters(), [(1, 2, 1, 1)], np.inf) == ()


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
