"""What is said to give a plan gives one: every remedy for too little memory, over models, frameworks, odd numbers of GPUs
and odd batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardwright.plans.findings import (
    MoreHostMemory,
    MoreMachines,
    MoreMemory,
    Remedy,
    ShorterSequence,
    TooLittleMemory,
)
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.trainers.plan import plan

MODELS = ("llama-2-13b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-2-27b", "deepseek-v2-lite", "falcon-40b", "phi-3-medium")
FRAMEWORKS = ("megatron", "fsdp", "deepspeed", "torchtitan", "train", None)
GPUS = ("RTX3090", "A10G", "L4", "V100-SXM2-32")
MORE = 1.02  # the least memory is found to 1 %


def with_remedy(cluster: Cluster, job: Job, remedy: Remedy) -> tuple[Cluster, Job]:
    """Return the question with a remedy applied."""
    (pool,) = cluster.pools
    if isinstance(remedy, MoreMachines):
        return replace(cluster, pools=(pool.resized(remedy.machines),)), job
    if isinstance(remedy, MoreMemory):
        return replace(cluster, pools=(replace(pool, memory_bytes=MORE * remedy.memory_bytes),)), job
    if isinstance(remedy, MoreHostMemory):
        return replace(cluster, pools=(replace(pool, host_memory_bytes=MORE * remedy.host_memory_bytes),)), job
    assert isinstance(remedy, ShorterSequence)
    return cluster, replace(job, seq_len=remedy.seq_len)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 60))])
def test_what_would_do_does(seed: int) -> None:
    draw = random.Random(seed)
    model, gpu, framework = load_model(draw.choice(MODELS)), draw.choice(GPUS), draw.choice(FRAMEWORKS)
    cluster = load_cluster(f"{draw.choice((1, 1, 2, 3))}x{draw.choice((1, 2, 3, 4, 6, 8))}x{gpu}")
    precision = "fp16" if gpu.startswith("V100") else "bf16"
    named = {} if framework is None else {"framework": framework}
    job = make_job(
        global_batch=draw.choice((1, 7, 12, 13, 32)), seq_len=draw.choice((2048, 4096)), precision=precision, **named
    )
    nothing = plan(model, cluster, job, framework=framework, top=1).infeasible
    if nothing is None or not isinstance(nothing.reason, TooLittleMemory):
        return
    for remedy in nothing.remedies:
        bigger, other = with_remedy(cluster, job, remedy)
        assert plan(model, bigger, other, framework=framework, top=1).plans, (remedy, nothing.reason)
