"""GPUs and links of a cluster for synthesis, at the rates that the cost model of plans finds, so that seconds of
programs and of plans can be compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.cost.compute.efficiency import peak_flops
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.units import units_of
from shardwright.cost.memory.sizes import room_for_tensors
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.machines import Device, DeviceMachine, Machines
from shardwright.synthesis.prices import seconds_of


def machines_of(contexts: Sequence[Context], these: Decisions, rows: int) -> Machines:
    """Return the machines of `contexts`, pool by pool, for a step of `rows` rows of the batch."""
    per_gpu = max(1, round(rows / sum(context.pool.gpus for context in contexts)))
    machines = [
        machine
        for context in contexts
        for machine in [_machine(context, _device(context, these, rows, per_gpu))] * context.pool.nodes
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


def _device(context: Context, these: Decisions, rows: int, per_gpu: int) -> Device:
    """Return the GPU with the part of its peak and of its memory's bandwidth at which all operators of the graph
    together take as long as the layers of the model in the cost model do."""
    gpu = context.pool.gpu
    peak, pace = peak_flops(gpu, context.job.precision), gpu.memory_bytes_per_second
    ideal = sum(
        one.weight * float(seconds_of(one, np.array([peak]), np.array([pace]))[0]) for one in these.decisions[:-1]
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
