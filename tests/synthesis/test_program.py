"""A program survives JSON, its check finds what does not fit, and a person can read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.errors import SpecError
from shardwright.synthesis.graph import PARTIAL, REPLICATED, Graph, Node, Ref, Sharded, Value, local_shape
from shardwright.synthesis.program import Communication, Program, Step, check, from_json, text, to_json

X, W, Y, G = Ref("x"), Ref("w"), Ref("y"), Ref("g")
ROWS = Sharded(0, 4)


def step() -> tuple[Graph, Program]:
    nodes = (
        Node(name="x", op="input", outputs=(Value((4, 3)),)),
        Node(name="w", op="parameter", outputs=(Value((3, 3)),)),
        Node(name="y", op="mm", args=(X, W), outputs=(Value((4, 3)),)),
        Node(name="t", op="t", args=(X,), outputs=(Value((3, 4)),)),
        Node(name="g", op="mm", args=(Ref("t"), Y), outputs=(Value((3, 3)),)),
        Node(name="loss", op="sum", args=(Y,), outputs=(Value(()),)),
    )
    graph = Graph(nodes=nodes, parameters={"w": W}, inputs={"x": X}, loss=Ref("loss"), gradients={"w": G})
    steps = {
        "x": Step(rule="rows", outputs=(ROWS,)),
        "w": Step(rule="replicated", outputs=(REPLICATED,)),
        "y": Step(rule="rows", inputs=(ROWS, REPLICATED), outputs=(ROWS,)),
        "t": Step(rule="rows", inputs=(ROWS,), outputs=(Sharded(1, 4),)),
        "g": Step(rule="reduction", inputs=(Sharded(1, 4), ROWS), outputs=(PARTIAL,)),
        "loss": Step(rule="reduction", inputs=(ROWS,), outputs=(PARTIAL,)),
    }
    sent = (
        Communication(tensor=G, source=PARTIAL, target=REPLICATED, method="all_reduce", deferred=True),
        Communication(tensor=Ref("loss"), source=PARTIAL, target=REPLICATED, method="all_reduce"),
    )
    return graph, Program(
        ranks=2,
        steps=steps,
        communications=sent,
        shares={"compute": (0.7, 0.3)},
        sizes={("compute", 4): (3, 1)},
        seconds=0.5,
    )


def test_json_brings_back_the_same_program() -> None:
    _, program = step()
    assert from_json(to_json(program)) == program


def test_a_whole_program_passes() -> None:
    check(*step())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: replace(p, sizes={("compute", 4): (3, 2)}), "do not share 4 units"),
        (lambda p: replace(p, communications=p.communications[1:]), "the gradient of w is partial sum"),
        (
            lambda p: replace(
                p, steps={**p.steps, "y": Step(rule="", inputs=(REPLICATED,) * 2, outputs=(REPLICATED,))}
            ),
            "y reads x replicated",
        ),
        (lambda p: replace(p, steps={**p.steps, "t": Step(rule="", outputs=(REPLICATED,))}), "no step that fits t"),
        (
            lambda p: replace(
                p,
                communications=(
                    *p.communications,
                    Communication(tensor=X, source=ROWS, target=REPLICATED, method="magic"),
                ),
            ),
            "magic",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message: str) -> None:
    graph, program = step()
    with pytest.raises(SpecError, match=message):
        check(graph, change(program))


def test_it_reads_as_lines() -> None:
    lines = text(*step()).splitlines()
    assert lines[0] == "2 ranks, 500 ms a step"
    assert "  g = mm(t, y): reduction → partial sum" in lines
    assert lines[-2].strip() == "all_reduce g: partial sum → replicated"


def test_shapes_of_parts() -> None:
    sizes = {("compute", 12): (7, 5), ("compute", 4): (3, 1)}
    assert local_shape((9, 2304), Sharded(1, 12, outer=3), sizes, 0) == (9, 3 * 7 * 64)
    assert local_shape((4 * 128, 5), Sharded(0, 4), sizes, 1) == (128, 5)
    assert local_shape((4, 5), PARTIAL, sizes, 1) == (4, 5)
