"""Compositions that no plan has do not keep the search from those that plans have."""

from __future__ import annotations

import pytest
from tests.search.mixed.oracle import brute_force
from tests.search.mixed.problems import Small, small, solved, unlike

from shardwright.search.mixed.bounds.compositions import alone
from shardwright.search.mixed.bounds.instance import instances
from shardwright.search.mixed.subproblem.eligible import that_fit

FIRST_PINNED = small(101, most_gpus=6, most_layers=6, pins={"first_layers": (1, 2)})
LAST_PINNED = small(180, most_gpus=6, most_layers=6, pins={"last_layers": (1,)})
UNLIKE = unlike(small(293, most_gpus=6, most_layers=6), 293)


@pytest.mark.parametrize("problem", [FIRST_PINNED, LAST_PINNED, UNLIKE], ids=["first pinned", "last pinned", "unlike"])
def test_the_best_plan_is_found_beside_compositions_that_no_plan_has(problem: Small) -> None:
    found = solved(problem, gap=1e-4)
    assert (
        found.plans[0][0]
        <= 1.001 * brute_force(problem.contexts, problem.cluster, problem.settings, 50_000, space=problem.space).best
    )


def test_no_single_stage_holds_all_layers_where_the_first_may_not() -> None:
    each = instances(FIRST_PINNED.settings, FIRST_PINNED.tables, 5, FIRST_PINNED.space)[0]
    (region,) = each.roots(FIRST_PINNED.space)
    found = alone(each.table, each.layers, region)
    assert len(found)
    assert not len(that_fit(each, region, found))
