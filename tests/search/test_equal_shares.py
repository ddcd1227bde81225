"""Data parallelism of equal shares over several GPU types: as good as any that there is, and written as it is planned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import yaml
from tests.nightly import nightly
from tests.search.test_mixed_machines import TWIN, A, box

import shardwright
from shardwright import Cluster, Job, check
from shardwright.exporters.targets import export
from shardwright.plans.abilities import flash_attention_runs, gpu_problems
from shardwright.plans.document import dumps, load_plan
from shardwright.plans.mesh import has_equal_shares
from shardwright.plans.plan import Plan, Recompute
from shardwright.search.planner import plan, predict
from shardwright.search.space.axes import parse_pins
from shardwright.trainers.plan import plan as plan_of_trainers
from shardwright.trainers.runs import runners

MODEL = shardwright.load_model("llama-3.2-1b")
TYPES = ("A10G", "RTX3090", "L4", "RTXA5000", "A100-PCIe-40", "RTX4090", "T4", "V100-PCIe-16")
FIT = 0.901
ALONE = parse_pins(["tp=1", "cp=1", "pp=1"])


def drawn(seed: int) -> tuple[Cluster, Job]:
    """Return random machines of two types or three, in one machine or each in its own, and a job for FSDP2 or
    DeepSpeed."""
    pick = Random(seed)
    names = pick.sample(TYPES, pick.choice((2, 2, 3)))
    if pick.random() < 0.5:
        cluster = shardwright.load_cluster(f"1x({'+'.join(f'{pick.randint(1, 2)}x{name}' for name in names)})")
    else:
        size = pick.choice((1, 2, 4))
        cluster = shardwright.load_cluster("+".join(f"{pick.randint(1, 2)}x{size}x{name}" for name in names))
    job = shardwright.make_job(
        global_batch=cluster.gpus * pick.choice((1, 2, 4)),
        seq_len=pick.choice((512, 2048)),
        precision="fp16",
        framework=pick.choice(("fsdp", "deepspeed")),
        optimizer=pick.choice(("adam", "adam", "sgd")),
    )
    return cluster, job


def neighbours(best: Plan, counts: dict[str, int]) -> Iterator[Plan]:
    """Yield plans of equal shares on so many GPUs of each type that some trainer runs."""
    job, gpus = best.job, sum(counts.values())
    whole = Recompute(granularity="full", method="uniform", layers=1)
    for sharding, size, again in itertools.product(
        ("none", "zero1", "zero2", "zero3"), (1, 2, 4), (Recompute(), whole)
    ):
        if job.global_batch % (gpus * size) or (gpus == 1 and sharding != "none"):
            continue
        (stage,) = best.replicas[0].stages
        alone = replace(stage, tensor_parallel=1, context_parallel=1, layers=((0, len(MODEL.layers)),), recompute=again)
        replicas = tuple(
            replace(
                best.replicas[0],
                count=count,
                micro_batches=job.global_batch // (gpus * size),
                stages=(replace(alone, gpu=name),),
            )
            for name, count in counts.items()
        )
        optimizer = replace(best.optimizer, sharding=sharding, offload=0.0)
        overlap = replace(best.overlap, param_gather=best.overlap.param_gather and sharding != "none")
        made = replace(
            best,
            micro_batch=size,
            replicas=replicas,
            optimizer=optimizer,
            overlap=overlap,
            prediction=None,
            label="",
            flash_attention=all(
                flash_attention_runs(pool.gpu, job) for pool in best.cluster.pools if pool.gpu.name in counts
            ),
        )
        pools = [pool for pool in made.cluster.pools if pool.gpu.name in counts]
        if not check(made) and runners(made) and not any(tuple(gpu_problems(made, pool)) for pool in pools):
            yield predict(made)


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 200))])
def test_no_type_idles_where_its_equal_share_helps(seed: int) -> None:
    """No plan with equal shares on all GPUs, or on all of some types, beats what is found."""
    cluster, job = drawn(seed)
    ranking = plan_of_trainers(MODEL, cluster, job)
    if not ranking.plans:
        return
    shown = [*ranking.plans, *([ranking.passed_over.plan] if ranking.passed_over else [])]
    least = min(found.iteration_seconds for found in shown)
    assert all(runners(found) for found in ranking.plans)
    pools = {pool.gpu.name: pool.gpus for pool in cluster.pools}
    for number in range(1, len(pools) + 1):
        for some in itertools.combinations(pools, number):
            for other in neighbours(ranking.best, {name: pools[name] for name in some}):
                there = other.predicted
                if there.fit_probability > FIT:
                    assert there.iteration_seconds >= least * (1.0 - 1e-9), other.replicas


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
def test_a_twin_of_a_type_is_as_good_as_the_type(framework: str) -> None:
    job = shardwright.make_job(global_batch=24, seq_len=1024, framework=framework)
    host: dict[str, object] = {"host_memory_gb": 192, "host_memory_gb_per_second": 300}
    alone, beside = (
        plan(MODEL, cluster, job, space=ALONE, top=1, exportable_to="accelerate").best.prediction
        for cluster in (box({A: 3}, **host), box({A: 2, TWIN: 1}, **host))
    )
    assert alone is not None and beside is not None
    assert beside.iteration_seconds == pytest.approx(alone.iteration_seconds, rel=0.03)


def test_what_is_written_has_all_gpus(tmp_path: Path) -> None:
    """Of machines alike in size Accelerate takes all; DeepSpeed takes others, too, which Accelerate would not start."""
    job = shardwright.make_job(global_batch=48, seq_len=2048, framework="fsdp")
    best = plan_of_trainers(MODEL, "2x4xL4+1x4xA10G", job).best
    (tmp_path / "plan.json").write_text(dumps(best))
    assert load_plan(tmp_path / "plan.json") == best
    assert has_equal_shares(best) and best.gpus_by_type == {"L4": 8, "A10G": 4}
    files = export(best, "accelerate").files
    read = yaml.safe_load(files["accelerate.yaml"])
    assert (read["num_machines"], read["num_processes"]) == (3, 12)
    launched = export(best, "kubernetes").document["documents"]
    assert launched[0]["data"] == files  # type: ignore[index]
    other = plan_of_trainers(MODEL, "1x4xL4+1x2xA10G", replace(job, framework="deepspeed")).best
    assert other.gpus_by_type == {"L4": 4, "A10G": 2}
    assert "GPUS=(4 2)" in export(other, "deepspeed").files["run.sh"]
    with pytest.raises(shardwright.SpecError, match="take 2 and 4 GPUs of machines"):
        export(replace(other, job=replace(other.job, framework="fsdp")), "accelerate")


@pytest.mark.parametrize("gigabits", [1.0, 10.0])
@pytest.mark.parametrize("machines", ["4x(1xRTX4090+1xRTX3090)", "2x(2xRTX4090+2xRTX3090)"])
def test_no_number_of_gpus_is_quicker_alone_than_all_that_are_looked_at(machines: str, gigabits: float) -> None:
    """Over a slow network the GPUs of one machine may be the quickest, and more of them too slow to be of interest."""
    cluster = shardwright.load_cluster(machines)
    slow = tuple(replace(pool, inter_bytes_per_second=gigabits * 1e9 / 8.0) for pool in cluster.pools)
    cluster = replace(cluster, pools=slow)
    job = shardwright.make_job(global_batch=48, seq_len=512, framework="fsdp")
    best = shardwright.plan("llama-3.2-3b", cluster, job, top=1).best.iteration_seconds
    for number in (2, 3, 4, 6, 8):
        alone = shardwright.plan("llama-3.2-3b", cluster, job, pins={"dp": (number,)}, top=1).plans
        assert all(best <= plan.iteration_seconds * (1.0 + 1e-9) for plan in alone), number
