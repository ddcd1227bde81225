"""Small plans over H100s and A100s that are one mesh of ranks."""

from __future__ import annotations

from dataclasses import replace

import shardwright
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage

H, A = "H100-SXM", "A100-SXM-80"


def mesh(*replicas: tuple[int, str], tp: int = 4, order: str = "tp-cp-ep-dp-pp", **stage: object) -> Plan:
    """Return a plan of (copies, a letter for each stage), its layers split as 2, 1, 1, …"""
    model = shardwright.load_model("llama-2-7b")
    depth = len(replicas[0][1])
    model = replace(model, layers=model.layers[: depth + 1])
    starts = [0, *range(2, depth + 2)]
    cluster = shardwright.load_cluster("4x8xH100-SXM+4x8xA100-SXM-80")
    copies = sum(count for count, _ in replicas)
    return Plan(
        model=model,
        job=shardwright.make_job(global_batch=8 * copies, seq_len=1024),
        cluster=cluster,
        micro_batch=1,
        schedule=Schedule(),
        replicas=tuple(
            Replica(
                count=count,
                micro_batches=8,
                stages=tuple(
                    Stage(
                        gpu={"H": H, "A": A}[letter],
                        tensor_parallel=tp,
                        context_parallel=1,
                        expert_parallel=1,
                        expert_tensor_parallel=1,
                        layers=((starts[place], starts[place + 1]),),
                        recompute=stage.get("recompute", Recompute()),  # type: ignore[arg-type]
                    )
                    for place, letter in enumerate(letters)
                ),
            )
            for count, letters in replicas
        ),
        optimizer=OptimizerPlan(sharding="zero1"),
        overlap=Overlap(),
        sequence_parallel=True,
        flash_attention=True,
        rank_order=order,  # type: ignore[arg-type]
    )
