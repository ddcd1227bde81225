"""A published run on machines of several types, as a plan whose replicas differ.

The GPU column names each type with its count ("V100-SXM2-16GBx12+T4-16GBx4", in rank order); the notes may name the
machine types and the layers of each stage. Pipeline ranks are outermost, as in Megatron-LM and DeepSpeed.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise

from shardwright.errors import SpecError
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.spec.cluster import Assumption, Cluster
from shardwright.spec.read.cluster import build_cluster
from shardwright.validation.facts import (
    SkippedRunError,
    first_and_last,
    framework_of,
    gpu_name,
    habits_of,
    job_of,
    whole,
)
from shardwright.validation.model_of import model_of
from shardwright.validation.runs import PublishedRun

PSEUDO_LAYERS_BEFORE = 3  # of DeepSpeed's GPT-2 pipeline before the first layer: cast, embedding, transposition


def mixed_plan(run: PublishedRun, guesses: list[Assumption]) -> Plan:
    """Return the plan of a run. Raises SkippedRunError for a run that lacks something."""
    framework = framework_of(run, guesses)
    habits = habits_of(framework)
    try:
        model, cluster = model_of(run, guesses), _cluster(run)
        job = job_of(run, framework, cluster.pools[0].gpu.architecture, guesses)
    except SpecError as error:
        raise SkippedRunError("not_described", str(error.problems[0])) from None
    tp, pp = whole(run, "tp", 1), whole(run, "pp", 1)
    kinds = [pool.gpu.name for pool in cluster.pools for _ in range(pool.gpus)]
    dp, rest = divmod(len(kinds), tp * pp)
    micro = whole(run, "micro_batch")
    if rest or job.global_batch % (dp * micro):
        raise SkippedRunError("not_divided", "tp, pp and the batch do not divide GPUs and samples")
    layers = _layers(run, len(model.layers), pp)
    paths = [tuple(_kind(kinds, (stage * dp + copy) * tp, tp) for stage in range(pp)) for copy in range(dp)]
    replicas = tuple(
        Replica(
            count=len(list(group)),
            micro_batches=job.global_batch // (dp * micro),
            stages=tuple(
                Stage(
                    gpu=gpu,
                    tensor_parallel=tp,
                    context_parallel=1,
                    expert_parallel=1,
                    expert_tensor_parallel=1,
                    layers=(layers[stage],),
                    recompute=Recompute(),
                )
                for stage, gpu in enumerate(path)
            ),
        )
        for path, group in groupby(paths)
    )
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=micro,
        schedule=Schedule(),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding="none"),
        overlap=Overlap(grad_reduce=habits.overlap_grad and dp > 1),
        sequence_parallel=False,
        flash_attention=habits.flash,
    )


def _cluster(run: PublishedRun) -> Cluster:
    """Return the machines: those named in the notes, else the catalogue's for each GPU type."""
    per_machine = whole(run, "gpus_per_node", 8)
    machines = run.noted.machines
    nodes = []
    for place, part in enumerate(run.gpu.split("+")):
        group = re.fullmatch(r"(.+)x([0-9]+)", part.strip())
        if group is None:
            raise SkippedRunError("unpublished", f"{part} does not say how many GPUs of the type there are")
        entry: dict[str, object] = {
            "count": int(group[2]) // per_machine,
            "gpus": per_machine,
            "gpu": gpu_name(group[1], None)[0],
        }
        if place < len(machines):
            entry = {"count": machines[place][0], "machine": machines[place][1]}
        nodes.append(entry)
    return build_cluster({"nodes": nodes}, "run")


def _layers(run: PublishedRun, layers: int, pp: int) -> list[tuple[int, int]]:
    """Return the layers of each stage: the published boundaries, else an even split."""
    if run.noted.boundaries:
        bounds = [min(max(bound - PSEUDO_LAYERS_BEFORE, 0), layers) for bound in run.noted.boundaries]
    else:
        first, last = first_and_last(layers, pp, 0.0)
        middle = [first + (layers - first - last) * stage // max(pp - 2, 1) for stage in range(pp - 1)]
        bounds = [0, *middle, layers]
    if len(bounds) != pp + 1:
        raise SkippedRunError("unlike_stages", "the layer boundaries are not those of the stages")
    return list(pairwise(bounds))


def _kind(kinds: list[str], first: int, count: int) -> str:
    """Return the GPU type of `count` ranks. Raises SkippedRunError where they differ."""
    if len(set(kinds[first : first + count])) != 1:
        raise SkippedRunError("mixed_tensor_parallel", "a tensor-parallel group of several GPU types")
    return kinds[first]
