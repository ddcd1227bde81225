"""Runs a program on one rank: computes on shards, sends, forgets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from shardwright.spmd.convert import convert_all
from shardwright.spmd.local import Call, Site, run
from shardwright.synthesis.graph import Graph, Ref, Value
from shardwright.synthesis.program import Communication, Program
from shardwright.synthesis.schedule import Action, ComputeNode, Forget, Key, Leave, Send, Wait, ends, schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """A program with its schedule: what does not change from step to step."""

    graph: Graph
    program: Program
    actions: tuple[Action, ...]
    ends: Mapping[str, Key]
    values: Mapping[Ref, Value]


def compiled(graph: Graph, program: Program) -> Executable:
    """Return `program` ready to run."""
    return Executable(
        graph=graph,
        program=program,
        actions=schedule(graph, program),
        ends=ends(graph, program),
        values={Ref(node.name, number): value for node in graph.nodes for number, value in enumerate(node.outputs)},
    )


def execute(code: Executable, leaves: Mapping[str, Tensor], site: Site, leave: Callable[[str, Tensor], None]) -> None:
    """Run one training step on one rank; `leave` is given this rank's part of what `schedule.ends` names, each as soon
    as it is done.

    `leaves` holds this rank's part of each parameter, buffer and input by the name of its node.
    """
    held: dict[Key, Tensor] = {}
    # What the forward and the backward gather may travel twice at once: the first that was sent is done first.
    finishes: dict[tuple[Communication, ...], list[Callable[[], list[Tensor]]]] = defaultdict(list)
    for action in code.actions:
        match action:
            case ComputeNode(node, step):
                if node.name in leaves:
                    held[Ref(node.name), step.outputs[0]] = leaves[node.name]
                    continue
                call = Call(node=node, step=step, inputs=tuple(code.values[ref] for ref in node.inputs), site=site)
                results = run(call, [held[key] for key in zip(node.inputs, step.inputs, strict=True)])
                for number, (result, made) in enumerate(zip(results, step.outputs, strict=True)):
                    held[Ref(node.name, number), made] = result
            case Send(several):
                shapes = [code.values[one.tensor].shape for one in several]
                parts = [held[sent.tensor, sent.source] for sent in several]
                finishes[several].append(convert_all(parts, several, shapes, site.place, site.fabric))
            case Wait(several):
                keys = [(one.tensor, one.target) for one in several]
                held.update(zip(keys, finishes[several].pop(0)(), strict=True))
            case Leave(names, key):
                for name in names:
                    leave(name, held[key])
            case Forget(keys):
                for key in keys:
                    del held[key]
