"""Your own plan beside the best that the trainers of its framework run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.site.calibrated import anchored
from shardwright.cost.strategies import row_of, stage_starts
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Evaluation
from shardwright.search.infeasible import remedies
from shardwright.search.objective import INDIFFERENCE
from shardwright.search.planner import predict
from shardwright.search.ranked import with_bound
from shardwright.search.rules.rules import Rule
from shardwright.search.space.axes import Space
from shardwright.trainers.plan import Question, plan_in_framework


def evaluate(
    user_plan: Plan,
    *,
    top: int = 1,
    fit: float = 0.9,
    efficiency: Efficiency | None = None,
    space: Space | None = None,
    rules: Sequence[Rule] = (),
    indifference: float = INDIFFERENCE,
) -> Evaluation:
    """Return the prediction of a plan, the best plans for the same model, machines, job and framework that keep the
    pins of `space` and the `rules`, and what would make it fit with probability `fit` if it does not; `indifference` is
    that of `planner.plan`.

    The best plans are those that a trainer of the framework runs; where none runs the model, those of the whole space,
    and `best.no_trainer` says so."""
    model_of_time = efficiency or default_efficiency()
    mine = predict(user_plan, efficiency=model_of_time)
    model_of_time = anchored(model_of_time, mine) or model_of_time
    degrees = {stage.tensor_parallel for replica in user_plan.replicas for stage in replica.stages}
    space = space or Space()
    question = Question(
        model=user_plan.model,
        cluster=user_plan.cluster,
        job=user_plan.job,
        space=replace(space, tp_per_type=space.tp_per_type or len(degrees) > 1),
        exportable_to=None,
        asked={"rules": rules, "top": top, "fit": fit, "efficiency": model_of_time, "indifference": indifference},
    )
    best = plan_in_framework(question)
    if best.plans and best.plans[0].prediction and mine.prediction and user_plan.job.objective == "time":
        mine = with_bound(mine, best.plans[0].prediction.lower_bound_seconds)
    if not user_plan.uniform:
        return Evaluation(plan=mine, best=best)
    (context,) = contexts_of(user_plan, model_of_time).values()
    starts = stage_starts(user_plan.replicas[0], user_plan.schedule.virtual_stages)
    changes = remedies(replace(context, headroom=headroom(fit, context.job)), row_of(user_plan), np.array([starts]))
    return Evaluation(plan=mine, best=best, remedies=tuple(changes))
