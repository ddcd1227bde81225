"""The integer program, A* and brute force agree, with overlap and without; the heuristic of A* spares expansions."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
from tests.synthesis.a_star import a_star
from tests.synthesis.clusters import unequal
from tests.synthesis.vgg import fully_connected

from shardwright.synthesis.best_rules import best
from shardwright.synthesis.choice import sent_by, time_of
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.models.tape import Tape
from shardwright.synthesis.models.transformers import Transformer, language_model
from shardwright.synthesis.prices import Prices, RankShares, prices
from shardwright.synthesis.synthesize import GAP

MOST = 1_000_000  # combinations that brute force tries


def small(seed: int) -> Graph:
    """Return the step of a few random operators."""
    draw = np.random.default_rng(seed)
    tape = Tape()
    x = tape.leaf("input", "x", (int(draw.choice([4, 8, 32])), int(draw.choice([4, 16, 64]))))
    for number in range(int(draw.integers(1, 3))):
        kind = draw.integers(0, 4)
        if kind == 0 or number == 0:
            x = tape.linear(
                x, f"layer{number}", int(draw.choice([4, 16, 256])), bias=bool(draw.integers(0, 2)) and number == 0
            )
        elif kind == 1:
            x = tape.unary("relu", x)
        elif kind == 2:
            x = tape.add(x, tape.parameter("shift", *tape.shape(x)))
        else:
            x = tape.multiply(x, tape.parameter("scale", tape.shape(x)[-1]))
    shape = tape.shape(x)
    loss = tape.op("sum.dim_IntList", (x, (0, 1), False), ())
    tape.back(loss, lambda g: tape.give(x, tape.op("expand", (g, shape), shape)))
    return tape.graph(loss)


def cluster(seed: int) -> Machines:
    draw = np.random.default_rng(seed + 10_000)
    return unequal(int(draw.integers(1, 3)), int(draw.integers(0, 3)), 2, network=float(10 ** draw.uniform(4, 8)))


def shares(net: Machines, seed: int) -> RankShares:
    """Return shares between even and proportional, where the slowest device is the slowest under every rule."""
    part = np.random.default_rng(seed).uniform()
    row = part * np.array(net.even()) + (1 - part) * np.array(net.proportional())
    return RankShares(exact={"compute": tuple(row.tolist()), "state": net.even()})


def brute_force(space: Decisions, costs: Prices) -> float:
    """Return the least cost of all combinations of rules: an array with an axis for each decision."""
    count = len(space.decisions)
    shape = [len(one.rules) for one in space.decisions]
    total = np.zeros(shape)
    for number, one in enumerate(space.decisions):
        start = costs.columns.first[number]
        seconds = costs.compute[start : start + shape[number]].max(axis=1) + costs.sends[start : start + shape[number]]
        total += (one.weight * seconds).reshape([-1 if axis == number else 1 for axis in range(count)])
    ways = costs.columns
    for number, use in enumerate(space.uses):
        axes = sorted({use.decision, *(reader.decision for reader in use.readers)})
        table = np.zeros([shape[axis] if axis in axes else 1 for axis in range(count)])
        for picked in itertools.product(*(range(shape[axis]) for axis in axes)):
            rule = dict(zip(axes, picked, strict=True))
            made = space.decisions[use.decision].rules[rule[use.decision]].outputs[use.output]
            asked = {reader.asked[rule[reader.decision]] for reader in use.readers} - {made}
            price = 0.0
            for target in asked:
                found = [
                    s
                    for u, p, q, s in zip(ways.use, ways.source, ways.target, costs.seconds, strict=True)
                    if (u, p, q) == (number, made, target)
                ]
                price += use.weight * min(found, default=np.inf)
            table[tuple(rule.get(axis, 0) for axis in range(count))] = price
        total = total + table
    return float(total.min())


def compared(seeds: range) -> int:
    """Compare the three on random graphs; return how many were."""
    count = 0
    for seed in seeds:
        net = cluster(seed)
        space = decisions(small(seed))
        if np.prod([float(len(one.rules)) for one in space.decisions]) > MOST:
            continue
        costs = prices(space, net, shares(net, seed), overlap=False)
        program, star, truth = best(space, costs, gap=1e-9), a_star(space, costs), brute_force(space, costs)
        assert program is not None and star.finished
        assert program.seconds.total == pytest.approx(truth, rel=1e-6)
        assert program.bound_seconds == pytest.approx(truth, rel=1e-5)
        assert star.seconds == pytest.approx(truth, rel=1e-6)
        assert time_of(space, costs, program.rules, program.sent).total == program.seconds.total
        count += 1
    return count


def test_integer_program_a_star_and_brute_force_agree() -> None:
    assert compared(range(30)) >= 20


@pytest.mark.nightly
def test_they_agree_on_more_than_200_graphs() -> None:
    assert compared(range(30, 350)) >= 200


def enumerated(space: Decisions, costs: Prices) -> float:
    """Return the least time of all programs, by the timeline: what is sent behind the computation counts as it does
    there."""
    return min(
        time_of(space, costs, rules, sent_by(space, costs, rules)).total
        for rules in map(np.array, itertools.product(*(range(len(one.rules)) for one in space.decisions)))
    )


def equal_to_enumeration(seeds: range, most: int) -> int:
    """Hold the search with overlap, and its bound, against all programs of random graphs; return how many were."""
    count = 0
    for seed in seeds:
        net, space = cluster(seed), decisions(small(seed))
        if np.prod([float(len(one.rules)) for one in space.decisions]) > most:
            continue
        costs = prices(space, net, shares(net, seed), overlap=True)
        truth, exact, usual = enumerated(space, costs), best(space, costs, gap=1e-9), best(space, costs, gap=GAP)
        assert exact is not None and usual is not None
        assert exact.seconds.total == pytest.approx(truth, rel=1e-9)
        assert exact.bound_seconds == pytest.approx(truth, rel=1e-6)
        assert usual.bound_seconds <= truth * (1 + 1e-9) <= usual.seconds.total * (1 + 2e-9)
        assert usual.seconds.total <= truth * (1 + GAP)
        count += 1
    return count


def test_the_search_with_overlap_equals_enumeration() -> None:
    assert equal_to_enumeration(range(20), most=1_000) >= 2


@pytest.mark.nightly
def test_the_search_with_overlap_equals_enumeration_of_many_programs() -> None:
    assert equal_to_enumeration(range(20, 120), most=10_000) >= 30


def test_the_heuristic_spares_expansions() -> None:
    """Over blocks and stacks, in the median, at least five times."""
    ratios = []
    for batch, hidden, network in ((16, 16, 1e5), (64, 16, 1e7)):
        dims = Transformer(layers=1, hidden=hidden, heads=2, feed_forward=2 * hidden, vocabulary=32, dropout=0.0)
        stack = fully_connected(batch=batch, widths=(hidden, 2 * hidden, 8))
        for graph in (stack, language_model(dims, batch=batch, seq_len=4)):
            net = unequal(1, 1, network=network)
            space = decisions(graph)
            costs = prices(space, net, shares(net, batch), overlap=False)
            guided, blind = a_star(space, costs, most=3_000), a_star(space, costs, heuristic=False, most=3_000)
            assert guided.expanded <= blind.expanded
            if guided.finished and blind.finished:
                assert guided.seconds == pytest.approx(blind.seconds)
                ratios.append(blind.expanded / guided.expanded)
    assert len(ratios) >= 3
    assert statistics.median(ratios) >= 5
