"""The stages that the mixed search costs are those of the exact iteration."""

from __future__ import annotations

import numpy as np
import pytest
from tests.search.mixed.problems import EFFICIENCY, small
from tests.search.mixed.test_bounds import random_order

from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE
from shardwright.search.mixed.drafts.costing import fits
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.search.mixed.drafts.split_times import stages
from shardwright.search.mixed.drafts.splits import Line


@pytest.mark.parametrize("seed", range(25))
def test_times_and_memory_are_those_of_the_exact_iteration(seed):
    problem = small(seed)
    table, setting, pick = problem.tables[0], problem.settings[0], np.random.default_rng(seed)
    total = problem.contexts[0].job.global_batch // setting.micro_batch
    depth = int(min(table.units.sum(), table.layers))
    for mode in (NONE, SELECTIVE, BLOCK):
        counts = np.array([pick.integers(0, units + 1) for units in table.units])
        if not 1 <= counts.sum() <= depth:
            continue
        kinds = random_order(pick, counts)
        cuts = np.sort(pick.choice(np.arange(1, table.layers), counts.sum() - 1, replace=False))
        starts = np.array([[0, *cuts, table.layers]])
        found = stages(table, kinds, starts, micro_batches=total, copies=1, modes=(mode,))
        recompute = tuple(zip(found.recompute[0].tolist(), found.recompute_layers[0].tolist(), strict=True))
        line = Line(
            kinds=tuple(kinds.tolist()), starts=tuple(starts[0].tolist()), recompute=recompute, seconds=0.0, after=0.0
        )
        draft = Draft(setting=setting, replicas=((line, 1, total),), seconds=0.0)
        plan = plan_of(problem.contexts, problem.cluster, draft, rank_order="tp-cp-ep-dp-pp")
        exact = mixed_iteration(plan, EFFICIENCY).replicas[0]
        if found.fits[0]:
            assert found.forward[0] == pytest.approx(exact.stages.forward.ravel(), rel=1e-9)
            assert found.backward[0] == pytest.approx(exact.stages.backward.ravel(), rel=1e-9)
        if mode != BLOCK:
            assert found.fits[0] == fits(problem.contexts, plan, [exact.peak_bytes])
        elif found.fits[0]:
            assert fits(problem.contexts, plan, [exact.peak_bytes])
