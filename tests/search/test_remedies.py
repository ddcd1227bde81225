"""What is said to give a plan gives one, and what is said to make a plan fit is run: every remedy for too little memory,
over models, frameworks, odd numbers of GPUs and odd batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.nightly import nightly

from shardwright import Cluster, Job, check, evaluate, load_cluster, load_model, make_job, plan, predict
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.plans.findings import (
    Change,
    MoreHostMemory,
    MoreMachines,
    MoreMemory,
    OtherBatch,
    Remedy,
    ShorterSequence,
    Unpin,
)
from shardwright.search.fitting import changes_that_fit
from shardwright.search.space.axes import parse_pins
from shardwright.trainers.runs import runners
from shardwright.units import GIBIBYTE, format_bytes

MODELS = (
    "llama-2-13b",
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "gemma-2-27b",
    "deepseek-v2-lite",
    "falcon-40b",
    "phi-3-medium",
)
FRAMEWORKS = ("megatron", "fsdp", "deepspeed", "torchtitan", "train", None)
GPUS = ("RTX3090", "A10G", "L4", "V100-SXM2-32")


def shown(size_bytes: float) -> float:
    """Return what is read where a size is told."""
    return float(format_bytes(size_bytes).removesuffix(" GiB")) * GIBIBYTE


def with_remedy(cluster: Cluster, job: Job, remedy: Remedy) -> tuple[Cluster, Job]:
    """Return the question with a remedy applied."""
    (pool,) = cluster.pools
    if isinstance(remedy, MoreMachines):
        return replace(cluster, pools=(pool.resized(remedy.machines),)), job
    if isinstance(remedy, MoreMemory):
        return replace(cluster, pools=(replace(pool, memory_bytes=shown(remedy.memory_bytes)),)), job
    if isinstance(remedy, MoreHostMemory):
        return replace(cluster, pools=(replace(pool, host_memory_bytes=shown(remedy.host_memory_bytes)),)), job
    if isinstance(remedy, OtherBatch):
        return cluster, replace(job, global_batch=remedy.global_batch)
    assert isinstance(remedy, ShorterSequence)
    return cluster, replace(job, seq_len=remedy.seq_len)


def less_of(remedy: MoreMemory | MoreHostMemory) -> Remedy:
    if isinstance(remedy, MoreMemory):
        return replace(remedy, memory_bytes=remedy.memory_bytes - 0.2 * GIBIBYTE)
    return replace(remedy, host_memory_bytes=remedy.host_memory_bytes - 0.2 * GIBIBYTE)


@pytest.mark.parametrize("seeds", [range(4), *nightly([range(first, first + 8) for first in range(4, 60, 8)])], ids=str)
def test_what_would_do_does(seeds: range) -> None:
    assert sum(map(remedies_tried, seeds)) > len(seeds)


def remedies_tried(seed: int) -> int:
    """Return how many remedies a drawn question has, of which each has to give a plan."""
    draw = random.Random(seed)
    model, gpu, framework = load_model(draw.choice(MODELS)), draw.choice(GPUS), draw.choice(FRAMEWORKS)
    cluster = load_cluster(f"{draw.choice((1, 1, 2, 3))}x{draw.choice((1, 2, 3, 4, 6, 8))}x{gpu}")
    precision = "fp16" if gpu.startswith("V100") else "bf16"
    named = {} if framework is None else {"framework": framework}
    job = make_job(
        global_batch=draw.choice((1, 7, 12, 13, 32)), seq_len=draw.choice((2048, 4096)), precision=precision, **named
    )
    nothing = plan(model, cluster, job, framework=framework, top=1).infeasible
    remedies = (
        [] if nothing is None else [remedy for remedy in nothing.remedies if not isinstance(remedy, Change | Unpin)]
    )
    for remedy in remedies:
        bigger, other = with_remedy(cluster, job, remedy)
        assert plan(model, bigger, other, framework=framework, top=1).plans, (seed, remedy)
        if isinstance(remedy, MoreMemory | MoreHostMemory):  # and less would not
            less = with_remedy(cluster, job, less_of(remedy))[0]
            assert not plan(model, less, job, framework=framework, top=1).plans, (seed, remedy)
    return len(remedies)


@pytest.mark.parametrize(
    "seeds", [(7, 26, 28), *nightly([range(first, first + 12) for first in range(60, 120, 12)])], ids=str
)
def test_what_would_make_a_plan_fit_does_and_its_trainer_runs_it(seeds: Sequence[int]) -> None:
    assert sum(map(changes_tried, seeds)) > 0


def changes_tried(seed: int) -> int:
    """Return how many changes are said to make a drawn plan fit, of which each has to, and to be run."""
    draw = random.Random(seed)
    model, framework = load_model(draw.choice(MODELS)), draw.choice(FRAMEWORKS[:-1])
    cluster = load_cluster(f"{draw.choice((1, 2))}x8xH100-SXM")
    job = make_job(global_batch=draw.choice((16, 32, 64)), seq_len=draw.choice((2048, 4096, 8192)), framework=framework)
    pins = [f"recompute={draw.choice(('none', 'selective'))}", f"micro_batch={draw.choice((1, 2, 4))}", "offload=0"]
    if framework in ("megatron", "train"):
        pins.append(f"sharding={draw.choice(('none', 'zero1'))}")
    roomy = replace(cluster, pools=(replace(cluster.pools[0], memory_bytes=4e12),))
    best = plan(model, roomy, job, space=parse_pins(pins), framework=framework, top=1).plans
    if not best or not runners(best[0]):
        return 0
    fullest = max(stage.total_bytes for row in best[0].predicted.memory for stage in row)
    tight = replace(cluster, pools=(replace(cluster.pools[0], memory_bytes=draw.uniform(0.5, 1.0) * fullest),))
    mine = replace(best[0], cluster=tight, prediction=None)
    (context,) = contexts_of(mine, default_efficiency()).values()
    changed = dict(changes_that_fit(replace(context, headroom=headroom(0.9, job)), mine))
    remedies = evaluate(mine).remedies
    for change in remedies:
        prediction = predict(changed[change]).predicted
        assert not tuple(check(changed[change])) and runners(changed[change]), (seed, change)
        assert prediction.fit_probability >= 0.9, (seed, change)
    return len(remedies)
