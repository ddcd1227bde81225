"""What gradients and weights leave after the pipeline where replicas are unlike: each stage shares its layers with all
stages that hold some of them, at the pace of the slowest links among these, on as many ranks of a machine as the least
of them has. Close to the exact iteration, which knows every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.collectives import Group, gather_seconds
from shardwright.cost.strategy import Floats
from shardwright.search.mixed.splits import Line
from shardwright.search.mixed.stages import Stages, stages, tails
from shardwright.search.mixed.tables import Table


def after_together(table: Table, replicas: Sequence[tuple[Line, int, int]], modes: tuple[int, ...]) -> float:
    """Return the seconds after the pipeline of replicas (line, count, micro-batches)."""
    copies = sum(count for _, count, _ in replicas)
    found = [_stages(table, line, size, copies, modes) for line, _, size in replicas]
    once = _once(table, replicas, [each.parameters[0] for each in found], copies)
    reduce, gather, update, tied = 0.0, 0.0, 0.0, 0.0
    for (line, _, _), each, seconds in zip(replicas, found, once, strict=True):
        kinds = np.array(line.kinds)
        one, other = tails(each, table.trained * seconds[None, :])
        reduce, gather = max(reduce, float(one.max())), max(gather, float(other.max()))
        update = max(update, float((each.parameters[0] * table.update_seconds[kinds]).max()) / copies)
        tied = max(tied, float(table.tied_seconds(len(kinds))[0, kinds[0]]) + float(table.step_seconds[kinds].max()))
    return reduce + gather + update + tied


def _stages(table: Table, line: Line, micro_batches: int, copies: int, modes: tuple[int, ...]) -> Stages:
    kinds, starts = np.array(line.kinds), np.array([line.starts])
    return stages(table, kinds, starts, micro_batches=micro_batches, copies=copies, modes=modes)


def _once(
    table: Table, replicas: Sequence[tuple[Line, int, int]], parameters: Sequence[Floats], copies: int
) -> list[Floats]:
    """Return the seconds to gather a byte of each parameter of every stage, [P] for each replica."""
    if copies < 2:
        return [np.zeros(len(line.kinds)) for line, _, _ in replicas]
    begin = np.concatenate([line.starts[:-1] for line, _, _ in replicas])
    end = np.concatenate([line.starts[1:] for line, _, _ in replicas])
    kinds = np.concatenate([line.kinds for line, _, _ in replicas])
    number = np.concatenate([np.full(len(line.kinds), count) for line, count, _ in replicas])
    sizes = np.concatenate(parameters)
    shared = (begin[:, None] < end[None, :]) & (begin[None, :] < end[:, None])
    pace = np.where(shared, table.links[kinds][None, :], np.inf).min(axis=1)
    held = (shared * number) @ (kinds[:, None] == np.arange(table.types))
    local = np.where(held > 0, np.minimum(table.local, held), copies).min(axis=1)
    once = np.zeros(len(kinds))
    for kind, link in sorted(set(zip(kinds.tolist(), pace.tolist(), strict=True))):
        rows = (kinds == kind) & (pace == link)
        links = replace(table.fabrics[kind], inter_bytes_per_second=link)
        groups = Group(size=np.full(int(rows.sum()), copies), local=local[rows])
        once[rows] = gather_seconds(links, groups, sizes[rows])
    return np.split(once, np.cumsum([len(line.kinds) for line, _, _ in replicas])[:-1])
