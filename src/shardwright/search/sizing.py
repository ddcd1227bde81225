"""Ways to train a model on some GPUs, and the memory that each takes of one GPU: what fits, and what would.

All terms are those of the cost model (`cost.memory`). LoRA freezes the weights and trains adapters beside them. QLoRA
(arXiv 2305.14314, §3) keeps the weights of linear layers in NF4 with double quantization,

    4 + 8 / 64 + 32 / (64 · 256) = 4.127 bits a weight

(a byte for each block of 64, four for each 256 of these), and makes one matrix at a time 16 bits wide to compute with;
embeddings, norms and the output layer stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shardwright.cost.compute.efficiency import Analytic, computes, peak_flops
from shardwright.cost.frameworks.optimizer import paged_width, state_width
from shardwright.cost.memory.fit_probability import fit_probability
from shardwright.cost.memory.sizes import trained_share
from shardwright.errors import SpecError, bad
from shardwright.plans.abilities import fused_attention_runs
from shardwright.plans.check import position_problems
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Sharding, Stage
from shardwright.plans.plan import StageMemory as Memory
from shardwright.search.planner import predict
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.units import format_bytes

Training = Literal["full", "lora", "qlora"]
# Four bits a weight, a scale of eight bits for each 64 of them, and one in fp32 for each 256 scales (QLoRA,
# arXiv 2305.14314 §3).
NF4_BYTES = (4.0 + 8.0 / 64 + 32.0 / (64 * 256)) / 8.0
SIXTEEN_BITS = 2.0
SURE = 0.9  # the probability with which something is said to fit
MOST_GPUS = 1024  # that are tried for sharding
SHORTEST = 256  # tokens; sequences are tried in steps of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWay:
    """A way to train. `offload` is the part of the optimizer state in host memory; with sharding "zero1" and "zero3"
    GPUs share the state, with "zero3" gradients and weights too. All but plain training recompute activations."""

    name: str
    training: Training
    sharding: Sharding = "none"
    offload: float = 0.0
    recompute: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The memory of one GPU under a way, in bytes, the probability that it fits, and what would make it fit, where it
    does not: the longest sequence, the fewest GPUs, the smallest GPU of the catalogue (None: none does)."""

    way: TrainingWay
    memory: Memory
    fit_probability: float
    host_bytes: float
    longest_sequence: int | None = None
    fewest_gpus: int | None = None
    smallest_gpu: str | None = None

    @property
    def fits(self) -> bool:
        return self.fit_probability >= SURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """All ways to train `model` on the GPUs of `cluster`, a sequence at a time on each."""

    model: Model
    cluster: Cluster
    job: Job
    sizes: tuple[Size, ...]

    @property
    def first(self) -> Size | None:
        """The first way that fits, in the order of `ways`."""
        return next((size for size in self.sizes if size.fits), None)

    def __repr__(self) -> str:
        each = (
            f"{size.way.name}: {format_bytes(size.memory.total_bytes)} of {format_bytes(size.memory.capacity_bytes)}, "
            f"fits with probability {size.fit_probability:.0%}"
            for size in self.sizes
        )
        return "\n".join((f"{self.model.name} on {self.cluster.gpus} {self.cluster.pools[0].gpu.name}", *each))


def ways(count: int) -> tuple[TrainingWay, ...]:
    """Return the ways to train on `count` GPUs, plain ones first."""
    shared = (
        TrainingWay(name="ZeRO-1", training="full", sharding="zero1"),
        TrainingWay(name="ZeRO-3 (FSDP)", training="full", sharding="zero3"),
        TrainingWay(name="ZeRO-3, optimizer in host memory", training="full", sharding="zero3", offload=1.0),
    )
    return (
        TrainingWay(name="full", training="full", recompute=False),
        TrainingWay(name="full, recomputation", training="full"),
        *(shared if count > 1 else ()),
        TrainingWay(name="full, optimizer in host memory", training="full", sharding="zero1", offload=1.0),
        TrainingWay(name="LoRA", training="lora"),
        TrainingWay(name="QLoRA", training="qlora"),
    )


def fit(model: Model, cluster: Cluster, job: Job) -> Sizing:
    """Return the memory that training takes on the GPUs of `cluster` (of one type), for each way to train.

    `job` has the sequence length; its global batch counts the sequences that each GPU takes at a time, times the GPUs.
    Raises SpecError for several GPU types, a batch that the GPUs do not divide, and what the GPU cannot compute.
    """
    if len(cluster.pools) > 1:
        raise bad("`gpu=`", "names several types", "size them one at a time")
    if job.global_batch % cluster.gpus:
        raise bad("`global_batch=`", f"{cluster.gpus} GPUs do not divide {job.global_batch}", "give a multiple")
    if problems := tuple(position_problems(model, job)):
        raise SpecError(*problems)
    peak_flops(cluster.pools[0].gpu, job.precision)
    return Sizing(
        model=model,
        cluster=cluster,
        job=job,
        sizes=tuple(_advised(way, model, cluster, job) for way in ways(cluster.gpus)),
    )


def _advised(way: TrainingWay, model: Model, cluster: Cluster, job: Job) -> Size:
    """Return the size of a way with what would make it fit."""
    size = _size(way, model, cluster, job)
    if size.fits:
        return size
    return replace(
        size,
        longest_sequence=_longest_sequence(way, model, cluster, job),
        fewest_gpus=_fewest_gpus(way, model, cluster, job),
        smallest_gpu=_smallest_gpu(size, job),
    )


def _size(way: TrainingWay, model: Model, cluster: Cluster, job: Job) -> Size:
    job = replace(job, adapters=way.training != "full")
    plan = _plan(way, model, cluster, job)
    found = predict(plan, efficiency=Analytic()).prediction
    assert found is not None, "a plan that was just predicted"
    memory = found.memory[0][0]
    if way.training == "qlora":
        memory = replace(memory, weights_bytes=_quantized_bytes(model))
    pool = cluster.pools[0]
    sharers = min(cluster.gpus, pool.gpus_per_node) / (cluster.gpus if way.sharding != "none" else 1)
    kept = way.offload * state_width(job) + paged_width(job)
    host = trained_share(job) * kept * model.parameters * sharers
    fitting = fit_probability(memory.total_bytes, memory.capacity_bytes, job) if host <= pool.host_memory_bytes else 0.0
    return Size(way=way, memory=memory, fit_probability=fitting, host_bytes=host)


def _plan(way: TrainingWay, model: Model, cluster: Cluster, job: Job) -> Plan:
    """Return the data-parallel plan of a way."""
    recompute = Recompute(granularity="full", method="uniform", layers=1) if way.recompute else Recompute()
    stage = Stage(
        gpu=cluster.pools[0].gpu.name,
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((0, len(model.layers)),),
        recompute=recompute,
    )
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=job.global_batch // cluster.gpus,
        schedule=Schedule(),
        replicas=(Replica(count=cluster.gpus, micro_batches=1, stages=(stage,)),),
        optimizer=OptimizerPlan(sharding=way.sharding, offload=way.offload),
        overlap=Overlap(),
        sequence_parallel=False,
        flash_attention=fused_attention_runs(cluster.pools[0].gpu, job.precision),
    )


def _quantized_bytes(model: Model) -> float:
    """Return the weights with linear layers in NF4, and the widest matrix in 16 bits to compute with."""
    linear = _linear_parameters(model)
    rest = model.parameters - linear
    widest = max(_matrices(model))
    return NF4_BYTES * linear + SIXTEEN_BITS * (rest + widest)


def _linear_parameters(model: Model) -> int:
    """Return the weights inside the transformer layers; the few of norms count as those of linear layers."""
    count = 0
    for layer in model.layers:
        count += layer.mixing_parameters(model.hidden)
        count += layer.mlp.parameters(model.hidden) if layer.mlp else 0
        count += (
            layer.moe.expert_parameters(model.hidden) + layer.moe.dense_parameters(model.hidden) if layer.moe else 0
        )
    return count


def _matrices(model: Model) -> Iterator[int]:
    for kind in model.kinds:
        if kind.attention is not None:
            yield kind.attention.out_width * model.hidden
        if kind.mixer is not None:
            yield max(product.weights for product in kind.mixer.work(model.hidden).products)
        if kind.mlp is not None:
            yield kind.mlp.width * model.hidden
        if kind.moe is not None:
            yield kind.moe.expert_width * model.hidden


def _longest_sequence(way: TrainingWay, model: Model, cluster: Cluster, job: Job) -> int | None:
    """Return the longest shorter sequence that fits, one at a time on each GPU."""
    low, high = 0, job.seq_len // SHORTEST
    while low < high:
        middle = (low + high + 1) // 2
        shorter = replace(job, seq_len=middle * SHORTEST, global_batch=cluster.gpus)
        low, high = (middle, high) if _size(way, model, cluster, shorter).fits else (low, middle - 1)
    return low * SHORTEST or None


def _fewest_gpus(way: TrainingWay, model: Model, cluster: Cluster, job: Job) -> int | None:
    """Return the least power of two of GPUs over which the way fits, if sharding makes it fit at all."""
    if way.sharding == "none":
        return None
    pool, each = cluster.pools[0], job.global_batch // cluster.gpus
    count = pool.gpus_per_node
    while (count := count * 2) <= MOST_GPUS:
        larger = replace(cluster, pools=(replace(pool, nodes=-(-count // pool.gpus_per_node)),))
        if count > cluster.gpus and _size(way, model, larger, replace(job, global_batch=each * larger.gpus)).fits:
            return count
    return None


def _smallest_gpu(size: Size, job: Job) -> str | None:
    """Return the GPU of the catalogue with the least memory that has room."""
    able = [gpu for gpu in gpus().values() if computes(gpu, job.precision)]
    roomy = [gpu for gpu in able if fit_probability(size.memory.total_bytes, gpu.memory_bytes, job) >= SURE]
    return min(roomy, key=lambda gpu: (gpu.memory_bytes, gpu.name)).name if roomy else None
