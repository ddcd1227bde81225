"""From a PyTorch module and a cluster to a program: the whole way in one call, with the machines of the cluster as the
search for programs sees them: rates that training reaches, links, memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from shardwright.cost.compute.efficiency import KERNEL_SECONDS
from shardwright.cost.compute.launches import ATTENTION_CALLS, MLP_CALLS
from shardwright.cost.frameworks.overheads import overheads
from shardwright.cost.measured.links import measured_link, with_links
from shardwright.cost.measured.machine import require_gpus
from shardwright.cost.measured.summary import achieved_parts
from shardwright.cost.network.collectives import Fabric, fabric
from shardwright.errors import bad
from shardwright.spec.cluster import Cluster, Gpu, NodePool
from shardwright.spec.read.machine_profile import MachineProfile
from shardwright.spmd.check import require_equal
from shardwright.spmd.document import Synthesized
from shardwright.spmd.task import Task
from shardwright.spmd.trace import Loss, trace, user_code
from shardwright.spmd.training import state_names
from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.graph import Graph, flops, traffic_bytes
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.ratios import rounded
from shardwright.synthesis.synthesize import synthesize as search
from shardwright.units import format_bytes

Say = Callable[[str], None]
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
MOST_BYTES = 1e9  # of tensors on all ranks together, up to which a task is run as it is
# Operators of a layer's forward that launch kernels: 26 in a trace of GPT-2, 40 of Llama.
LAYER_LAUNCHES = 32
RESERVED_BYTES = 1.5e9  # CUDA context, NCCL buffers and fragments of the allocator


def plan(
    task: Task,
    cluster: Cluster,
    *,
    efficiency: float = 0.5,
    strategy: str = "any",
    profiles: Sequence[MachineProfile] = (),
    check: bool = True,
    say: Say = lambda _: None,
) -> Synthesized:
    """Return the fastest program found for `task`, as `synthesize` does, once one step of it equals eager mode.

    The step is that of `task` itself where all ranks together hold less than `MOST_BYTES` of tensors, else that of
    `task.small()`, by a program at the same shares. `program.notes["checked"]` says which, "" if none was run. Raises
    `SpecError` where the step differs.
    """
    module = task.skeleton()
    synthesized = synthesize(
        module, task.batch, task.loss, cluster, efficiency=efficiency, strategy=strategy, profiles=profiles, say=say
    )
    held = sum(synthesized.program.notes["memory_bytes"])
    if not check:
        return _noted(synthesized, "", "it was not asked for")
    if held <= MOST_BYTES:
        say("running a step on this machine, beside eager mode")
        require_equal(synthesized, task)
        return _noted(synthesized, "the task")
    if task.small is None:
        why = f"its step holds {format_bytes(held)}, over {format_bytes(MOST_BYTES)}, and the task has no `small`"
        return _noted(synthesized, "", why)
    say("running a step of Task.small() on this machine, beside eager mode")
    with user_code("the task's `small` fails"):
        small = task.small()
    machines = machines_of(cluster, _precision(module), efficiency, profiles)
    require_equal(_like(synthesized, small, machines, strategy), small, "Task.small()")
    return _noted(synthesized, "Task.small()")


def _noted(synthesized: Synthesized, checked: str, why: str = "") -> Synthesized:
    notes = {**synthesized.program.notes, "checked": checked, **({"unchecked_because": why} if why else {})}
    return replace(synthesized, program=replace(synthesized.program, notes=notes))


def synthesize(
    module: nn.Module,
    example_inputs: Mapping[str, Tensor],
    loss: Loss,
    cluster: Cluster,
    *,
    efficiency: float = 0.5,
    strategy: str = "any",
    profiles: Sequence[MachineProfile] = (),
    say: Say = lambda _: None,
) -> Synthesized:
    """Return the fastest program found for training `module` on all GPUs of `cluster`.

    `loss(module, example_inputs)` is one training step on the whole batch. `efficiency` is the part of their peak that
    the GPUs reach, `strategy` one of `STRATEGIES`; machine `profiles` say what GPUs and links were measured to reach.
    `say` is told what is going on. Raises `SpecError` where the module cannot be traced, or nothing fits the memory.
    """
    started = time.perf_counter()
    graph = trace(module, example_inputs, loss, say)
    blocks = ", ".join(f"{repeat.count} blocks of {len(repeat.occurrences[0])}" for repeat in graph.repeats)
    say(f"traced {len(graph.nodes):,} operators{f' ({blocks})' if blocks else ''} in {_since(started)}")
    started = time.perf_counter()
    machines = machines_of(cluster, _precision(module), efficiency, profiles)
    program = search(graph, machines, rules=STRATEGIES[strategy])
    say(f"found the program in {_since(started)}")
    return Synthesized(graph=graph, program=program, names=state_names(module))


def _precision(module: nn.Module) -> str:
    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}
    return PRECISIONS.get(kinds.pop() if len(kinds) == 1 else "float32", "fp32")


def _like(synthesized: Synthesized, small: Task, machines: Machines, strategy: str) -> Synthesized:
    """Return a program for `small` at the shares of what was found. It is searched on machines that are slower by as
    much as `small` has less to compute and to move, without latencies: what pays in the whole pays there."""
    module = small.skeleton()
    graph = trace(module, small.batch, small.loss)
    program = search(graph, _slower(machines, _work(graph) / _work(synthesized.graph)), rules=STRATEGIES[strategy])
    shares = synthesized.program.shares
    sizes = {
        (ratio, units): tuple(rounded(np.asarray(shares[ratio]), units).tolist()) if ratio in shares else row
        for (ratio, units), row in program.sizes.items()
    }
    return Synthesized(graph=graph, program=replace(program, sizes=sizes), names=state_names(module))


def _work(graph: Graph) -> NDArray[np.float64]:
    """Return the operations of a step and the bytes that it moves, [2]."""
    values = graph.values()
    rows = [(node, tuple(values[ref] for ref in node.inputs)) for node in graph.nodes]
    return np.array([sum(work(*row) for row in rows) for work in (flops, traffic_bytes)])


def _slower(machines: Machines, part: NDArray[np.float64]) -> Machines:
    """Return the machines with memory without end, at a part of the rates of operations and of bytes, [2]."""
    flops_part, bytes_part = part.tolist()
    slow = tuple(
        replace(
            machine,
            device=replace(
                machine.device,
                flops_per_second=machine.device.flops_per_second * flops_part,
                memory_bytes_per_second=machine.device.memory_bytes_per_second * bytes_part,
                operator_seconds=0.0,
                launch_seconds=0.0,
            ),
            link_bytes_per_second=machine.link_bytes_per_second * bytes_part,
            link_latency_seconds=0.0,
        )
        for machine in machines.unlimited().machines
    )
    network = machines.network_bytes_per_second * bytes_part
    return replace(
        machines, machines=slow, network_bytes_per_second=network, network_latency_seconds=0.0, call_seconds=0.0
    )


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"


def machines_of(
    cluster: Cluster, precision: str, efficiency: float, profiles: Sequence[MachineProfile] = ()
) -> Machines:
    """Return the machines of `cluster`, its pools one after another. The network is as fast as the slowest machine's
    card.

    Each GPU reaches `efficiency` of its peak in `precision`, and links what the data sheets say; where `profiles` have
    measured them, GPUs reach what their matrix products reached, and links the latency and the bandwidth that explain
    the collectives best. An operator takes what launching its kernel takes on the device, and a part of what an eager
    framework's host takes to launch a layer. Raises `SpecError` where a GPU has no peak, and for a profile of a GPU
    that is not there.
    """
    require_gpus(profiles, cluster)
    if cluster.mixed:
        hint = "write a group for each type, with inter_node_gbps for the PCIe between them"
        raise bad("cluster", "programs do not know machines with GPUs of several types", hint)
    links = [_links(pool, profiles) for pool in cluster.pools]
    machines = [
        [_machine(pool, found, precision, _reached(pool, precision, profiles, efficiency))] * pool.nodes
        for pool, found in zip(cluster.pools, links, strict=True)
    ]
    cards = [
        found.inter_bytes_per_second * pool.gpus_per_node for pool, found in zip(cluster.pools, links, strict=True)
    ]
    return Machines(
        machines=tuple(machine for several in machines for machine in several),
        network_bytes_per_second=min(cards),
        network_latency_seconds=max(found.inter_latency_seconds for found in links),
    )


def _links(pool: NodePool, profiles: Sequence[MachineProfile]) -> Fabric:
    rows = [row for profile in profiles if profile.gpu.name == pool.gpu.kind for row in profile.collectives]
    plain = fabric(pool, intra_efficiency=1.0, inter_efficiency=1.0)
    return with_links(plain, measured_link(plain, rows, inter=False), measured_link(plain, rows, inter=True))


def _machine(pool: NodePool, links: Fabric, precision: str, reached: float) -> DeviceMachine:
    device = Device(
        name=pool.gpu.name,
        flops_per_second=_peak(pool, precision) * reached,
        memory_bytes=pool.memory_bytes - RESERVED_BYTES,
        memory_bytes_per_second=pool.gpu.memory_bytes_per_second,
        operator_seconds=KERNEL_SECONDS,
        launch_seconds=launch_seconds(pool.gpu),
    )
    return DeviceMachine(
        device=device,
        gpus=pool.gpus_per_node,
        link_bytes_per_second=links.intra_bytes_per_second,
        link_latency_seconds=links.intra_latency_seconds,
    )


def launch_seconds(gpu: Gpu) -> float:
    """Return the time in which the host launches an operator: of a layer's calls each has several."""
    return overheads("eager", gpu).launch_seconds * (ATTENTION_CALLS + MLP_CALLS) / LAYER_LAUNCHES


def _peak(pool: NodePool, precision: str) -> float:
    peak = pool.gpu.peak(precision)
    if peak is None:
        raise bad(pool.gpu.name, f"cannot compute in {precision}", "give the module parameters of another type")
    return peak


def _reached(pool: NodePool, precision: str, profiles: Sequence[MachineProfile], efficiency: float) -> float:
    """Return the part of its peak that a GPU reaches."""
    rows = [
        row
        for profile in profiles
        for row in profile.operators
        if (profile.gpu.name, row.kind, row.dtype) == (pool.gpu.kind, "gemm", precision)
    ]
    return float(np.median(achieved_parts(pool.gpu, precision, rows))) if rows else efficiency
