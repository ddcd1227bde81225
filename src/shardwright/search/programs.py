"""The fastest SPMD program for a model that the catalogue describes, on a small cluster.

A program runs all rows of a step at once. Where their activations do not fit, the batch goes in several steps whose
gradients add up: as few as fit. An iteration takes

    T = steps · (program + launches) + max over GPUs of the update of what it stores + framework's time an iteration
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency, computes, peak_flops
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.shares import units_of
from shardwright.cost.iteration.step import update_seconds
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.sizes import StateSplit, parameter_bytes, room_for_tensors
from shardwright.cost.strategies import UNSHARDED
from shardwright.plans.abilities import makers
from shardwright.plans.ranking import GpuShare, NoProgram, SpmdProgram
from shardwright.search.mixed.entry import run_by_train
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.synthesis.baselines import Rules, everything
from shardwright.synthesis.decisions import Decisions, ParameterState, decisions
from shardwright.synthesis.graph import COMPUTE, FEATURES, ITEM_BYTES, STATE, Graph, Sharded
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.memory import alone, rank_bytes
from shardwright.synthesis.models.transformers import other_than, training_step
from shardwright.synthesis.prices import Prices, prices, seconds_of
from shardwright.synthesis.program import Program
from shardwright.synthesis.synthesize import Synthesis, best_of, written

Keep = Callable[[Graph, Program], None]
MOST_GPUS = 16
MOST_TRIED = 3  # numbers of steps, from the least that memory could allow on
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LAUNCHES = 2.0  # passes of a step: forward and backward


def best_program(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    rules: Rules = everything,
    keep: Keep | None = None,
) -> SpmdProgram | NoProgram:
    """Return the fastest SPMD program of `rules` for `job` on all GPUs of `cluster`, or why there is none. `keep` is
    given its graph and all that it does.

    Its seconds come from the same cost model as those of plans: GPUs are as fast as their layers are there, links as
    fast as `shardwright train` finds them, the optimizer's state is as large, and each GPU keeps the memory free that
    a plan would.
    """
    if reason := _refused(model, cluster, job):
        return NoProgram(reason)
    plain = [
        Context(
            model=model,
            pool=pool,
            job=job,
            efficiency=efficiency or default_efficiency(),
            one_machine=cluster.one_machine,
        )
        for pool in cluster.pools
    ]
    contexts = run_by_train(plain, fit)
    steps = [count for count in range(1, job.global_batch + 1) if job.global_batch % count == 0]
    for count in _that_may_fit(contexts, steps)[:MOST_TRIED]:
        synthesis = _in_steps(contexts, count, rules, keep)
        if synthesis is not None:
            return synthesis
    return NoProgram("none fits the memory of the GPUs")


def _refused(model: Model, cluster: Cluster, job: Job) -> str:
    if not 1 < cluster.gpus <= MOST_GPUS:
        return f"programs are searched on 2 to {MOST_GPUS} GPUs"
    if cluster.mixed and not cluster.one_machine:
        return "programs are searched on machines with GPUs of one type, or on a single machine"
    if job.precision not in DTYPES or job.adapters or job.optimizer not in ("adam", "sgd"):
        return "programs are searched for whole training steps in fp32, bf16 or fp16 with adam or sgd"
    if job.preference is not None or job.document_tokens is not None:
        what = "attention within documents" if job.preference is None else f"the loss {job.preference.loss}"
        return f"no graph that ships has {what}"
    for pool in cluster.pools:
        if not computes(pool.gpu, job.precision):
            return f"{pool.gpu.name} does not compute in {job.precision}"
    if len(vendors := makers(pool.gpu for pool in cluster.pools)) > 1:
        return f"no library joins GPUs of {' and '.join(vendors)}"
    lacking = other_than(model, job.seq_len)
    return f"{model.name} has {lacking}, which no graph that ships has" if lacking else ""


def _decisions(contexts: Sequence[Context], rows: int, steps: int) -> Decisions:
    ranks = sum(context.pool.gpus for context in contexts)
    return decisions(_graph(contexts[0], rows), ranks=ranks, state_ratio=True, state=_state(contexts[0], steps))


def _graph(context: Context, rows: int) -> Graph:
    job = context.job
    return training_step(context.model, batch=rows, seq_len=job.seq_len, dtype=DTYPES[job.precision])


def _state(context: Context, steps: int) -> ParameterState:
    """Return what is held for each byte of a parameter; gradients of several steps are added up."""
    job = context.job
    held, _ = parameter_bytes(context.model, job, StateSplit(sharding=np.full(1, UNSHARDED)))
    size = ITEM_BYTES[DTYPES[job.precision]]
    return ParameterState(
        bytes=float((held.weights + held.optimizer)[0]) / size,
        sum_bytes=float(held.gradients[0]) / size if steps > 1 else 0.0,
    )


def _that_may_fit(contexts: Sequence[Context], steps: Sequence[int]) -> list[int]:
    """Return the step counts whose total memory fits the GPUs together: bytes are linear in the rows."""
    batch = contexts[0].job.global_batch
    room = sum(room_bytes(context) * context.pool.gpus for context in contexts)
    fitting, spaces = [], [_decisions(contexts, rows, 1) for rows in (1, 2)]
    for several in (1, 2):
        state = _state(contexts[0], several)
        of_one, of_two = (alone(replace(space, state=state)) for space in spaces)
        counts = [count for count in steps if min(count, 2) == several]
        fitting += [count for count in counts if (of_one + (batch // count - 1) * (of_two - of_one)).max() <= room]
    return fitting


def _in_steps(contexts: Sequence[Context], steps: int, rules: Rules, keep: Keep | None) -> SpmdProgram | None:
    """Return the best program for a batch that goes in so many parts, None if none fits."""
    rows = contexts[0].job.global_batch // steps
    space = _decisions(contexts, rows, steps)
    net = machines_of(contexts, space, rows)
    synthesis = best_of(space, net, branch=False, rules=rules)
    if synthesis is None:
        return None
    if keep is not None:
        graph = _graph(contexts[0], rows)
        keep(graph, written(graph, net, synthesis))
    costs = prices(synthesis.space, net, synthesis.shares)
    launching = LAUNCHES * max(context.software.pass_seconds for context in contexts)
    once = max(context.software.step_seconds for context in contexts) + _update_seconds(contexts, synthesis, net)
    return SpmdProgram(
        iteration_seconds=steps * (synthesis.choice.seconds.total + launching) + once,
        bound_seconds=steps * (synthesis.choice.bound_seconds + launching) + once,
        steps=steps,
        shares=_shares(synthesis, net),
        sent=_sent(synthesis, costs),
        memory_bytes=float(rank_bytes(synthesis.space, synthesis.choice.rules, net, synthesis.shares).max()),
    )


def _update_seconds(contexts: Sequence[Context], synthesis: Synthesis, net: Machines) -> float:
    """Return the longest time in which a GPU updates the parameters that it stores."""
    stored = np.zeros(len(net.classes))
    for decision, rule in zip(synthesis.space.decisions, synthesis.choice.rules.tolist(), strict=True):
        if decision.node.op == "parameter":
            held = decision.rules[rule].outputs[0]
            part = synthesis.shares.by_class(held, net) if isinstance(held, Sharded) else 1.0
            stored += decision.weight * decision.node.outputs[0].elements * part
    by_name: dict[str, Context] = {context.pool.gpu.name: context for context in contexts}
    times = [
        update_seconds(by_name[machine.device.name], np.array([elements]))[0]
        for (machine, _), elements in zip(net.classes, stored, strict=True)
    ]
    return float(max(times))


def _shares(synthesis: Synthesis, net: Machines) -> tuple[GpuShare, ...]:
    rows: Sequence[Floats] = [np.asarray(synthesis.shares.row(name)) for name in (COMPUTE, FEATURES, STATE)]
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


def _sent(synthesis: Synthesis, costs: Prices) -> tuple[tuple[str, int], ...]:
    """Return how often a step sends by each method, slices of what is there aside."""
    counts = Counter[str]()
    for way in np.flatnonzero(synthesis.choice.sent > 0.5).tolist():
        if costs.seconds[way] > 0:
            counts[costs.method[way]] += synthesis.space.uses[costs.columns.use[way]].weight
    return tuple(sorted(counts.items()))


def machines_of(contexts: Sequence[Context], space: Decisions, rows: int) -> Machines:
    """Return the machines of `contexts`, pool by pool, for a step of `rows` rows of the batch."""
    per_gpu = max(1, round(rows / sum(context.pool.gpus for context in contexts)))
    machines = [
        machine
        for context in contexts
        for machine in [_machine(context, _device(context, space, rows, per_gpu))] * context.pool.nodes
    ]
    return Machines(
        machines=tuple(machines),
        network_bytes_per_second=min(map(_card, contexts)),
        network_latency_seconds=max(context.links.inter_latency_seconds for context in contexts),
    )


def _card(context: Context) -> float:
    """Return the bytes per second of a machine's network card."""
    return context.links.inter_bytes_per_second * context.pool.gpus_per_node


def _machine(context: Context, device: Device) -> DeviceMachine:
    links, gpus = context.links, context.pool.gpus_per_node
    joined = links.domain_gpus >= gpus
    return DeviceMachine(
        device=device,
        gpus=gpus,
        link_bytes_per_second=links.intra_bytes_per_second
        if joined
        else min(links.intra_bytes_per_second, _card(context)),
        link_latency_seconds=links.intra_latency_seconds if joined else links.inter_latency_seconds,
    )


def _device(context: Context, space: Decisions, rows: int, per_gpu: int) -> Device:
    """Return the GPU with the part of its peak and of its memory's bandwidth at which all operators of the graph
    together take as long as the layers of the model in the cost model do."""
    gpu = context.pool.gpu
    peak, pace = peak_flops(gpu, context.job.precision), gpu.memory_bytes_per_second
    ideal = sum(
        decision.weight * float(seconds_of(decision, np.array([peak]), np.array([pace]))[0])
        for decision in space.decisions[:-1]
    )
    units = units_of(context, [per_gpu], context.pool.gpus, flash=True)
    reached = ideal / rows * per_gpu / float((units.forward + units.backward).sum())
    return Device(
        name=gpu.name,
        flops_per_second=reached * peak,
        memory_bytes=room_bytes(context),
        memory_bytes_per_second=reached * pace,
    )


def room_bytes(context: Context) -> float:
    """Return the bytes of tensors that a GPU has room for."""
    return room_for_tensors(context.job, context.memory_limit_bytes)
