"""The integer program and its relaxation against enumeration."""

from __future__ import annotations

import importlib
import itertools
import re
from functools import reduce

import numpy as np
import pytest
from tests.search.mixed.problems import small

from shardwright.search import mixed
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.column_pool import FIRST, ColumnPool
from shardwright.search.mixed.master.program import Limits, master_problem


def best_by_enumeration(counts, value, units, fewest, most) -> int:
    best = -1
    limits = [range(most + 1)] * len(counts)
    for copies in itertools.product(*limits):
        number = np.array(copies)
        if fewest <= number.sum() <= most and (number @ counts <= units).all():
            best = max(best, int(number @ value))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_holds_and_the_solution_exists(seed):
    pick = np.random.default_rng(seed)
    counts = pick.integers(0, 4, (5, 2))
    counts = counts[counts.sum(axis=1) > 0]
    value = pick.integers(0, 9, len(counts))
    units, fewest, most = pick.integers(3, 8, 2), int(pick.integers(1, 3)), 4
    best = best_by_enumeration(counts, value, units, fewest, most)
    found = master_problem(counts, Limits(units, fewest, most))
    assert found.relaxed(value).value >= best - 1e-9
    for wanted in (best, best + 1):
        answer = found.solve(value, wanted, np.zeros((0, len(value)), dtype=bool))
        if wanted <= 0:
            continue
        if wanted > best:
            assert answer == Infeasible()
        else:
            assert isinstance(answer, Solved)
            choice = answer.solution
            assert choice.reached >= wanted
            assert (choice.copies @ counts[choice.chosen] <= units).all()
            assert fewest <= choice.copies.sum() <= most


@pytest.mark.parametrize("seed", range(15))
def test_a_dive_stays_within_the_units(seed):
    pick = np.random.default_rng(seed)
    counts = pick.integers(0, 4, (30, 3))
    counts = counts[counts.sum(axis=1) > 0]
    value = pick.integers(1, 9, len(counts))
    units = pick.integers(3, 20, 3)
    choice = master_problem(counts, Limits(units, 1, 12)).dive(value, 40)
    assert (choice.copies @ counts[choice.chosen] <= units).all()
    assert choice.copies.sum() <= 12
    assert choice.reached == choice.copies @ value[choice.chosen]


PROGRAMS = re.findall(r"^    \((P\d+)\).* (\w+)\.(\w+)\.([\w.]+)$", mixed.__doc__ or "", re.MULTILINE)


def test_every_program_has_a_number():
    assert [number for number, *_ in PROGRAMS] == [f"P{place}" for place in range(1, 11)]


@pytest.mark.parametrize(("number", "folder", "module", "name"), PROGRAMS)
def test_each_program_is_named_where_it_is_implemented(number, folder, module, name):
    found = importlib.import_module(f"{mixed.__name__}.{folder}.{module}")
    assert (reduce(getattr, name.split("."), found).__doc__ or "").startswith(f"({number}) ")


def test_a_region_without_a_composition_that_good_plans_often_have_is_bounded():
    """Where compositions are many, samples are listed first: here there are none."""
    problem = small(11, most_gpus=10, most_layers=8)
    each = instances(problem.settings, problem.tables, problem.contexts[0].job.global_batch, problem.space)[0]
    counts = each.compositions(problem.space)
    rare = counts[~each.samples(counts)]
    many = np.repeat(rare, FIRST // len(rare) + 1, axis=0)
    (region,) = each.roots(problem.space)
    pool = ColumnPool(each, region, many, 4.0 * each.quick)
    assert not (pool.listed.stages > 1).any()
    assert not pool.reaches_all(0.9 * each.quick)
