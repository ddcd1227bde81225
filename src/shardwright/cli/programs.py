"""SPMD programs that `shardwright plan --programs` keeps beside a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.plans.ranking import Ranking, SpmdProgram

if TYPE_CHECKING:
    from shardwright.synthesis.graph import Graph
    from shardwright.synthesis.program import Program


def program_file(out: Path) -> Path:
    """Return the file of the program beside a plan's."""
    return out.with_name(f"{out.stem}.program.json")


def keep_in(kept: list[str]) -> Callable[[Graph, Program], None]:
    """Return what makes a file of a program, to be run without a task of the user's own."""

    def keep(graph: Graph, program: Program) -> None:
        from shardwright.spmd.document import Synthesized, to_text

        why = "its graph ships with shardwright, whose tests hold it to transformers"
        noted = replace(program, notes={**program.notes, "checked": "", "unchecked_because": why})
        names = {name: name for name in (*graph.parameters, *graph.buffers)}
        kept.append(to_text(Synthesized(graph=graph, program=noted, names=names)))

    return keep


def how_to_train(ranking: Ranking, file: Path) -> str:
    """Return the command that trains by a program's file, on each machine."""
    cluster, program = ranking.best.cluster, ranking.program
    nodes = 1 if cluster.one_machine else sum(pool.nodes for pool in cluster.pools)
    most = max(pool.gpus_of_machine for pool in cluster.pools)
    several = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 " if nodes > 1 else ""
    steps = program.steps if isinstance(program, SpmdProgram) else 1
    more = f" --accumulate {steps}" if steps > 1 else ""
    start = f"torchrun {several}--nproc-per-node {most} -m shardwright spmd train {file}"
    return f"{start} --data corpus.bin{more} --clip 1 --out run"
