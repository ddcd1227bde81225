"""A published run as the cost model sees it: model, machines, job and strategy, with every guess.

A run on machines of several types is a plan whose replicas differ. Its GPU column names each type with its count
("V100-SXM2-16GBx12+T4-16GBx4", in rank order); the notes may name the machine types and the layers of each stage.
Pipeline ranks are outermost, as in Megatron-LM and DeepSpeed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, groupby, pairwise
from typing import Any

from shardwright.cost.compute.efficiency import computes, peak_flops
from shardwright.cost.compute.flops import job_flops
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM, ZERO3, Row, settled
from shardwright.errors import SpecError
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.records import record
from shardwright.rows import stated
from shardwright.spec.catalog.machines import machines
from shardwright.spec.cluster import Assumption, Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import build_cluster
from shardwright.units import GIBIBYTE
from shardwright.validation.facts import (
    PRECISIONS,
    Habits,
    SkippedRunError,
    contradictions,
    first_and_last,
    framework_of,
    gpu_name,
    habits_of,
    job_of,
    model_of,
    said,
    whole,
)
from shardwright.validation.runs import PublishedRun

MULTIMODAL = re.compile(r"\bmimo\b|\bvlm\b|llava", re.IGNORECASE)
# What guesses are about on which the reasons of an error depend.
NETWORK, RECOMPUTATION, SHARDING = "network", "recomputation", "optimizer sharding"
CONTRADICTS = "contradicts_itself"  # a run that is skipped for this is an error of its table
DOUBTFUL = ("cuda_graph", "a2a_overlap", "tp_overlap")  # columns whose defaults may be in doubt
RECOMPUTE = {"none": NONE, "selective": SELECTIVE, "full": UNIFORM}


@record(slots=False)
class Case:
    """A run ready to be costed. `row` is one row of `Strategies`; `guesses` are what was not published.
    `open_recompute`: recomputation is not published, so it is the least that fits. `others` are the cases that it may
    be as well, where defaults are in doubt. A run on machines of several types has a `plan` instead of a row."""

    run: PublishedRun
    model: Model
    pool: NodePool
    job: Job
    row: Row
    open_recompute: bool
    guesses: tuple[Assumption, ...]
    others: tuple[Case, ...] = ()
    plan: Plan | None = None

    @property
    def pools(self) -> tuple[NodePool, ...]:
        """The machines, of one type or several."""
        return (self.pool,) if self.plan is None else self.plan.cluster.pools


def case_of(run: PublishedRun) -> Case:
    """Return the case of a run. Raises SkippedRunError for a run that lacks something or that
    the cost model does not cover."""
    case = _case_as_said(run)
    defaults = {column: said(run, column, case.pool.gpu.architecture).other for column in DOUBTFUL}
    others: list[tuple[str, Any]] = [(column, other) for column, other in defaults.items() if other]
    several = (choice for size in range(len(others)) for choice in combinations(others, size + 1))
    alike = [_case_as_said(replace(run, **dict(choice))) for choice in several]
    return replace(case, others=tuple(other for other in alike if (other.row, other.job) != (case.row, case.job)))


def _case_as_said(run: PublishedRun) -> Case:
    """Return the case of a run without what it may be as well."""
    if run.precision and run.precision not in PRECISIONS:
        raise SkippedRunError("not_modelled", f"precision {run.precision} is not modelled")
    guesses: list[Assumption] = []
    if run.hetero == "yes":
        plan = mixed_plan(run, guesses)
        return Case(
            run=run,
            model=plan.model,
            pool=plan.cluster.pools[0],
            job=plan.job,
            row={},
            open_recompute=False,
            guesses=tuple(guesses),
            plan=plan,
        )
    if MULTIMODAL.search(run.model):
        raise SkippedRunError("not_modelled", "a multimodal model is not modelled")
    framework = framework_of(run, guesses)
    habits = habits_of(framework)
    try:
        model = model_of(run, guesses)
        pool = pool_of(run, guesses)
        job = job_of(run, framework, pool.gpu.architecture, guesses)
    except SpecError as error:
        raise SkippedRunError("not_described", str(error.problems[0])) from None
    if model.towers:
        words = f"what its sequences give to {model.towers[0].noun} is not published"
        raise SkippedRunError("not_described", words)
    row, architecture = _row_of(run, model, pool, job, habits, guesses), pool.gpu.architecture
    if not run.recompute:
        guesses.append(Assumption(RECOMPUTATION, "the least that fits"))
    if job.precision == "fp32" and (run.precision == "tf32" or said(run, "fp32_matmul", architecture).value == "tf32"):
        raise SkippedRunError("not_modelled", "products in tf32 are not modelled")
    case = Case(
        run=run,
        model=model,
        pool=pool,
        job=job,
        row=row,
        open_recompute=not run.recompute,
        guesses=tuple(guesses),
    )
    if run.quality != "C" and computes(pool.gpu, job.precision):
        ideal, experts = ideal_seconds(case), model.has_experts
        for words in contradictions(run, experts=experts, memory_bytes=pool.memory_bytes, ideal_seconds=ideal):
            raise SkippedRunError(CONTRADICTS, words)
    return case


def pool_of(run: PublishedRun, guesses: list[Assumption]) -> NodePool:
    """Return the machines of a run: the catalogue's, with what the run publishes of memory, network and power."""
    gpus = whole(run, "n_gpus")
    per_machine = min(whole(run, "gpus_per_node", 8), gpus)
    if gpus % per_machine:
        raise SkippedRunError("not_divided", f"{gpus} GPUs are no whole number of machines with {per_machine}")
    name, memory = gpu_name(run.gpu, run.gpu_mem_gb)
    machine = _machine(run.machine, name, per_machine)
    pool = _pool(name, gpus // per_machine, per_machine, run.network_gbps, machine)
    speed, watts = run.noted.special or (None, None)
    other_memory = memory is not None and abs(memory * GIBIBYTE / pool.memory_bytes - 1.0) > 0.1
    published: dict[str, Any] = {
        "memory_bytes_per_second": speed,
        "tdp_watts": run.power_limit_w or watts,
        "memory_bytes": memory * GIBIBYTE if memory is not None and other_memory else None,
    }
    gpu = replace(pool.gpu, **stated(published))
    if gpus > per_machine and run.network_gbps is None and machine is None:
        guesses.append(
            Assumption(NETWORK, f"{pool.inter_bytes_per_second * 8e-9:g} Gbit/s a machine, as the catalogue has it")
        )
    return replace(pool, gpu=gpu, memory_bytes=gpu.memory_bytes)


def _machine(words: str, gpu: str, per_machine: int) -> str | None:
    """Return the machine type of the catalogue that a run names, wholly or by its family ("p5"); None where it names
    none, or several."""
    alike = [
        name
        for name, machine in machines().items()
        if (machine.gpu, machine.gpus) == (gpu, per_machine)
        and (name.casefold() == words.casefold() or name.casefold().startswith(f"{words.casefold()}."))
    ]
    return alike[0] if words and len(alike) == 1 else None


@lru_cache(maxsize=4096)
def _pool(gpu: str, nodes: int, gpus: int, gbps: float | None, machine: str | None) -> NodePool:
    entry = stated({"count": nodes, "gpu": gpu, "gpus": gpus, "machine": machine, "inter_node_gbps": gbps})
    try:
        return build_cluster({"nodes": [entry]}, "run").pools[0]
    except SpecError as error:
        raise SkippedRunError("not_described", str(replace(error.problems[0], path=""))) from None


def _row_of(
    run: PublishedRun, model: Model, pool: NodePool, job: Job, habits: Habits, guesses: list[Assumption]
) -> Row:
    """Return the strategy of a run; unpublished switches follow the habits of its framework."""
    tp, pp, cp = whole(run, "tp", 1), whole(run, "pp", 1), whole(run, "cp", 1)
    if run.tp is None and run.pp is None:
        raise SkippedRunError("unpublished", "tp and pp are not published")
    dp, rest = divmod(pool.gpus, tp * pp * cp)
    if rest or dp < 1:
        raise SkippedRunError("not_divided", f"tp {tp} × cp {cp} × pp {pp} does not divide {pool.gpus} GPUs")
    micro = whole(run, "micro_batch", max(job.global_batch // dp, 1) if pp == 1 else None)
    if job.global_batch % (dp * micro):
        raise SkippedRunError("not_divided", f"the global batch is no multiple of dp {dp} × micro-batch {micro}")
    vpp = whole(run, "vpp", 1)
    if vpp > 1 and (pp == 1 or (job.global_batch // (dp * micro)) % pp or pp * vpp > len(model.layers)):
        guesses.append(Assumption("virtual stages", f"1, as {vpp} does not go with the batch or the layers"))
        vpp = 1
    if pp > len(model.layers):
        raise SkippedRunError("more_stages_than_layers", "more stages than layers")
    ep = expert_degree(run, model, tp, cp, dp)
    sharding = _sharding(run, habits, guesses) if dp * cp > 1 and job.optimizer != "none" else 0
    if sharding >= 2 and pp > 1 and habits.framework == "megatron":
        sharding = 1
    published_sp = run.seq_parallel.casefold()
    sequence_parallel = published_sp == "true" or (not published_sp and habits.sequence_parallel)
    if tp > 1 and not published_sp:
        guesses.append(Assumption("sequence parallel", f"{'on' if sequence_parallel else 'off'}"))
    notes, architecture = run.noted, pool.gpu.architecture
    if run.recompute and run.recompute.casefold() not in RECOMPUTE:
        raise SkippedRunError("not_modelled", f"recompute {run.recompute} is none of {', '.join(RECOMPUTE)}")
    recompute = RECOMPUTE.get(run.recompute.casefold(), NONE)
    block = notes.block_layers
    if recompute == UNIFORM and block is not None:
        recompute = BLOCK
    first, last = first_and_last(len(model.layers), pp * vpp, head_layers(model) if habits.balanced else 0.0)
    beside = said(run, "tp_overlap", architecture).value == "true" or habits.overlap_tp
    overlap_tp = run.tp_overlap == "true" if run.tp_overlap else beside and sequence_parallel
    overlap_dp = run.dp_overlap != "false"
    return settled(
        {
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "dp": dp,
            "ep": ep,
            "vpp": vpp,
            "micro_batch": micro,
            "sequence_parallel": sequence_parallel,
            "flash": habits.flash if not run.attention_backend else run.attention_backend != "unfused",
            "overlap_tp": overlap_tp,
            "overlap_pp": run.pp_overlap != "false",
            "first_layers": first,
            "last_layers": last,
            "recompute": recompute,
            "recompute_layers": int(recompute == UNIFORM) if block is None else block,
            "sharding": sharding,
            "offload": float(notes.optimizer_offload),
            "overlap_grad": overlap_dp and habits.overlap_grad,
            "overlap_param": overlap_dp and (habits.overlap_param or sharding == ZERO3),
        }
    )


def ideal_seconds(case: Case) -> float:
    """Return the seconds of the model's FLOPs at the dense peak of all GPUs."""
    peak = sum(peak_flops(pool.gpu, case.job.precision) * pool.gpus for pool in case.pools)
    return job_flops(case.model, case.job) / peak


def expert_degree(run: PublishedRun, model: Model, tp: int, cp: int, dp: int) -> int:
    """Return the expert parallel degree; experts are whole, not split by tensor parallelism."""
    experts = max((kind.moe.experts for kind in model.kinds if kind.moe), default=0)
    if not experts:
        return 1
    ep = whole(run, "ep", 1)
    if experts % ep or (tp * cp * dp) % ep:
        raise SkippedRunError("not_divided", f"ep {ep} does not divide the experts or the ranks")
    return ep


def head_layers(model: Model) -> float:
    """Return the weights of the output projection over those of a layer."""
    per_layer = model.layer_parameters(model.layers[-1])
    return model.token_table_parameters / per_layer


def _sharding(run: PublishedRun, habits: Habits, guesses: list[Assumption]) -> int:
    if run.zero_or_fsdp_stage is not None:
        return min(int(run.zero_or_fsdp_stage), 3)
    if run.dist_optimizer:
        return int(run.dist_optimizer.casefold() == "true")
    guesses.append(Assumption(SHARDING, f"ZeRO-{habits.sharding}"))
    return habits.sharding


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
