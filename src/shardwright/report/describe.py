"""A plan and its parts in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.plan.plan import Plan, Prediction, StageMemory
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import format_bytes, format_count, format_dollars, format_seconds

TERMS = {
    "forward_seconds": "forward",
    "backward_seconds": "backward",
    "recompute_seconds": "recomputation",
    "tensor_parallel_seconds": "tensor-parallel communication",
    "context_parallel_seconds": "context-parallel communication",
    "expert_parallel_seconds": "expert-parallel communication",
    "pipeline_seconds": "pipeline transfers",
    "bubble_seconds": "pipeline bubble",
    "data_parallel_seconds": "data-parallel communication",
    "optimizer_seconds": "optimizer",
}
MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "context")


def model_line(model: Model) -> str:
    """Return name and size of a model."""
    size = f"{format_count(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        size += f" ({format_count(model.active_parameters)} active)"
    return f"{model.name}: {size}, {len(model.layers)} layers"


def cluster_line(cluster: Cluster) -> str:
    """Return the machines of a cluster."""
    pools = (f"{pool.nodes} × {pool.gpus_per_node} {pool.gpu.name}" for pool in cluster.pools)
    return " + ".join(pools) + f" ({cluster.gpus} GPUs)"


def job_line(job: Job) -> str:
    """Return batch, sequence, precision and length of a job."""
    words = [f"global batch {job.global_batch} × {job.seq_len} tokens", job.precision, job.optimizer]
    if job.fp8_recipe:
        words[1] += f" ({job.fp8_recipe})"
    if job.tokens is not None:
        words.append(f"{format_count(job.tokens)} tokens in all")
    return ", ".join(words)


def recompute_words(plan: Plan) -> str:
    """Return the recomputation of a plan."""
    found = plan.replicas[0].stages[0].recompute
    return found.granularity if found.method is None else f"{found.method} {found.layers}"


def split_words(plan: Plan) -> str:
    """Return layers per pipeline rank: 20,20,20,20 or 4 × 20."""
    counts = [stage.layer_count for stage in plan.replicas[0].stages]
    return f"{len(counts)} × {counts[0]}" if len(set(counts)) == 1 else _runs(counts)


def _runs(counts: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for count in counts:
        if runs and runs[-1][1] == count:
            runs[-1] = (runs[-1][0] + 1, count)
        else:
            runs.append((1, count))
    return ", ".join(f"{number} × {count}" if number > 1 else str(count) for number, count in runs)


def switches(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the settings of a plan by name."""
    stage = plan.replicas[0].stages[0]
    yield "GPUs", str(plan.gpus)
    yield "tensor parallel", str(stage.tensor_parallel)
    yield "context parallel", str(stage.context_parallel)
    yield "pipeline parallel", str(len(plan.replicas[0].stages))
    yield "data parallel", str(plan.data_parallel)
    yield "expert parallel", str(stage.expert_parallel)
    yield "expert tensor parallel", str(stage.expert_tensor_parallel)
    yield "virtual stages", str(plan.schedule.virtual_stages)
    yield "micro-batch", str(plan.micro_batch)
    yield "micro-batches a step", str(plan.replicas[0].micro_batches)
    yield "layers per pipeline rank", split_words(plan)
    yield "recomputation", recompute_words(plan)
    yield "sharding", plan.optimizer.sharding
    yield "optimizer offload", f"{plan.optimizer.offload:.0%}"
    yield "sequence parallel", _on(plan.sequence_parallel)
    yield "FlashAttention", _on(plan.flash_attention)
    yield "overlap of gradient reduction", _on(plan.overlap.grad_reduce)
    yield "overlap of weight gathering", _on(plan.overlap.param_gather)
    yield "overlap of tensor-parallel communication", _on(plan.overlap.tensor_parallel)
    yield "overlap of pipeline transfers", _on(plan.overlap.pipeline)
    yield "rank order", plan.rank_order


def _on(value: bool) -> str:
    return "on" if value else "off"


def fullest(prediction: Prediction) -> StageMemory:
    """Return the memory of the stage that fills its GPU most."""
    return max((s for row in prediction.memory for s in row), key=lambda s: s.total_bytes / s.capacity_bytes)


def memory_terms(memory: StageMemory) -> str:
    """Return the terms of a stage's memory, largest first."""
    terms = sorted(((getattr(memory, f"{name}_bytes"), name) for name in MEMORY_TERMS), reverse=True)
    return ", ".join(f"{name} {format_bytes(size)}" for size, name in terms if size > 0.01 * memory.total_bytes)


def money_words(prediction: Prediction) -> str:
    """Return price and run time; never a cost without the time behind it."""
    if prediction.dollars_per_hour is None:
        words = "price unknown (give price_per_hour in the cluster file)"
        if prediction.hours_total is not None:
            words = f"{format_seconds(prediction.hours_total * 3600)} for all tokens; " + words
        return words
    words = f"{format_dollars(prediction.dollars_per_hour)} an hour"
    if prediction.dollars_total is not None and prediction.hours_total is not None:
        total = format_dollars(prediction.dollars_total)
        words += f"; {total} for all tokens in {format_seconds(prediction.hours_total * 3600)}"
    return words
