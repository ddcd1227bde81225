"""Repeated blocks: found whole, and what each gathers and shares out goes in one call."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.spmd.draws import shared
from tests.spmd.models import SEQUENCE, Bert, Everything, next_token, tokens
from tests.spmd.steps import require_equal, traced
from tests.synthesis.clusters import unequal

from shardwright.spmd.trace import trace
from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.graph import STATE, Partial, Sharded
from shardwright.synthesis.schedule import Send, schedule
from shardwright.synthesis.synthesize import synthesize


@pytest.mark.parametrize("layers", [3, 5])
def test_each_layer_is_one_block(layers: int) -> None:
    graph = trace(Bert(width=8, heads=2, layers=layers, dropout=0.1), tokens(), next_token)
    (repeat,) = graph.repeats
    assert repeat.count == layers
    nodes = graph.by_name()
    names = {ref.node: name for name, ref in graph.parameters.items()}
    for number, block in enumerate(repeat.occurrences):
        own = {names[name] for name in block if name in names}
        assert own == {name for name in graph.parameters if name.startswith(f"layers.{number}.")}
        assert [nodes[name].op for name in block].count("attention_backward") == 1
        assert {node.outputs for node in (nodes[name] for name in block)} == {
            nodes[name].outputs for name in repeat.occurrences[0]
        }


def test_layers_of_two_kinds_repeat_in_pairs() -> None:
    graph = trace(Bert(width=8, heads=2, layers=4, dropout=0.0, experts=3), tokens(), next_token)
    (repeat,) = graph.repeats
    assert repeat.count == 2
    assert len(set().union(*repeat.occurrences)) == sum(map(len, repeat.occurrences))


def test_the_steps_of_a_loop_are_blocks_with_their_slices_of_the_sequence() -> None:
    graph = trace(Everything(12), tokens(), next_token)
    (repeat,) = graph.repeats
    nodes = graph.by_name()
    assert repeat.count >= SEQUENCE - 2
    for block in repeat.occurrences:
        assert nodes[block[0]].op == "slice.Tensor"
        assert sum(nodes[name].op == "addmm" for name in block) == 1
        assert sum(nodes[name].op == "tanh_backward" for name in block) == 1
    positions = [nodes[block[0]].args[2] for block in repeat.occurrences]
    assert len(set(positions)) == repeat.count


def test_a_model_of_one_layer_has_no_blocks() -> None:
    assert trace(Bert(width=8, heads=2, layers=1, dropout=0.0), tokens(), next_token).repeats == ()


@pytest.mark.parametrize("way", ["padded", "grouped"])
def test_uneven_parts_in_one_call_equal_the_module(way: str) -> None:
    case, random = traced("gpt2"), Random(3)
    found = synthesize(case.graph, unequal(), rules=STRATEGIES["uneven-fsdp"])
    sizes = {key: shared(key[1], found.ranks, random) if key[0] == STATE else row for key, row in found.sizes.items()}
    methods = {"all_gather_padded": f"all_gather_{way}", "all_gather_grouped": f"all_gather_{way}"}
    methods |= {"reduce_scatter_padded": f"reduce_scatter_{way}", "reduce_scatter_grouped": f"reduce_scatter_{way}"}
    sent = tuple(replace(one, method=methods.get(one.method, one.method)) for one in found.communications)
    program = replace(found, sizes=sizes, communications=sent)
    sends = [action.several for action in schedule(case.graph, program) if isinstance(action, Send)]
    gathers = [several for several in sends if several[0].early and isinstance(several[0].source, Sharded)]
    shares = [one for one in sends if isinstance(one[0].source, Partial) and isinstance(one[0].target, Sharded)]
    assert all(len(calls) < sum(map(len, calls)) / 1.4 for calls in (gathers, shares))
    require_equal(case, program)
