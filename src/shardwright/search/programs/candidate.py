"""The fastest SPMD program for a model that the catalogue describes, on a small cluster.

A program runs all rows of a step at once. Where their activations do not fit, the batch goes in several steps whose
gradients add up: as few as fit. An iteration takes

    T = steps · (program + launches) + max over GPUs of the update of what it stores + framework's time an iteration
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.context import Context
from shardwright.cost.iteration.step import update_seconds
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.sizes import state_bytes
from shardwright.cost.strategies import UNSHARDED
from shardwright.plans.ranking import GpuShare, NoProgram, SpmdProgram
from shardwright.search.mixed.entry import run_by_train
from shardwright.search.programs.devices import machines_of
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.graph import ITEM_BYTES
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.models.described import other_than, training_step
from shardwright.synthesis.prices import Prices, prices
from shardwright.synthesis.properties import COMPUTE, FEATURES, STATE, Sharded
from shardwright.synthesis.synthesize import Synthesis, best_of

MOST_GPUS = 16
MOST_TRIED = 3  # numbers of steps, from the least that memory could allow on
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LAUNCHES = 2.0  # passes of a step: forward and backward


def best_program(
    model: Model, cluster: Cluster, job: Job, *, fit: float = 0.9, efficiency: Efficiency | None = None
) -> SpmdProgram | NoProgram:
    """Return the fastest SPMD program for `job` on all GPUs of `cluster`, or why there is none.

    Its seconds come from the same cost model as those of plans: GPUs are as fast as their layers are there, links as
    fast as `shardwright train` finds them, the optimizer's state is as large, and each GPU keeps the memory free that
    a plan would.
    """
    if reason := _refused(model, cluster, job):
        return NoProgram(reason)
    plain = [
        Context(model=model, pool=pool, job=job, efficiency=efficiency or default_efficiency())
        for pool in cluster.pools
    ]
    contexts = run_by_train(plain, fit)
    steps = [count for count in range(1, job.global_batch + 1) if job.global_batch % count == 0]
    for count in _that_may_fit(contexts, steps)[:MOST_TRIED]:
        found = _in_steps(contexts, count)
        if found is not None:
            return found
    return NoProgram("none fits the memory of the GPUs")


def _refused(model: Model, cluster: Cluster, job: Job) -> str:
    if not 1 < cluster.gpus <= MOST_GPUS:
        return f"programs are searched on 2 to {MOST_GPUS} GPUs"
    if job.precision not in DTYPES or job.adapters or job.optimizer not in ("adam", "sgd"):
        return "programs are searched for whole training steps in fp32, bf16 or fp16 with adam or sgd"
    for pool in cluster.pools:
        if not computes(pool.gpu, job.precision):
            return f"{pool.gpu.name} does not compute in {job.precision}"
    lacking = other_than(model, job.seq_len)
    return f"{model.name} has {lacking}, which no graph that ships has" if lacking else ""


def _decisions(contexts: Sequence[Context], rows: int) -> Decisions:
    context = contexts[0]
    job, dtype = context.job, DTYPES[context.job.precision]
    graph = training_step(context.model, batch=rows, seq_len=job.seq_len, dtype=dtype)
    return decisions(
        graph, ranks=sum(one.pool.gpus for one in contexts), state_ratio=True, state_bytes=_state_bytes(job, dtype)
    )


def _state_bytes(job: Job, dtype: str) -> float:
    """Return the bytes of a parameter, its gradient and the optimizer's state for each byte of the parameter."""
    one, none = np.ones(1), np.zeros(1)
    held = state_bytes(job, one, none, one, one, np.full(1, UNSHARDED), none, none)
    return float((held.weights + held.gradients + held.optimizer)[0]) / ITEM_BYTES[dtype]


def _that_may_fit(contexts: Sequence[Context], steps: Sequence[int]) -> list[int]:
    """Return the numbers of steps with which state and activations, each held once, fit all GPUs together."""
    batch = contexts[0].job.global_batch
    these = _decisions(contexts, 1)
    nodes = [(one.node, one.weight) for one in these.decisions]
    state = sum(
        weight * node.outputs[0].size_bytes * these.state_bytes for node, weight in nodes if node.op == "parameter"
    )
    row = sum(
        these.decisions[number].weight * these.decisions[number].node.outputs[output].size_bytes
        for number, output in these.saved
    )
    room = sum(context.memory_limit_bytes * context.pool.gpus for context in contexts)
    return [count for count in steps if state + batch // count * row <= room]


def _in_steps(contexts: Sequence[Context], steps: int) -> SpmdProgram | None:
    """Return the best program for a batch that goes in so many parts, None if none fits."""
    rows = contexts[0].job.global_batch // steps
    these = _decisions(contexts, rows)
    net = machines_of(contexts, these, rows)
    found = best_of(these, net, branch=False)
    if found is None:
        return None
    costs = prices(these, net, found.shares)
    launching = LAUNCHES * max(context.software.pass_seconds for context in contexts)
    once = max(context.software.step_seconds for context in contexts) + _update_seconds(contexts, found, net)
    return SpmdProgram(
        iteration_seconds=steps * (found.choice.seconds.total + launching) + once,
        bound_seconds=steps * (found.choice.bound_seconds + launching) + once,
        steps=steps,
        shares=_shares(found, net),
        sent=_sent(found, costs),
        memory_bytes=float(costs.memory[costs.first + found.choice.rules].sum(axis=0).max()),
    )


def _update_seconds(contexts: Sequence[Context], found: Synthesis, net: Machines) -> float:
    """Return the longest time in which a GPU updates the parameters that it stores."""
    stored = np.zeros(len(net.classes))
    for one, rule in zip(found.these.decisions, found.choice.rules.tolist(), strict=True):
        if one.node.op == "parameter":
            held = one.rules[rule].outputs[0]
            part = found.shares.by_class(held, net) if isinstance(held, Sharded) else 1.0
            stored += one.weight * one.node.outputs[0].elements * part
    by_name: dict[str, Context] = {context.pool.gpu.name: context for context in contexts}
    times = [
        update_seconds(by_name[machine.device.name], np.array([elements]))[0]
        for (machine, _), elements in zip(net.classes, stored, strict=True)
    ]
    return float(max(times))


def _shares(found: Synthesis, net: Machines) -> tuple[GpuShare, ...]:
    rows: Sequence[Floats] = [np.asarray(found.shares.row(name)) for name in (COMPUTE, FEATURES, STATE)]
    return tuple(
        GpuShare(
            gpu=machine.device.name,
            count=len(ranks),
            rows=float(rows[0][ranks[0]]),
            features=float(rows[1][ranks[0]]),
            state=float(rows[2][ranks[0]]),
        )
        for machine, ranks in net.classes
    )


def _sent(found: Synthesis, costs: Prices) -> tuple[tuple[str, int], ...]:
    """Return how often a step sends by each method, slices of what is there aside."""
    ways, counts = costs.conversions, Counter[str]()
    for way in np.flatnonzero(found.choice.sent > 0.5).tolist():
        if ways.seconds[way] > 0:
            counts[ways.method[way]] += found.these.uses[ways.use[way]].weight
    return tuple(sorted(counts.items()))
