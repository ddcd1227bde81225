"""What of a plan the runtime cannot run (yet), said before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.plans.abilities import job_problems
from shardwright.plans.plan import Plan
from shardwright.plans.trainable import (
    FOR_TRL,
    OWN_OPTIMIZERS,
    untrainable_adapters,
    untrainable_model,
    untrainable_parts,
    untrainable_stages,
)
from shardwright.plans.trainer_options import OWN_FP8_RECIPE, OWN_FP8_RECIPES
from shardwright.rows import holding
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.options import said

OWN_OPTIONS = {"grad_reduce": "fp32", "dispatcher": "alltoall"}  # as it runs every plan


def unrunnable(plan: Plan) -> tuple[Problem, ...]:
    """Return why a legal plan cannot be run, nothing if it can. Paths are those of the plan file."""
    rules: tuple[Callable[[Plan], Iterable[Problem]], ...] = (
        _hardware,
        lambda plan: untrainable_model(plan.model),
        lambda plan: untrainable_adapters(plan.model, plan.job),
        untrainable_parts,
        _optimizer,
        _precision,
        _options,
        untrainable_stages,
    )
    return tuple(problem for rule in rules for problem in rule(plan))


def _hardware(plan: Plan) -> Iterator[Problem]:
    job = replace(plan.job, framework=OWN)
    for name in plan.gpus_by_type:
        yield from job_problems(plan.cluster.pool_of[name].gpu, job)


def _optimizer(plan: Plan) -> Iterator[Problem]:
    if plan.job.optimizer not in (*OWN_OPTIMIZERS, "none"):
        hint = f"use one of {', '.join(OWN_OPTIMIZERS)}"
        yield Problem("job.optimizer", f"{plan.job.optimizer} cannot be run", hint)


def _precision(plan: Plan) -> Iterable[Problem]:
    job = plan.job
    other = f"use {OWN_FP8_RECIPE}, or leave it out"
    return holding(
        (
            job.fp8_storage,
            Problem("job.fp8_storage", "cannot be run: weights are kept in 16 bits as well", "leave it out"),
        ),
        (
            job.precision == "fp8" and job.fp8_recipe not in OWN_FP8_RECIPES,
            Problem("job.fp8_recipe", f"{job.fp8_recipe} cannot be run", other),
        ),
    )


def _options(plan: Plan) -> Iterator[Problem]:
    if plan.job.preference is not None:
        yield Problem("job.preference", f"{plan.job.preference.loss} cannot be run", FOR_TRL)
    for name, word in said(plan.job.options).items():
        if OWN_OPTIONS.get(name) != word:
            yield Problem(f"job.options.{name}", f"{word} cannot be run", "leave the option out of the plan")
