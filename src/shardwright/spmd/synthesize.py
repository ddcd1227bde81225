"""From a PyTorch module and a cluster to a program: the whole way in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from shardwright.spec.cluster import Cluster
from shardwright.spec.read.machine_profile import MachineProfile
from shardwright.spmd.cluster import machines_of
from shardwright.spmd.document import Synthesized
from shardwright.spmd.trace import Loss, trace
from shardwright.spmd.training import state_names
from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.synthesize import synthesize as search

Say = Callable[[str], None]
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


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
    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}
    precision = PRECISIONS.get(kinds.pop() if len(kinds) == 1 else "float32", "fp32")
    machines = machines_of(cluster, precision, efficiency, profiles)
    program = search(graph, machines, rules=STRATEGIES[strategy])
    notes = {**program.notes, "machines": machines.machine_of.tolist(), "devices": [d.name for d in machines.device_of]}
    say(f"found the program in {_since(started)}")
    return Synthesized(graph=graph, program=replace(program, notes=notes), names=state_names(module))


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"
