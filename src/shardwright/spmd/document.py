"""The file of a synthesised step: its graph, its program, and the names of the module's state dict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import SpecError, bad
from shardwright.files import write_atomically
from shardwright.spec.text.reading import read_text
from shardwright.synthesis import graph as graphs
from shardwright.synthesis import program as programs
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.program import Program

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesized:
    """A step's graph, the program for it, and for each name of the module's state dict the name in the graph."""

    graph: Graph
    program: Program
    names: dict[str, str]


def to_text(found: Synthesized) -> str:
    """Return the document as JSON."""
    graph, program = graphs.to_json(found.graph), programs.to_json(found.program)
    return f'{{"spmd":{VERSION},"names":{json.dumps(found.names)},\n"program":{program},\n"graph":{graph}}}\n'


def save(found: Synthesized, path: Path) -> None:
    """Write the document to `path`."""
    write_atomically(path, to_text(found))


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
