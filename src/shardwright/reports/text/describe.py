"""A plan and its parts in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardwright.plans.plan import Plan, Prediction, Replica, Stage, StageMemory
from shardwright.spec.catalog.catalog import GBIT_BYTES
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.options import VALUES, said
from shardwright.units import SECONDS_PER_HOUR, format_bytes, format_count, format_dollars, format_seconds

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
    "framework_seconds": "framework",
}
COMPUTE = ("forward_seconds", "backward_seconds")
MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "context")
SHARDING = {
    "none": "not sharded",
    "zero1": "state sharded over data-parallel ranks (ZeRO-1, Megatron's distributed optimizer)",
    "zero2": "state and gradients sharded over data-parallel ranks (ZeRO-2)",
    "zero3": "state, gradients and weights sharded over data-parallel ranks (ZeRO-3, FSDP)",
}
BILLION = 1e9


def clock(seconds: float, *, like: float, sign: str = "") -> str:
    """Return a time to the thousandth of the unit that suits `like`, so that times of one table share their unit."""
    return f"{seconds:{sign}.3f} s" if like >= 1.0 else f"{seconds * 1e3:{sign}.3f} ms"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 layer, 2 layers."""
    ending = "" if number == 1 else "es" if noun.endswith("h") else "s"
    return f"{number} {noun}{ending}"


def model_line(model: Model) -> str:
    """Return name and size of a model."""
    size = f"{format_count(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        size += f" ({format_count(model.active_parameters)} active)"
    return f"{model.name}: {size}, {len(model.layers)} layers"


def cluster_line(cluster: Cluster) -> str:
    """Return the machines of a cluster."""
    return " + ".join(map(_pool_words, cluster.pools)) + f" ({cluster.gpus} GPUs)"


def machines_words(cluster: Cluster, nodes: Sequence[int]) -> str:
    """Return so many machines of each group of a cluster."""
    pools = zip(nodes, cluster.pools, strict=True)
    return " + ".join(f"{count} × {pool.gpus_per_node} {pool.gpu.name}" for count, pool in pools if count)


def _pool_words(pool: NodePool) -> str:
    words = f"{pool.nodes} × {pool.gpus_per_node} {pool.gpu.name}"
    if pool.site:
        words += f" at {pool.site}"
    if pool.rack_nodes:
        words += (
            f" in racks of {pool.rack_nodes} machines, {pool.rack_bytes_per_second / GBIT_BYTES:g} Gbit/s out of each"
        )
    return words


def beyond_positions(model: Model, job: Job) -> str:
    """Return that sequences are longer than the model was made for; "" where they are not. Longer ones than a table of
    learned positions holds are refused, not warned of."""
    if not 0 < model.max_position < job.seq_len:
        return ""
    return (
        f"Note: samples of {job.seq_len:,} tokens are longer than the {model.max_position:,} tokens that {model.name} "
        "was made for."
    )


def job_line(job: Job) -> str:
    """Return batch, sequence, precision and length of a job."""
    words = [f"global batch {job.global_batch} × {job.seq_len} tokens", job.precision, job.optimizer]
    if job.document_tokens is not None:
        words.append(f"attention within documents ({job.attended_tokens:,.0f} tokens)")
    if job.fp8_recipe:
        words[1] += f" ({job.fp8_recipe})"
    if job.tokens is not None:
        words.append(f"{format_count(job.tokens)} tokens in all")
    if job.objective != "time":
        words.append(f"least {job.objective}")
    if job.deadline_hours is not None:
        words.append(f"within {job.deadline_hours:g} h")
    if job.budget_dollars is not None:
        words.append(f"for at most {format_dollars(job.budget_dollars)}")
    return ", ".join(words)


def recompute_words(plan: Plan) -> str:
    """Return the recomputation of a plan: none, selective, block 3; several where stages differ."""
    found = (stage.recompute for replica in plan.replicas for stage in replica.stages)
    words = (each.granularity if each.method is None else f"{each.method} {each.layers}" for each in found)
    return " / ".join(dict.fromkeys(words))


def sharding_words(plan: Plan) -> str:
    """Return sharding and offload of the optimizer."""
    return plan.optimizer.sharding + (f" +{plan.optimizer.offload:.0%} host" if plan.optimizer.offload else "")


def split_words(plan: Plan) -> str:
    """Return layers per pipeline rank: 4 × 20, or 19, 2 × 21, 19."""
    return _split_words(plan.replicas[0])


def _waves_words(plan: Plan) -> str:
    return f"{plan.schedule.kind}, {counted(plan.schedule.waves or 1, 'wave')}"


def _rows_words(plan: Plan) -> str:
    """Return the samples that each copy of the model takes a step: 11 / 5."""
    return _several(str(replica.samples(plan.micro_batch)) for replica in plan.replicas)


def _state_words(plan: Plan) -> str:
    parts = plan.optimizer.parts
    return "equal" if parts is None else _several(f"{(each.state or 0) / parts:.1%}" for each in plan.replicas)


def _several(words: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(words))


def _split_words(replica: Replica) -> str:
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
    """Return the degrees of a plan that are not 1, and its micro-batch: tp 4, pp 8, dp 8, micro-batch 1."""
    if plan.layered:
        return f"uneven FSDP over {plan.gpus} GPUs, rows {_rows_words(plan)}, micro-batch up to {plan.micro_batch}"
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
    return ", ".join([*words, f"micro-batch {plan.micro_batch}"])


def switches(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the settings of a plan by name."""
    stage = plan.replicas[0].stages[0]
    yield "GPU type", " + ".join(dict.fromkeys(s.gpu for replica in plan.replicas for s in replica.stages))
    yield "GPUs", str(plan.gpus)
    yield "tensor parallel", tensor_parallel_words(plan)
    yield "context parallel", str(stage.context_parallel)
    yield "pipeline parallel", _several(str(len(replica.stages)) for replica in plan.replicas)
    yield "data parallel", str(plan.data_parallel)
    yield "expert parallel", str(stage.expert_parallel)
    yield "expert tensor parallel", str(stage.expert_tensor_parallel)
    yield "virtual stages", str(plan.schedule.virtual_stages)
    yield "micro-batch", str(plan.micro_batch)
    yield "schedule", plan.schedule.kind if plan.schedule.waves is None else _waves_words(plan)
    yield "rows of a copy", _rows_words(plan)
    yield "state of a GPU", _state_words(plan)
    yield "micro-batches a step", _several(str(replica.micro_batches) for replica in plan.replicas)
    yield "layers per pipeline rank", _several(_split_words(replica) for replica in plan.replicas)
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
    given = said(plan.job.options)
    for name in VALUES:
        yield name.replace("_", " "), given.get(name, "default")


def _on(value: bool) -> str:
    return "on" if value else "off"


def settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the strategy of a plan in labelled lines, as one would tell a colleague."""
    replica, stage = plan.replicas[0], plan.replicas[0].stages[0]
    degrees = {
        "tensor": stage.tensor_parallel,
        "context": stage.context_parallel,
        "pipeline": len(replica.stages),
        "data": plan.data_parallel,
    }
    product = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one alone"
    yield "GPUs", f"{plan.gpus} {stage.gpu} = {product}; rank order {plan.rank_order}"
    if any(kind.moe is not None for kind in plan.model.kinds):
        yield "experts", f"expert parallel {stage.expert_parallel}, tensor {stage.expert_tensor_parallel} in an expert"
    samples = f"{counted(replica.micro_batches, 'micro-batch')} of {plan.micro_batch}"
    yield "batch", f"{plan.job.global_batch} = {samples} × {counted(plan.data_parallel, 'replica')}"
    yield "pipeline", _pipeline_words(plan)
    yield "recompute", _recompute_sentence(plan)
    yield from shared_settings(plan)


OPTION_NAMES = {
    "grad_reduce": "gradients reduced in",
    "main_grads": "main gradients",
    "main_params": "main weights",
    "exp_avg": "first moment",
    "exp_avg_sq": "second moment",
    "loss": "loss",
    "dispatcher": "tokens sent by",
}


def options_words(plan: Plan) -> str:
    """Return the options of the trainer that are not its framework's own, "" where there are none."""
    given = said(plan.job.options)
    return ", ".join(f"{words} {given[name]}" for name, words in OPTION_NAMES.items() if name in given)


def shared_settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what holds for all stages of a plan: optimizer, overlap and switches."""
    offload = f"; {plan.optimizer.offload:.0%} of it in host memory" if plan.optimizer.offload else ""
    yield "optimizer", SHARDING[plan.optimizer.sharding] + offload
    overlaps = {
        "gradient reduction": plan.overlap.grad_reduce,
        "weight gathering": plan.overlap.param_gather,
        "tensor-parallel": plan.overlap.tensor_parallel,
        "pipeline transfers": plan.overlap.pipeline,
    }
    yield "overlap", ", ".join(name for name, on in overlaps.items() if on) or "none"
    yield "switches", f"sequence parallel {_on(plan.sequence_parallel)}, FlashAttention {_on(plan.flash_attention)}"
    if words := options_words(plan):
        yield "trainer", words


def _pipeline_words(plan: Plan) -> str:
    ranks, virtual = len(plan.replicas[0].stages), plan.schedule.virtual_stages
    if ranks == 1:
        return f"one stage of {plan.replicas[0].stages[0].layer_count} layers"
    kind = f"interleaved 1F1B, {virtual} virtual stages a rank" if virtual > 1 else "1F1B"
    return f"{kind}; layers per rank {split_words(plan)}"


def _recompute_sentence(plan: Plan) -> str:
    found = plan.replicas[0].stages[0].recompute
    words = recompute_words(plan)
    if "/" in words or found.granularity == "none":
        return words
    if found.granularity == "selective":
        modules = plan.job.options.recompute_modules
        return "selective: " + ("core attention" if modules is None else ", ".join(modules))
    if found.method == "block":
        return f"full, method block: the first {found.layers} layers of each virtual stage"
    return f"full, method uniform: all layers, in groups of {found.layers}"


def fullest(prediction: Prediction) -> StageMemory:
    """Return the memory of the stage that fills its GPU most."""
    return max((s for row in prediction.memory for s in row), key=lambda s: s.total_bytes / s.capacity_bytes)


def memory_terms(memory: StageMemory) -> str:
    """Return the terms of a stage's memory, largest first."""
    terms = sorted(((getattr(memory, f"{name}_bytes"), name) for name in MEMORY_TERMS), reverse=True)
    return ", ".join(f"{name} {format_bytes(size)}" for size, name in terms if size > 0.01 * memory.total_bytes)


def money_words(prediction: Prediction) -> str:
    """Return price and run time; never a cost without the time behind it."""
    hours, rate = prediction.hours_total, prediction.dollars_per_hour
    run = None if hours is None else format_seconds(hours * SECONDS_PER_HOUR)
    if rate is None:
        words = "price unknown (give price_per_hour in the cluster file)"
        return words if run is None else f"{run} for all tokens; {words}"
    hours_per_billion = BILLION / prediction.tokens_per_second / SECONDS_PER_HOUR
    words = (
        f"{format_dollars(rate)} an hour; a billion tokens take {format_seconds(hours_per_billion * SECONDS_PER_HOUR)} "
        f"and {format_dollars(rate * hours_per_billion)}"
    )
    if prediction.dollars_total is not None and run is not None:
        words += f"; all tokens take {run} and {format_dollars(prediction.dollars_total)}"
    return words


def bottleneck(found: Prediction) -> str:
    """Return in words what holds a plan back most."""
    time, total = found.time, found.time.total_seconds
    share, fullest = max(
        (stage.total_bytes / stage.capacity_bytes, -place) for row in found.memory for place, stage in enumerate(row)
    )
    losses = {words: getattr(time, name) for name, words in TERMS.items() if name not in COMPUTE}
    worst = max(losses, key=lambda words: losses[words])
    compute = sum(getattr(time, name) for name in COMPUTE)
    said = f"compute of stage {found.busiest_stage} ({compute / total:.0%} of the iteration)"
    if losses[worst] > 0.02 * total:
        said += f", then {worst} ({losses[worst] / total:.0%})"
    return said + f"; memory of stage {-fullest} is {share:.0%} full"
