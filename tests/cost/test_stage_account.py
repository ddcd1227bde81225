"""One account of a stage: rows, plans and a walk over the schedule say the same of random models, jobs and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.draws import EFFICIENCY, some_problem
from tests.cost.stage_walk import walked_bytes, walked_host_bytes, walked_stage_buffers
from tests.nightly import nightly

from shardwright.cost.context import Context
from shardwright.cost.frameworks.optimizer import update_copy_width
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.layers import source
from shardwright.cost.memory.facts import memory_facts, trial
from shardwright.cost.network.collectives import OVERLAP_SLOWDOWN
from shardwright.cost.stage.exact import left_over
from shardwright.cost.strategies import RECOMPUTE, Strategies, plan_of_row
from shardwright.plans.check import check
from shardwright.spec.cluster import Cluster


def some_of_passes(seed: int) -> tuple[Context, Cluster, Strategies]:
    """Return a problem whose update takes no more than its passes, as a walk over these knows of no other."""
    where, cluster, rows = some_problem(seed)
    if update_copy_width(where.job) > 0.0:
        where = replace(where, job=replace(where.job, options=replace(where.job.options, grad_reduce=None)))
    return where, cluster, rows


@pytest.mark.parametrize("seed", [*range(14), *nightly(range(14, 1500))])
def test_rows_plans_and_a_walk_agree(seed: int) -> None:
    """The vectorised verdict has the seconds and the peak of the account of each plan alone, and the activations of
    that are those of a walk over the schedule."""
    where, cluster, rows = some_of_passes(seed)
    verdict = evaluate(where, rows)
    for place in range(len(rows)):
        plan = plan_of_row(rows.take(slice(place, place + 1)), where.model, where.job, cluster, where.pool.gpu.name)
        assert check(plan) == ()
        exact = mixed_iteration(plan, EFFICIENCY, contexts={where.pool.gpu.name: where})
        alone = exact.replicas[0].memory
        walked = walked_bytes(plan, plan.replicas[0], {where.pool.gpu.name: where})
        mode = RECOMPUTE[rows.recompute[place]]
        assert exact.seconds == pytest.approx(verdict.seconds[place], rel=1e-9), mode
        assert alone.total.max() == pytest.approx(verdict.peak_bytes[place], rel=1e-9), mode
        assert alone.activations + alone.logits == pytest.approx(walked, rel=1e-9), mode


@pytest.mark.parametrize("seed", [*range(8), *nightly(range(8, 400))])
def test_stages_of_pytorch_have_memory_for_every_micro_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_small_table", source._table)  # those that are remembered are of other figures
    where, cluster, rows = some_of_passes(seed)
    framework = where.job.framework
    facts = replace(memory_facts(framework), stage_buffers=True, megatron_core=False, gathered=0.0, gathered_staged=0.0)
    for place in range(len(rows)):
        plan = plan_of_row(rows.take(slice(place, place + 1)), where.model, where.job, cluster, where.pool.gpu.name)
        with trial({framework: facts}):
            alone = mixed_iteration(plan, EFFICIENCY, contexts={where.pool.gpu.name: where}).replicas[0].memory
            walked = walked_stage_buffers(plan, plan.replicas[0], {where.pool.gpu.name: where})
        needed = (alone.activations + alone.logits + alone.buffers).tolist()
        assert needed == pytest.approx(walked, rel=1e-9), RECOMPUTE[rows.recompute[place]]


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 400))])
def test_the_host_takes_the_inputs_of_layers_that_run_again(seed: int) -> None:
    where, cluster, rows = some_problem(seed)
    away = replace(where, job=replace(where.job, options=replace(where.job.options, activation_offload="inputs")))
    for place in range(len(rows)):
        row = rows.take(slice(place, place + 1))
        plans = [plan_of_row(row, at.model, at.job, cluster, at.pool.gpu.name) for at in (where, away)]
        here, there = (
            mixed_iteration(plan, EFFICIENCY, contexts={at.pool.gpu.name: at}).replicas[0].memory.in_host
            for plan, at in zip(plans, (where, away), strict=True)
        )
        walked = walked_host_bytes(plans[1], plans[1].replicas[0], {away.pool.gpu.name: away})
        assert (there - here).tolist() == pytest.approx(walked, rel=1e-9, abs=1.0), RECOMPUTE[rows.recompute[place]]


@pytest.mark.parametrize("seed", range(5))
def test_tails_are_what_own_passes_and_those_of_the_ranks_before_do_not_hide(seed: int) -> None:
    pick = np.random.default_rng(seed)
    travelling, passes, first = pick.uniform(0.1, 3.0, (3, 1, 4))
    left = left_over(travelling, passes, 0.5, first)
    for rank in range(4):
        hidden = min(travelling[0, rank], 0.5 * passes[0, rank])
        exposed = travelling[0, rank] - (1.0 - OVERLAP_SLOWDOWN) * hidden
        assert left[0, rank] == pytest.approx(max(exposed - sum(first[0, :rank]), 0.0))
