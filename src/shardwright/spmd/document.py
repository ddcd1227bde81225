"""The file of a synthesised step: its graph, its program, and the names of the module's state dict; and how the program
stores parameters, in the words of trainers that run modules of their own on DTensors.

PyTorch's `Shard(dim)` cuts as `torch.chunk` does, so it has even programs alone. veScale's `RaggedShard(dims,
local_units)` cuts the first dimensions as unevenly as asked (volcengine/veScale, docs/texts/raggedshard.md); it is what
uneven FSDP stores; where a program stores columns for it, as much of neighbours in memory does as well, for they are
gathered whole. What a placement cannot say is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.records import record
from shardwright.spec.text.reading import read_text
from shardwright.synthesis import graph as graphs
from shardwright.synthesis import program as programs
from shardwright.synthesis.graph import STATE, Graph, Property, Ref, Sharded, Sizes, Value, local_shape
from shardwright.synthesis.program import Program

VERSION = 1
Words = Callable[[Value, Property, Sizes], str]
IMPORTS = {
    "dtensor": "from torch.distributed.tensor import Replicate, Shard",
    "vescale": "from vescale.dtensor.placement_types import RaggedShard, Replicate",
}


@record
class Synthesized:
    """A step's graph, the program for it, and for each name of the module's state dict the name in the graph."""

    graph: Graph
    program: Program
    names: dict[str, str]


def to_text(synthesized: Synthesized) -> str:
    graph, program = graphs.to_json(synthesized.graph), programs.to_json(synthesized.program)
    return f'{{"spmd":{VERSION},"names":{json.dumps(synthesized.names)},\n"program":{program},\n"graph":{graph}}}\n'


def save(synthesized: Synthesized, path: Path) -> None:
    write_atomically(path, to_text(synthesized))


def load(path: Path) -> Synthesized:
    """Return the document that `save` wrote. Raises `SpecError` if it is none, or if graph and program do not fit."""
    try:
        document = json.loads(read_text(path))
        if document["spmd"] != VERSION:
            raise bad(str(path), f"version {document['spmd']} is not known", f"known: {VERSION}")
        graph = graphs.from_json(json.dumps(document["graph"]), str(path))
        program = programs.from_json(json.dumps(document["program"]), str(path))
        names = {str(key): str(name) for key, name in document["names"].items()}
    except SpecError:
        raise
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise bad(str(path), "is no file of `shardwright spmd plan`", "make it anew") from error
    programs.check(graph, program, str(path))
    return Synthesized(graph=graph, program=program, names=names)


def placements_text(synthesized: Synthesized, target: str) -> str:
    """Return a Python file with the placement of each parameter, by the names of the module's state dict, on a mesh of
    one dimension, and how many rows of each input a rank takes.

    Raises `SpecError` for a target that is not known, and where it cannot say how the program stores a parameter.
    """
    if target not in TARGETS:
        raise bad(f"`to={target}`", "is not known", f"one of {', '.join(TARGETS)}")
    program, graph = synthesized.program, synthesized.graph
    values = {node.name: node.outputs[0] for node in graph.nodes if node.op in ("parameter", "input")}
    held = {name: program.steps[name].outputs[0] for name in values}
    owners = {key: graph.parameters[name] for key, name in synthesized.names.items() if name in graph.parameters}
    taken = {
        message.tensor: message.target for message in reversed(program.communications)
    }  # an input is cut where it is read
    rows = {
        name: _rows(values[ref.node], taken.get(ref, held[ref.node]), program.sizes)
        for name, ref in graph.inputs.items()
    }
    lines = [
        f'"""Placements on a mesh of {program.ranks} ranks, written by `shardwright spmd export`."""',
        "",
        IMPORTS[target],
        "",
        f"RANKS = {program.ranks}",
        f"GPUS = {tuple(program.notes.get('devices', ()))!r}  # of each rank",
        "PARAMETERS = {",
        *_entries(owners, values, held, program.sizes, TARGETS[target]),
        "}",
        f"ROWS = {rows!r}  # of each input that each rank takes, None where all take all",
    ]
    return "\n".join(lines) + "\n"


def _entries(
    owners: Mapping[str, Ref], values: Mapping[str, Value], held: Mapping[str, Property], sizes: Sizes, words: Words
) -> Iterator[str]:
    for name, ref in owners.items():
        try:
            yield f"    {name!r}: ({words(values[ref.node], held[ref.node], sizes)},),"
        except ValueError as error:
            if isinstance(error, SpecError):
                raise
            hint = "plan with `strategy=uneven-fsdp`, which cuts the first dimension, and export to vescale"
            raise bad(f"the parameter {name}", f"is {held[ref.node]}, {error}", hint) from None


def _dtensor(value: Value, held: Property, sizes: Sizes) -> str:
    if not isinstance(held, Sharded):
        return "Replicate()"
    size, ranks = value.shape[held.dim], len(sizes[held.ratio, held.units])
    most = math.ceil(size / ranks)
    even = [max(0, min(most, size - most * rank)) for rank in range(ranks)]
    parts = [local_shape(value.shape, held, sizes, rank)[held.dim] for rank in range(ranks)]
    if held.outer > 1:
        raise ValueError("in several stretches, where Shard has one")
    if parts != even:
        raise ValueError(f"in parts of {parts}, where Shard has {even}")
    return f"Shard({held.dim})"


def _vescale(value: Value, held: Property, sizes: Sizes) -> str:
    if not isinstance(held, Sharded):
        return "Replicate()"
    if held.outer > 1 or (held.dim and held.ratio != STATE):
        raise ValueError("which is no stretch of neighbours in memory, as RaggedShard has them")
    units = sizes[held.ratio, held.units]
    part, dims = math.gcd(*units), tuple(range(held.dim + 1))
    return f"RaggedShard(dims={dims!r}, local_units={tuple(unit // part for unit in units)!r})"


TARGETS: Mapping[str, Words] = {"dtensor": _dtensor, "vescale": _vescale}


def _rows(value: Value, held: Property, sizes: Sizes) -> tuple[int, ...] | None:
    if not isinstance(held, Sharded) or held.dim or held.outer > 1:
        return None
    return tuple(unit * value.shape[0] // held.units for unit in sizes[held.ratio, held.units])
