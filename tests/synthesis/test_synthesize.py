"""A synthesised program is whole, prices what it does, and is never slower than what it could have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.synthesis.account import most_bytes
from tests.synthesis.clusters import FAST, unequal
from tests.synthesis.models import WithCapacity, vision
from tests.synthesis.vgg import fully_connected, vgg19

from shardwright.arrays import Floats, Ints
from shardwright.errors import SpecError
from shardwright.progress import heard
from shardwright.rounding import coarse
from shardwright.synthesis import baselines
from shardwright.synthesis.baselines import WITHOUT_MOMENTS, fits, more_devices, remedies
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.decisions import decisions
from shardwright.synthesis.extract import program, replicated_share
from shardwright.synthesis.graph import Graph, Value
from shardwright.synthesis.machines import DeviceMachine, Machines
from shardwright.synthesis.memory import alone, rank_bytes
from shardwright.synthesis.models.tape import Tape
from shardwright.synthesis.models.transformers import Transformer, language_model
from shardwright.synthesis.prices import RankShares, prices
from shardwright.synthesis.program import Communication, check, from_json, to_json
from shardwright.synthesis.ratios import rounded, undominated
from shardwright.synthesis.schedule import Send, schedule
from shardwright.synthesis.synthesize import search, synthesize

SMALL = Transformer(layers=5, hidden=64, heads=4, feed_forward=128, vocabulary=96)
GRAPHS = {
    "bert": lambda: language_model(replace(SMALL, pre_norm=False), batch=16, seq_len=8),
    "gpt2": lambda: language_model(replace(SMALL, causal=True), batch=16, seq_len=8),
    "llama": lambda: language_model(replace(SMALL, gated=True, kv_heads=2, dropout=0.0), batch=16, seq_len=8),
    "experts": lambda: language_model(
        replace(SMALL, layers=2, experts=WithCapacity(count=4, width=128)), batch=16, seq_len=8
    ),
    "vit": lambda: vision(SMALL, batch=16, image=32, patch=8, classes=10),
    "wide": lambda: fully_connected(batch=8, widths=(4096, 4096, 1000)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_program_is_whole_and_survives_json(name: str) -> None:
    graph = GRAPHS[name]()
    net = unequal(2, 1, gpus=1) if name in ("experts", "llama") else unequal()  # four GPUs take five times as long
    program = synthesize(graph, net)
    check(graph, program)
    assert from_json(to_json(program)) == program
    assert program.notes["warnings"] == []
    told = [program.seconds, program.bound_seconds, *program.notes["memory_bytes"]]
    told += [share for row in program.shares.values() for share in row]
    assert all(coarse(one) == one for one in told)  # without last bits, which differ by processor
    assert program.notes["replicated_flops"] < 0.02


def test_a_search_tells_how_far_it_is() -> None:
    told: list[float] = []
    with heard(told.append):
        synthesize(GRAPHS["wide"](), unequal())
    assert len(told) > 4 and told == sorted(told) and told[0] > 0.0 and told[-1] < 1.0


@pytest.mark.parametrize("name", ["bert", "wide"])
def test_never_slower_than_data_parallel(name: str) -> None:
    net = unequal(2, 2)
    space = decisions(GRAPHS[name]())
    found = search(GRAPHS[name](), net)
    for row in (net.even(), net.proportional()):
        costs = prices(space, net, RankShares(exact={"compute": row}))
        plain = best(space, costs, allowed=baselines.data_parallel(space, costs))
        assert plain is not None
        assert found.exact.seconds.total <= plain.seconds.total * 1.001


def test_few_rows_and_wide_layers_are_not_run_data_parallel() -> None:
    """8 rows by 4096 × 4096 weights: sending activations takes a hundredth of sending gradients."""
    net = unequal(network=1e6)
    space = decisions(GRAPHS["wide"]())
    costs = prices(space, net, RankShares(exact={"compute": net.proportional()}))
    plain = best(space, costs, allowed=baselines.data_parallel(space, costs))
    assert plain is not None
    found = search(GRAPHS["wide"](), net)
    assert found.choice.seconds.total < plain.seconds.total / 10
    assert replicated_share(space, plain) < 0.02


def test_one_device_computes_and_sends_nothing() -> None:
    net = Machines(
        machines=(DeviceMachine(device=FAST, gpus=1, link_bytes_per_second=1e9),), network_bytes_per_second=1e9
    )
    program = synthesize(GRAPHS["bert"](), net)
    assert not [one for one in program.communications if one.method != "slice"]


def test_what_fits_no_device_whole_is_sharded() -> None:
    graph = GRAPHS["wide"]()
    state = 16 * sum(graph.by_name()[ref.node].outputs[0].elements for ref in graph.parameters.values())
    net = unequal(1, 1)
    tight = replace(
        net, machines=tuple(replace(one, device=replace(one.device, memory_bytes=0.5 * state)) for one in net.machines)
    )
    found = search(graph, tight)
    held = rank_bytes(found.space, found.choice.rules, tight, found.shares)
    assert (held <= [device.memory_bytes for device in tight.device_of]).all()
    none = replace(
        net, machines=tuple(replace(one, device=replace(one.device, memory_bytes=0.1 * state)) for one in net.machines)
    )
    with pytest.raises(SpecError, match="no program fits") as refused:
        synthesize(graph, none)
    more = more_devices(graph, none)
    assert f"with {more} more fast" in str(refused.value.problems[0].hint)
    enough = replace(none, machines=(*none.machines, *[replace(none.machines[0], gpus=1)] * more))
    assert synthesize(graph, enough).ranks == 4 + more
    fewer = replace(none, machines=(*none.machines, *[replace(none.machines[0], gpus=1)] * (more - 1)))
    assert not fits(graph, fewer)


def test_three_blocks_stand_for_all_in_the_account_of_memory() -> None:
    graph, net = GRAPHS["gpt2"](), unequal()
    room = 0.5 * float(alone(decisions(graph)).max())
    tight = replace(
        net, machines=tuple(replace(one, device=replace(one.device, memory_bytes=room)) for one in net.machines)
    )
    found = search(graph, tight)
    short = rank_bytes(found.space, found.choice.rules, tight, found.shares)
    made = program(graph, found.space, found.choice, tight, found.shares)
    assert short == pytest.approx(most_bytes(graph, made, found.space.state), rel=1e-9)
    assert (short <= room).all()


def test_what_is_gathered_is_kept_for_the_backward_where_there_is_room() -> None:
    graph, net = GRAPHS["gpt2"](), unequal(network=2e7)
    roomy = search(graph, net, rules=baselines.fsdp)
    most = rank_bytes(roomy.space, roomy.choice.rules, net, roomy.shares).max()
    tight = replace(
        net, machines=tuple(replace(one, device=replace(one.device, memory_bytes=0.9 * most)) for one in net.machines)
    )
    scarce = search(graph, tight, rules=baselines.fsdp)
    times = []
    for found, machines in ((roomy, net), (scarce, tight)):
        made = program(graph, found.space, found.choice, machines, found.shares)
        sent = [one for action in schedule(graph, made) if isinstance(action, Send) for one in action.several]
        times.append(Counter(one.tensor for one in sent if one.early and len(_value(graph, one).shape) == 2))
    assert roomy.space.kept and set(times[0].values()) == {1}
    assert not scarce.space.kept and max(times[1].values()) == 2
    assert roomy.seconds < scarce.seconds


def _value(graph: Graph, one: Communication) -> Value:
    return graph.by_name()[one.tensor.node].outputs[one.tensor.output]


def test_moments_in_host_memory_are_proposed_where_they_would_do() -> None:
    graph = GRAPHS["wide"]()
    state = 16 * sum(graph.by_name()[ref.node].outputs[0].elements for ref in graph.parameters.values())
    net = unequal(1, 1)
    tight = replace(
        net, machines=tuple(replace(one, device=replace(one.device, memory_bytes=0.24 * state)) for one in net.machines)
    )
    assert not fits(graph, tight) and fits(graph, tight, WITHOUT_MOMENTS)
    assert "moments in host memory" in remedies(graph, tight)


@pytest.mark.parametrize("name", baselines.STRATEGIES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("rows", [1, 2])
def test_every_strategy_has_a_program_however_few_the_rows(rows: int, ranks: int, name: str) -> None:
    """One row cannot be divided: what others would cut along the batch is whole on every device."""
    net = unequal(ranks, 0, gpus=1)
    made = synthesize(fully_connected(batch=rows, widths=(16, 24, 5)), net, rules=baselines.STRATEGIES[name])
    assert all(sum(units) == number for (_, number), units in made.sizes.items())
    if name == "data-parallel":
        assert made.notes["replicated_flops"] == (1.0 if rows == 1 else pytest.approx(0.0, abs=0.05))


def test_the_batch_is_what_most_inputs_have_rows_of_and_no_layer_as_wide() -> None:
    tape = Tape()
    tape.leaf("input", "positions", (12,))
    x, labels = tape.leaf("input", "rows", (8, 8)), tape.leaf("input", "labels", (8,), "int64")
    graph = tape.graph(tape.cross_entropy(tape.linear(tape.linear(x, "wide", 4096), "narrow", 8), labels))
    made = synthesize(graph, unequal(network=1e6), rules=baselines.data_parallel)
    assert set(made.sizes) == {("compute", 8)} and made.notes["replicated_flops"] < 0.05


def test_what_would_help_a_strategy_is_tried_with_its_rules() -> None:
    """More devices do not help data parallel, which stores all parameters on each; sharding does."""
    graph, net = GRAPHS["wide"](), unequal(1, 1)
    held = float(alone(decisions(graph)).max())
    devices = [replace(one, device=replace(one.device, memory_bytes=0.5 * held)) for one in net.machines]
    words = remedies(graph, replace(net, machines=tuple(devices)), baselines.data_parallel)
    assert "would fit with a program of any rules" in words and " more " not in words


def test_the_search_does_not_grow_with_depth() -> None:
    sizes = [decisions(language_model(replace(SMALL, layers=count), batch=16, seq_len=8)) for count in (4, 9)]
    assert len(sizes[0].decisions) == len(sizes[1].decisions)
    assert len(sizes[0].uses) == len(sizes[1].uses)
    assert sum(sizes[1].weights) - sum(sizes[0].weights) == 5 * 82


def test_the_same_input_gives_the_same_program() -> None:
    graph = GRAPHS["wide"]()
    assert to_json(synthesize(graph, unequal())) == to_json(synthesize(graph, unequal()))


def overrun(shares: Floats, held: Ints) -> float:
    """Return by how much the rank that overruns most exceeds its share."""
    there = shares > 0
    return float((held[there] / held.sum() / shares[there]).max()) - 1.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), st.integers(1, 400))
@settings(max_examples=examples(100))
def test_whole_units_add_up_and_overrun_least(weights: list[float], units: int) -> None:
    shares = np.array(weights) + (0.1 if sum(weights) == 0 else 0.0)
    shares = np.where(shares / shares.sum() < 1e-6, 0.0, shares)
    shares /= shares.sum()
    held = rounded(shares, units)
    assert held.sum() == units and (held >= 0).all() and (held[shares == 0] == 0).all()
    best_of_moves = min(
        (
            overrun(shares, np.array([*(held + change)]))
            for change in moves(len(shares))
            if ((held + change) >= 0).all() and ((held + change)[shares == 0] == 0).all()
        ),
        default=np.inf,
    )
    assert overrun(shares, held) <= best_of_moves * (1 + 1e-9) + 1e-9


def moves(ranks: int) -> list[np.ndarray]:
    unit = np.eye(ranks, dtype=int)
    return [unit[a] - unit[b] for a in range(ranks) for b in range(ranks) if a != b]


def test_vgg_has_a_rule_for_every_operator() -> None:
    space = decisions(vgg19(batch=64, image=32))
    assert space.unknown == ()


def test_moments_below_nothing_by_rounding_end_the_search_for_the_fullest() -> None:
    kept = undominated(np.array([[3.0, -1e-9], [2.0, 1.0], [2.0, 0.5], [3.0, -1e-9]]))
    assert sorted(kept.tolist()) == [[2.0, 1.0], [3.0, 0.0]]
