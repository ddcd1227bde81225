"""A plan and its parts in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardwright.plans.plan import OptimizerPlan, Plan, Replica, Stage
from shardwright.units import counted


def recompute_words(plan: Plan) -> str:
    """Return the recomputation of a plan: none, selective, block 3; several where stages differ."""
    modes = (stage.recompute for replica in plan.replicas for stage in replica.stages)
    words = (mode.granularity if mode.method is None else f"{mode.method} {mode.layers}" for mode in modes)
    return " / ".join(dict.fromkeys(words))


def sharding_words(plan: Plan) -> str:
    """Return sharding and offload of the optimizer."""
    return plan.optimizer.sharding + (f" +{plan.optimizer.offload:.0%} host" if plan.optimizer.offload else "")


def waves_words(plan: Plan) -> str:
    """Return the schedule of uneven FSDP and its waves."""
    return f"{plan.schedule.kind}, {counted(plan.schedule.waves or 1, 'wave')}"


def rows_words(plan: Plan) -> str:
    """Return the samples that each copy of the model takes a step: 11 / 5."""
    return several(str(replica.samples(plan.micro_batch)) for replica in plan.replicas)


def state_words(plan: Plan) -> str:
    """Return the share of the state on each GPU."""
    parts = plan.optimizer.parts
    return "equal" if parts is None else several(f"{(replica.state or 0) / parts:.1%}" for replica in plan.replicas)


def several(words: Iterable[str]) -> str:
    """Return words once each, joined."""
    return " / ".join(dict.fromkeys(words))


def replica_split_words(replica: Replica) -> str:
    """Return layers per pipeline rank of a replica: 4 × 20, or 19, 2 × 21, 19."""
    counts = [stage.layer_count for stage in replica.stages]
    return f"{len(counts)} × {counts[0]}" if len(set(counts)) == 1 else _runs(counts)


def _runs(counts: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for count in counts:
        if runs and runs[-1][1] == count:
            runs[-1] = (runs[-1][0] + 1, count)
        else:
            runs.append((1, count))
    return ", ".join(f"{number} × {count}" if number > 1 else str(count) for number, count in runs)


def layers_words(stage: Stage) -> str:
    """Return the layers of a stage: 20 layers: 0–9, 40–49."""
    ranges = [(start, end) for start, end in stage.layers if end > start]
    if not ranges:
        return "no layers"
    shown = ", ".join(str(start) if end == start + 1 else f"{start}–{end - 1}" for start, end in ranges[:3])
    return f"{counted(stage.layer_count, 'layer')}: {shown}" + (", …" if len(ranges) > 3 else "")


def tensor_parallel_words(plan: Plan) -> str:
    """Return the tensor-parallel degrees of a plan: 4, or 1–4."""
    return _range_words([stage.tensor_parallel for replica in plan.replicas for stage in replica.stages])


def depth_words(plan: Plan) -> str:
    """Return the pipeline lengths of a plan: 4, or 1–4."""
    return _range_words([len(replica.stages) for replica in plan.replicas])


def _range_words(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def degrees_words(plan: Plan) -> str:
    """Return the degrees of a plan that are not 1, its micro-batch, and what is sharded beyond the optimizer's state or
    in host memory: tp 4, pp 8, dp 8, micro-batch 1, ZeRO-3."""
    if plan.layered:
        return f"uneven FSDP over {plan.gpus} GPUs, rows {rows_words(plan)}, micro-batch up to {plan.micro_batch}"
    stage = plan.replicas[0].stages[0]
    degrees = {
        "tp": tensor_parallel_words(plan),
        "cp": str(stage.context_parallel),
        "pp": depth_words(plan),
        "dp": str(plan.data_parallel),
        "ep": str(stage.expert_parallel),
        "vpp": str(plan.schedule.virtual_stages),
    }
    words = [f"{name} {degree}" for name, degree in degrees.items() if degree != "1"]
    return ", ".join([*words, f"micro-batch {plan.micro_batch}", *_state_words(plan.optimizer)])


def _state_words(optimizer: OptimizerPlan) -> Iterator[str]:
    if optimizer.sharding in ("zero2", "zero3"):
        yield optimizer.sharding.replace("zero", "ZeRO-")
    if optimizer.offload:
        yield f"{optimizer.offload:.0%} of the optimizer in host memory"
