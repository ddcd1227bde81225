"""The stages that the mixed search costs are those of the exact iteration, under every recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.mixed.problems import EFFICIENCY, Small, small, varied
from tests.search.mixed.test_bounds import random_order

from shardwright.cost.iteration.mixed import ReplicaTime, mixed_iteration
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, UNIFORM
from shardwright.plans.check import check
from shardwright.search.mixed.drafts.draft import Draft, plan_of
from shardwright.search.mixed.drafts.split_times import lone_stages, stages
from shardwright.search.mixed.drafts.splits import Line
from shardwright.search.mixed.tables.model_tables import tables

MODES = (NONE, SELECTIVE, UNIFORM, BLOCK)


@dataclass(frozen=True)
class Pipeline:
    """`copies` alike pipelines on types `kinds`, with layers from `starts`, that take `total` micro-batches each."""

    problem: Small
    kinds: np.ndarray
    starts: np.ndarray
    total: int
    copies: int

    def exact(self, mode: int, layers: list[int]) -> ReplicaTime | None:
        """Return the exact iteration with `layers` of each stage recomputed, None where the plan is not legal."""
        line = Line(
            kinds=tuple(self.kinds.tolist()),
            starts=tuple(self.starts.tolist()),
            recompute=tuple((mode, count) for count in layers),
            seconds=0.0,
            after=0.0,
        )
        draft = Draft(setting=self.problem.settings[0], replicas=((line, self.copies, self.total),), seconds=0.0)
        plan = plan_of(self.problem.contexts, self.problem.cluster, draft, rank_order="tp-cp-ep-dp-pp")
        return None if check(plan) else mixed_iteration(plan, EFFICIENCY).replicas[0]

    def fitting(self, replica: ReplicaTime) -> np.ndarray:
        """Return which stages fit, [P]."""
        limits = np.array([self.problem.contexts[kind].memory_limit_bytes for kind in self.kinds])
        return replica.peak_bytes <= limits * (1.0 + 1e-9)


def some_pipeline(seed: int) -> Pipeline | None:
    """Return a random pipeline on GPUs whose memory is about what some recomputation of it takes."""
    problem = varied(small(seed), seed)
    if not problem.tables or not problem.tables[0].units.any():
        return None
    table, pick = problem.tables[0], np.random.default_rng(seed)
    total = problem.contexts[0].job.global_batch // problem.settings[0].micro_batch
    copies = int(pick.choice([count for count in (1, 2) if total % count == 0 and (table.units >= count).any()]))
    counts = np.array([pick.integers(0, units // copies + 1) for units in table.units])
    if not 1 <= counts.sum() <= table.layers:
        return None
    kinds = random_order(pick, counts)
    cuts = np.sort(pick.choice(np.arange(1, table.layers), counts.sum() - 1, replace=False))
    starts = np.array([0, *cuts, table.layers])
    pipeline = Pipeline(problem, kinds, starts, total // copies, copies)
    lengths = np.diff(starts)
    replica = pipeline.exact(int(pick.choice(MODES)), np.minimum(pick.integers(1, 4), lengths).tolist())
    if replica is None:
        return pipeline
    limits = {int(kind): replica.peak_bytes[kinds == kind].max() * pick.uniform(0.97, 1.03) for kind in kinds}
    contexts = tuple(
        replace(context, headroom=limits.get(kind, context.memory_limit_bytes) / context.pool.memory_bytes)
        for kind, context in enumerate(problem.contexts)
    )
    tight = replace(problem, contexts=contexts, tables=tuple(tables(contexts, problem.settings)))
    return replace(pipeline, problem=tight)


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 2000))])
@pytest.mark.parametrize("mode", MODES)
def test_times_memory_and_layers_are_those_of_the_exact_iteration(mode: int, seed: int) -> None:
    """A stage fits where it does exactly, with the fewest layers recomputed or the leanest groups."""
    pipeline = some_pipeline(seed)
    if pipeline is None:
        return
    table, depth, lengths = pipeline.problem.tables[0], len(pipeline.kinds), np.diff(pipeline.starts)
    stage = lone_stages(
        table,
        pipeline.kinds,
        pipeline.starts[:-1],
        pipeline.starts[1:],
        np.minimum(pipeline.total, depth - np.arange(depth)),
        staged=depth > 1,
        copies=pipeline.copies,
        modes=(mode,),
    )
    most = 1 if mode == UNIFORM and table.alone else int(lengths.max())
    tried = range(1, most + 1) if mode in (BLOCK, UNIFORM) else (0,)
    exact = {number: pipeline.exact(mode, np.minimum(number, lengths).tolist()) for number in tried}
    legal = {number: replica for number, replica in exact.items() if replica is not None}
    fitting = {number: pipeline.fitting(replica) for number, replica in legal.items()}
    assert stage.fits.tolist() == np.any([*fitting.values()], axis=0).tolist()
    for place in np.flatnonzero(stage.fits):
        number = int(stage.recompute_layers[place])
        able = [count for count in legal if count <= max(lengths[place], 0) and fitting[count][place]]
        leanest = min(able, key=lambda count: (float(legal[count].peak_bytes[place]), count))
        assert number == (leanest if mode == UNIFORM else min(able))
        replica = legal[number]
        assert stage.forward[place] == pytest.approx(replica.undisturbed.forward.ravel()[place], rel=1e-9)
        assert stage.backward[place] == pytest.approx(replica.undisturbed.backward.ravel()[place], rel=1e-9)


@pytest.mark.parametrize("seed", [*range(8), *nightly(range(8, 500))])
def test_each_stage_has_the_fastest_recomputation_that_fits(seed: int) -> None:
    pipeline = some_pipeline(seed)
    if pipeline is None:
        return
    table, starts = pipeline.problem.tables[0], pipeline.starts[None]
    given = {"micro_batches": pipeline.total, "copies": pipeline.copies}
    free = stages(table, pipeline.kinds, starts, modes=MODES, **given)
    alone = [stages(table, pipeline.kinds, starts, modes=(mode,), **given) for mode in MODES]
    for least in alone:
        if least.fits[0]:
            assert free.fits[0] and (free.backward[0] <= least.backward[0] * (1 + 1e-12)).all()
