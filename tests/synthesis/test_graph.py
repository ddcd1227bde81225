"""The operator graph survives JSON, and a broken one is refused. Graphs that are built without tracing have the
parameters of the models that they are named for.
"""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.synthesis.models import BERT_BASE, GPT2, LLAMA_1B, vision
from tests.synthesis.vgg import vgg19

from shardwright.errors import SpecError
from shardwright.synthesis.graph import Graph, Node, Ref, RepeatedBlock, Value, check, from_json, to_json
from shardwright.synthesis.models.transformers import Transformer, language_model

PLAIN = st.one_of(
    st.integers(-9, 9), st.booleans(), st.none(), st.sampled_from(["int64", ""]), st.floats(allow_nan=False)
)


def linear(arguments: tuple[object, ...] = ()) -> Graph:
    x, w = Ref("x"), Ref("w")
    nodes = (
        Node(name="x", op="input", outputs=(Value((4, 3)),)),
        Node(name="w", op="parameter", outputs=(Value((3, 2)),)),
        Node(name="y", op="mm", args=(x, w), outputs=(Value((4, 2)),)),
        Node(name="parts", op="split.Tensor", args=(Ref("y"), 2), outputs=(Value((2, 2)), Value((2, 2)))),
        Node(
            name="all",
            op="cat",
            args=((Ref("parts", 1), Ref("parts")), *arguments),
            kwargs={"dim": 0},
            outputs=(Value((4, 2)),),
        ),
        Node(name="loss", op="sum", args=(Ref("all"),), outputs=(Value(()),)),
        Node(name="g", op="mm", args=(x, x), outputs=(Value((3, 2)),)),
    )
    return Graph(
        nodes=nodes,
        parameters={"weight": w},
        inputs={"x": x},
        loss=Ref("loss"),
        gradients={"weight": Ref("g")},
        repeats=(RepeatedBlock(occurrences=(("y",), ("g",))),),
    )


@given(st.lists(PLAIN | st.lists(PLAIN, max_size=3).map(tuple), max_size=4).map(tuple))
def test_json_brings_back_the_same_graph(arguments: tuple[object, ...]) -> None:
    graph = linear(arguments)
    assert from_json(to_json(graph)) == graph


def test_json_is_strict_and_keeps_infinity() -> None:
    text = to_json(linear((-math.inf,)))
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert from_json(text).nodes[4].args[1] == -math.inf


def test_inputs_are_found_inside_tuples() -> None:
    assert linear().nodes[4].inputs == (Ref("parts", 1), Ref("parts", 0))


def test_sizes() -> None:
    assert Value((2, 3), "bfloat16").size_bytes == 12
    assert Value((), "int64").size_bytes == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda nodes: nodes[1:], "y reads x[0] before it is made"),
        (lambda nodes: (*nodes[:3], nodes[2], *nodes[3:]), "two nodes have the name 'y'"),
        (lambda nodes: nodes[:-1], "no node makes g[0]"),
    ],
)
def test_a_broken_graph_is_refused(change, message) -> None:
    graph = linear()
    broken = Graph(
        nodes=change(graph.nodes),
        parameters=graph.parameters,
        inputs=graph.inputs,
        loss=graph.loss,
        gradients=graph.gradients,
    )
    with pytest.raises(SpecError, match=message.replace("[", r"\[")):
        check(broken)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "nodes": 3}'])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="here"):
        from_json(text, "here.json")


def parameters(graph: Graph) -> int:
    check(graph)
    nodes = graph.by_name()
    assert graph.gradients.keys() == graph.parameters.keys()
    for name, ref in graph.gradients.items():
        assert nodes[ref.node].outputs[ref.output].shape == nodes[graph.parameters[name].node].outputs[0].shape
    return sum(nodes[ref.node].outputs[0].elements for ref in graph.parameters.values())


def test_parameters() -> None:
    assert parameters(vgg19(batch=8, image=224)) == 143_667_240  # torchvision
    assert parameters(language_model(GPT2, batch=2, seq_len=1024)) == 124_439_808  # transformers' gpt2
    assert parameters(language_model(LLAMA_1B, batch=2, seq_len=128)) == 1_235_814_400  # meta-llama/Llama-3.2-1B
    assert parameters(vision(Transformer(), batch=2)) == 86_567_656  # torchvision's vit_b_16
    # BERT-Base without its pooler, second segment embedding and head's transformation
    assert parameters(language_model(BERT_BASE, batch=2, seq_len=512)) == 108_890_112


def test_blocks_repeat() -> None:
    (repeat,) = language_model(GPT2, batch=2, seq_len=16).repeats
    assert repeat.count == 12 and len({len(block) for block in repeat.occurrences}) == 1
