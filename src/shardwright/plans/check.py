"""Is a plan legal? Every violation at once, whatever made the plan: the search, a file, another tool's arguments.

What only one target cannot express (Megatron-LM has one tensor-parallel degree for all stages, say) is not illegal:
that is the exporters' to refuse. But a plan that is priced for `shardwright train` says nothing that `train` does not
do (`trainable`). The vocabulary need not divide: every runtime pads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from shardwright.errors import Problem, suggestion
from shardwright.plans.abilities import makers
from shardwright.plans.cuts import split_sizes
from shardwright.plans.plan import DEGREES, Plan, Recompute, Stage, replicas_at, stages_at
from shardwright.plans.shares import share_problems
from shardwright.plans.trainable import own_problems
from shardwright.plans.trainer_options import option_problems
from shardwright.rows import holding
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.images import image_problems
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model
from shardwright.spec.read.pools import MOST_GPUS_PER_NODE, MOST_NODES


def check(plan: Plan) -> tuple[Problem, ...]:
    """Return what is wrong with `plan`, nothing if it is legal. Paths are those of the plan file."""
    problems = tuple(_sizes(plan))
    if problems:
        return problems
    rules: tuple[Callable[[Plan], Iterable[Problem]], ...] = (
        _batch,
        _gpus,
        _makers,
        _schedule,
        _layers,
        _shared_blocks,
        _recompute,
        degree_problems,
        _optimizer,
        _overlap,
        _framework,
        _precision,
        _positions,
        _options,
        share_problems,
        own_problems,
    )
    return tuple(problem for rule in rules for problem in rule(plan))


def _sizes(plan: Plan) -> Iterator[Problem]:
    """Counts and degrees are at least 1, there is something to train and to train on, and no more of it than a cluster
    file may say."""
    yield from batch_problems(plan.job, plan.micro_batch, "micro_batch")
    job, model, schedule = plan.job, plan.model, plan.schedule
    counts = {"micro_batch": plan.micro_batch, "job.global_batch": job.global_batch, "job.seq_len": job.seq_len}
    counts |= {
        "model.hidden": model.hidden,
        "model.vocab": model.vocab,
        "schedule.virtual_stages": schedule.virtual_stages,
    }
    counts |= {"replicas": len(plan.replicas), "model.layers": len(model.layers)}
    for index, kind in enumerate(model.kinds):
        place = f"model.layers (kind {index})"
        if kind.attention:
            counts |= {
                f"{place}.attention.heads": kind.attention.heads,
                f"{place}.attention.kv_heads": kind.attention.kv_heads,
            }
        if kind.mixer:
            counts |= {f"{place}.mixer ({what})": size for what, size in kind.mixer.splits}
        if kind.moe:
            counts |= {f"{place}.moe.experts": kind.moe.experts, f"{place}.moe.top_k": kind.moe.top_k}
    for place, replica in replicas_at(plan):
        counts |= {f"{place}.count": replica.count, f"{place}.micro_batches": replica.micro_batches}
        counts[f"{place}.stages"] = len(replica.stages)
    for place, _, stage in stages_at(plan):
        counts |= {f"{place}.{name}": getattr(stage, name) for name in DEGREES}
    for path, count in counts.items():
        if count < 1:
            yield Problem(path, f"is {count}", "must be at least 1")
    for index, pool in enumerate(plan.cluster.pools):
        for name, size, most in (
            ("nodes", pool.nodes, MOST_NODES),
            ("gpus_per_node", pool.gpus_per_node, MOST_GPUS_PER_NODE),
        ):
            if size > most:
                yield Problem(
                    f"cluster.pools[{index}].{name}", f"is {size}, more than a cluster may have", f"at most {most}"
                )


def _batch(plan: Plan) -> Iterator[Problem]:
    samples = sum(replica.count * replica.samples(plan.micro_batch) for replica in plan.replicas)
    if samples != plan.job.global_batch:
        message = f"the replicas take {samples} samples a step, but job.global_batch is {plan.job.global_batch}"
        hint = "sum of count * micro_batches, times micro_batch, must equal it"
        yield Problem("replicas", message, "the sum of count * rows must equal it" if plan.layered else hint)


def _gpus(plan: Plan) -> Iterator[Problem]:
    """No more GPUs of a type than the cluster has."""
    there, used = plan.cluster.gpus_by_type, Counter[str]()
    for place, replica, stage in stages_at(plan):
        if stage.gpu not in there:
            yield Problem(f"{place}.gpu", f"the cluster has no {stage.gpu!r}", suggestion(stage.gpu, there))
        used[stage.gpu] += replica.count * stage.gpus
    for gpu, count in used.items():
        if gpu in there and count > there[gpu]:
            message = f"uses {count} GPUs of type {gpu}, but the cluster has {there[gpu]}"
            yield Problem("replicas", message, "use fewer replicas or smaller degrees, or add machines")


def _makers(plan: Plan) -> Iterator[Problem]:
    used = {stage.gpu for _, _, stage in stages_at(plan)}
    vendors = makers(pool.gpu for pool in plan.cluster.pools if pool.gpu.name in used)
    if len(vendors) > 1:
        yield Problem(
            "replicas", f"has GPUs of {' and '.join(vendors)}, which no library joins", "plan for one of them"
        )


def _schedule(plan: Plan) -> Iterator[Problem]:
    kind, chunks = plan.schedule.kind, plan.schedule.virtual_stages
    if kind != "zero-bubble" and (kind == "interleaved") != (chunks > 1):
        hint = "interleaved has at least 2 virtual stages, 1f1b has 1"
        yield Problem("schedule.virtual_stages", f"is {chunks} with schedule {kind!r}", hint)
    for place, replica in replicas_at(plan):
        depth = len(replica.stages)
        if chunks > 1 and depth == 1:
            yield Problem(f"{place}.stages", "an interleaved schedule on one stage", "use 1f1b, or at least 2 stages")
        elif chunks > 1 and replica.micro_batches % depth:
            message = f"{replica.micro_batches} micro-batches do not divide by the {depth} stages"
            yield Problem(f"{place}.micro_batches", message, "an interleaved schedule needs a multiple of the stages")
    if plan.schedule.weights_apart:
        yield from _weights_apart(plan)


def _weights_apart(plan: Plan) -> Iterator[Problem]:
    """What keeps gradients of weights from being computed apart from the backward pass."""
    again = any(stage.recompute.granularity != "none" for _, _, stage in stages_at(plan))
    rows = (
        (
            all(len(replica.stages) == 1 for replica in plan.replicas),
            "zero-bubble, and no replica has two stages",
            "use 1f1b",
        ),
        (
            plan.job.adapters,
            "zero-bubble trains all weights, the job adapters alone",
            "use 1f1b or interleaved",
        ),
        (again, "zero-bubble keeps what recomputation frees", "use recompute none, or 1f1b"),
    )
    yield from (Problem("schedule.kind", message, hint) for wrong, message, hint in rows if wrong)


def _layers(plan: Plan) -> Iterator[Problem]:
    """Virtual stage v of stage s is number v * stages + s in order of execution; together they cover all layers."""
    chunks, total = plan.schedule.virtual_stages, len(plan.model.layers)
    for place, replica in replicas_at(plan):
        wrong = [i for i, stage in enumerate(replica.stages) if len(stage.layers) != chunks]
        for i in wrong:
            message = f"has {len(replica.stages[i].layers)} ranges for {chunks} virtual stages"
            yield Problem(f"{place}.stages[{i}].layers", message, "write one range for each virtual stage")
        if wrong:
            continue
        reached = 0
        for chunk in range(chunks):
            for i, stage in enumerate(replica.stages):
                start, end = stage.layers[chunk]
                if start != reached or end < start:
                    path = f"{place}.stages[{i}].layers"
                    yield Problem(path, f"[{start}, {end}] does not follow layer {reached}", f"start it at {reached}")
                reached = max(end, start)
        if reached != total:
            yield Problem(place, f"its stages end at layer {reached}, the model has {total}", f"end them at {total}")


def _shared_blocks(plan: Plan) -> Iterator[Problem]:
    """Blocks that layers share read the embedding beside the hidden state, and no trainer sends that from stage to
    stage."""
    for place, replica in replicas_at(plan):
        if plan.model.sharing and len(replica.stages) > 1:
            message = f"{len(replica.stages)} stages of layers that share blocks, which read the embedding too"
            yield Problem(f"{place}.stages", message, "use one stage")


def _recompute(plan: Plan) -> Iterator[Problem]:
    for place, _, stage in stages_at(plan):
        for message, hint in _recompute_faults(stage.recompute, len(plan.model.layers)):
            yield Problem(f"{place}.recompute", message, hint)


def _recompute_faults(recompute: Recompute, layers: int) -> Iterable[tuple[str, str]]:
    full = recompute.granularity == "full"
    more = recompute.method is not None or recompute.layers is not None
    able = recompute.layers is not None and 1 <= recompute.layers <= layers
    neither = f"{recompute.granularity} takes neither method nor layers"
    return holding(
        (more and not full, (neither, "leave them out, or use granularity full")),
        (full and recompute.method is None, ("full needs a method", "write uniform or block")),
        (full and not able, (f"full with layers {recompute.layers}", f"write a count of layers from 1 to {layers}")),
    )


def _optimizer(plan: Plan) -> Iterable[Problem]:
    job, sharding, offload = plan.job, plan.optimizer.sharding, plan.optimizer.offload
    part = 0 <= offload <= 1
    whole_matrices = f"is {sharding} beside {job.optimizer}, which projects whole matrices"
    return holding(
        (not part, Problem("optimizer.offload", f"is {offload:g}", "write a fraction from 0 to 1")),
        (
            part and offload > 0 and not plan.optimizer.distributed,
            Problem("optimizer.offload", "needs a sharded optimizer", "use sharding zero1, or offload 0"),
        ),
        (
            job.projection_rank is not None and sharding != "none",
            Problem("optimizer.sharding", whole_matrices, "use sharding none"),
        ),
        (
            job.optimizer_rank is not None and job.projection_rank is None,
            Problem("job.optimizer_rank", f"has no meaning for {job.optimizer}", "leave it out"),
        ),
    )


def _overlap(plan: Plan) -> Iterator[Problem]:
    overlap, both = plan.overlap, "turn both on, or this one off"
    rows = (
        (
            overlap.param_gather and not plan.optimizer.distributed,
            Problem("overlap.param_gather", "there is no gather without a sharded optimizer", "write false"),
        ),
        (
            overlap.param_gather and not overlap.grad_reduce,
            Problem("overlap.param_gather", "needs overlap.grad_reduce", both),
        ),
        (
            overlap.tensor_parallel and not plan.sequence_parallel,
            Problem("overlap.tensor_parallel", "needs sequence_parallel", both),
        ),
    )
    yield from holding(*rows)


def _framework(plan: Plan) -> Iterator[Problem]:
    name, known = plan.job.framework, framework_names()
    if name not in known:
        yield Problem("job.framework", f"{name!r} is not known", suggestion(name, known))


def _precision(plan: Plan) -> Iterator[Problem]:
    job, used = plan.job, {stage.gpu for _, _, stage in stages_at(plan)}
    if job.fp8_recipe is not None and job.precision != "fp8":
        yield Problem("job.fp8_recipe", f"is set with precision {job.precision}", "leave it out, or use fp8")
    for gpu in {pool.gpu.name: pool.gpu for pool in plan.cluster.pools if pool.gpu.name in used}.values():
        if gpu.peak(job.precision) is None:
            known = ", ".join(name for name, _ in gpu.peak_flops)
            yield Problem("job.precision", f"{gpu.name} cannot compute in {job.precision}", f"it has {known}")


def _options(plan: Plan) -> Iterator[Problem]:
    """The precision-aware optimizer is a distributed one (optimizer_config.py 434 of Megatron-LM core_v0.19.2), and
    such a one alone quantises its masters anew (arguments.py: fp8_param_gather)."""
    options, sharding = plan.job.options, plan.optimizer.sharding
    yield from option_problems(plan.model, plan.job)
    needed = (
        (options.param_gather == "fp8", "zero1", "where weights are kept in fp8"),
        (options.weights_in_host, "zero3", "for weights in host memory"),
        (options.precision_aware, "zero1", "for the precision-aware optimizer"),
    )
    for asked, needs, words in needed:
        if asked and sharding != needs:
            yield Problem("optimizer.sharding", f"must be {needs} {words}", f"use {needs}")
    if options.precision_aware and plan.optimizer.offload > 0:
        yield Problem("optimizer.offload", "leaves no choice of the state's types", "use 0, or leave them out")
    for place, _, stage in stages_at(plan) if options.expert_products == "loop" else ():
        if stage.expert_parallel > 1:
            yield Problem(f"{place}.expert_parallel", "must be 1 where a GPU loops over all experts", "write 1")


def _positions(plan: Plan) -> Iterator[Problem]:
    return position_problems(plan.model, plan.job, "job.seq_len")


def batch_problems(job: Job, samples: int, place: str) -> Iterator[Problem]:
    """Yield that a GPU takes too few samples at a time for the loss."""
    if job.preference is not None and samples < job.preference.least_samples:
        least = job.preference.least_samples
        message = f"gives a GPU {samples} at a time, and {job.preference.loss} holds answers of a batch against others"
        yield Problem(place, message, f"give {least} or more")


def position_problems(model: Model, job: Job, place: str = "`seq_len=`") -> Iterator[Problem]:
    """Yield what is wrong with the length of samples, which stands at `place`, whatever the plan."""
    seq_len = job.seq_len
    # OPT and BART have rows before the first position, which no sample reaches.
    longest = min(model.learned_positions, model.max_position or model.learned_positions)
    if model.position == "learned" and 0 < longest < seq_len:
        message = f"{seq_len} is longer than the model's table of {longest} positions"
        yield Problem(place, message, "train on shorter sequences, or enlarge learned_positions")
    yield from image_problems(model, job, place)


def degree_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what is wrong with the degrees of a plan's stages."""
    for rule in (_tensor_parallel, _context_parallel, _expert_parallel, _sequence_parallel):
        yield from rule(plan)


def _tensor_parallel(plan: Plan) -> Iterator[Problem]:
    for place, _, stage in stages_at(plan):
        for what, size in split_sizes(_kinds(plan, stage)):
            if size % stage.tensor_parallel:
                message = f"{stage.tensor_parallel} does not divide {what} ({size})"
                yield Problem(f"{place}.tensor_parallel", message, "use a divisor of it")
        for kind in _kinds(plan, stage):
            groups, degree = kind.kv_heads, stage.tensor_parallel
            if not kind.latent and groups % degree and degree % groups:
                message = f"{degree} is neither a divisor nor a multiple of the key-value heads ({groups})"
                yield Problem(f"{place}.tensor_parallel", message, "each rank holds whole key-value heads")
        for kind in _kinds(plan, stage):
            if kind.moe and kind.moe.expert_width % stage.expert_tensor_parallel:
                message = f"{stage.expert_tensor_parallel} does not divide the experts' width ({kind.moe.expert_width})"
                yield Problem(f"{place}.expert_tensor_parallel", message, "use a divisor of it")


def _kinds(plan: Plan, stage: Stage) -> tuple[Layer, ...]:
    """The distinct layers of a stage; those of the model where its ranges are out of bounds."""
    model = plan.model
    held = dict.fromkeys(kind for start, end in stage.layers for kind in model.kind_of_layer[start:end])
    return tuple(model.kinds[kind] for kind in held) or model.kinds


def _context_parallel(plan: Plan) -> Iterator[Problem]:
    """Causal attention is balanced by giving each rank a block from either end, hence twice the degree."""
    seq_len = plan.job.seq_len
    for place, _, stage in stages_at(plan):
        degree = stage.context_parallel
        if degree > 1 and seq_len % (2 * degree):
            message = f"sequence length {seq_len} does not divide by twice the degree ({2 * degree})"
            yield Problem(f"{place}.context_parallel", message, "use a smaller degree, or another sequence length")
        for mixer in dict.fromkeys(kind.mixer for kind in _kinds(plan, stage) if degree > 1 and kind.mixer):
            heads = None if mixer.context_heads is None else mixer.context_heads // stage.tensor_parallel
            if heads is None:
                yield Problem(f"{place}.context_parallel", f"no trainer splits the sequence of {mixer.words}", "use 1")
            elif heads % degree:
                message = f"{degree} does not divide the {heads} heads that a rank has of {mixer.words}"
                yield Problem(f"{place}.context_parallel", message, "use a divisor of them")


def _expert_parallel(plan: Plan) -> Iterator[Problem]:
    for place, replica, stage in stages_at(plan):
        experts = {kind.moe.experts for kind in plan.model.kinds if kind.moe}
        degree = stage.expert_parallel
        if degree > 1 and not experts:
            yield Problem(f"{place}.expert_parallel", f"is {degree}, but the model has no experts", "write 1")
        for count in experts:
            if count % degree:
                yield Problem(
                    f"{place}.expert_parallel", f"{degree} does not divide the {count} experts", "use a divisor"
                )
        ranks = replica.count * stage.gpus
        if experts and ranks % (degree * stage.expert_tensor_parallel):
            message = f"{degree} * expert_tensor_parallel {stage.expert_tensor_parallel} does not divide the stage's"
            yield Problem(f"{place}.expert_parallel", f"{message} {ranks} GPUs", "over all equal replicas it must")


def _sequence_parallel(plan: Plan) -> Iterator[Problem]:
    if not plan.sequence_parallel:
        return
    if all(stage.tensor_parallel == 1 for _, _, stage in stages_at(plan)):
        yield Problem("sequence_parallel", "needs tensor parallelism", "write false, or raise tensor_parallel")
    for place, _, stage in stages_at(plan):
        share = plan.job.seq_len // stage.context_parallel
        if share % stage.tensor_parallel:
            message = f"{stage.tensor_parallel} does not divide the sequence of {share} tokens that a rank holds"
            yield Problem(f"{place}.tensor_parallel", message, "turn sequence_parallel off, or use another degree")
