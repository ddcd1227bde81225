"""What `shardwright train` is told, checked before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from shardwright.errors import SpecError, bad
from shardwright.runtime.job.settings import CHANGES
from shardwright.runtime.state.recipe import METHOD_OF, METHODS, SCHEDULES, Method, Recipe
from shardwright.spec.job import Precision

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.layout.groups import Layout
    from shardwright.runtime.storage.mixture import Source


def checked_layout(plan: Plan) -> Layout:
    """Return the layout of a plan that is legal and can be run. Raises SpecError with everything that is wrong."""
    from shardwright.plans.check import check
    from shardwright.reports.text.problems import merged
    from shardwright.runtime.layout.groups import layout_of
    from shardwright.runtime.layout.limits import unrunnable

    problems = check(plan) or unrunnable(plan)
    if problems:
        raise SpecError(*merged(problems))
    return layout_of(plan)


def with_optimizer(plan: Plan, method: str | None) -> Plan:
    """Return a plan with another optimizer, and then without its prediction, which is of the one it had. Raises
    SpecError where there is no such method."""
    from dataclasses import replace

    if method is not None and method not in METHODS:
        raise bad(f"--optimizer {method}", "is not known", f"one of {', '.join(METHODS)}")
    if method in (None, METHOD_OF[plan.job.optimizer]):
        return plan
    optimizer = next(name for name, known in METHOD_OF.items() if known == method)
    return replace(plan, job=replace(plan.job, optimizer=optimizer), prediction=None)


def with_precision(plan: Plan, precision: str | None) -> Plan:
    """Return a plan in another precision, and then without its prediction, which is of the one it had. Raises SpecError
    where there is no such precision."""
    from dataclasses import replace

    if precision is not None and precision not in get_args(Precision):
        raise bad(f"--precision {precision}", "is not known", f"one of {', '.join(get_args(Precision))}")
    if precision in (None, plan.job.precision):
        return plan
    recipe = plan.job.fp8_recipe if precision == "fp8" else None
    job = replace(plan.job, precision=cast("Precision", precision), fp8_recipe=recipe)
    return replace(plan, job=job, prediction=None)


def settings_before(resume: Path | None) -> Mapping[str, Any]:
    """Return what travels with the checkpoint that a run goes on from, nothing for a new run."""
    if resume is None:
        return {}
    from shardwright.runtime.job.course import travelling
    from shardwright.runtime.storage.steps import newest_manifest

    return travelling(newest_manifest(resume)[1])


def recipe_of(
    before: Mapping[str, Any], *, beta1: float | None, beta2: float | None, method: Method, **told: float | str | None
) -> Recipe:
    """Return the recipe of a run: what it is `told`, else what travelled with the checkpoint that it goes on from."""
    if told["schedule"] not in (None, *SCHEDULES):
        raise bad(f"--schedule {told['schedule']}", "is not known", f"one of {', '.join(SCHEDULES)}")
    betas = before.get("betas", Recipe().betas)
    given: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    given["betas"] = (betas[0] if beta1 is None else beta1, betas[1] if beta2 is None else beta2)
    kept = {name: value for name, value in before.items() if name != "seed"}
    return Recipe(**{**kept, **given, "method": method})


def sources_of(told: Sequence[str]) -> tuple[Source, ...]:
    """Return the token files that `--data` names, as FILE or FILE=WEIGHT. Raises SpecError where some have a weight and
    others none."""
    from shardwright.runtime.storage.data import location_of
    from shardwright.runtime.storage.mixture import Source

    if not told:
        raise bad("--data", "is missing", "make a token file: shardwright tokens TEXT… -o corpus.bin")
    found = []
    for text in told:
        name, equals, number = text.rpartition("=")
        try:
            weight = float(number) if equals else None
        except ValueError:
            name, weight = text, None
        if weight is not None and not 0 < weight < inf:
            raise bad(f"--data {text}", "has a weight that is not above 0", "give a positive number")
        found.append(Source(path=location_of(text if weight is None else name), weight=weight))
    if len({source.weight is None for source in found}) > 1:
        raise bad("--data", "some files have a weight and others none", "give all a weight (FILE=WEIGHT), or none")
    if len({source.path for source in found}) < len(found):
        raise bad("--data", "names a file twice", "name it once, with its whole weight")
    return tuple(found)


def require_changes(names: Sequence[str]) -> None:
    for name in names:
        if name not in CHANGES:
            raise bad(f"--accept-change {name}", "is not known", f"one of {', '.join(CHANGES)}")


def require_below_1(**numbers: float | None) -> None:
    _require(numbers, lambda value: value < 1, "is not below 1", "give a number from 0 to below 1")


def require_positive(**numbers: float | None) -> None:
    _require(numbers, lambda value: value > 0, "is not above 0", "give a positive number")


def require_no_less_than_0(**numbers: float | None) -> None:
    _require(numbers, lambda value: value >= 0, "is below 0", "give 0 or a positive number")


def _require(numbers: Mapping[str, float | None], holds: Callable[[float], bool], wrong: str, remedy: str) -> None:
    for name, value in numbers.items():
        if value is not None and not holds(value):
            raise bad(f"--{name.replace('_', '-')}", f"{value:g} {wrong}", remedy)


def require_with(option: str, there: bool, **others: object) -> None:
    """Raise SpecError for those of the `others` that are told though the option without which they say nothing is
    not."""
    for name, value in others.items():
        if value and not there:
            raise bad(f"--{name.replace('_', '-')}", f"says nothing without {option}", f"add {option}, or leave it out")


def require_measurable(plan: Plan) -> None:
    """Raise SpecError where the layers of a plan cannot stand for those of others."""
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    if any(stage.context_parallel > 1 or stage.expert_parallel > 1 for stage in stages):
        message = "a layer profile has whole sequences and all experts, which ranks of this plan share"
        raise bad("--profile", message, "measure under a plan with context_parallel and expert_parallel 1")
    if plan.layered:
        message = "under uneven FSDP a unit runs all micro-batches at once, which are not timed one by one"
        raise bad("--profile", message, "measure under a plan of equal copies on the same machines")


def require_input(plan: Plan, settings: Settings) -> None:
    """Raise SpecError where data or checkpoint are not what the run needs, before anything is started; say what differs
    from the checkpoint and may."""
    from shardwright.runtime.job.course import course_of, require_same_course
    from shardwright.runtime.job.held_out import held_out_samples
    from shardwright.runtime.job.start import details_for, require_fresh
    from shardwright.runtime.job.trackers import require_trackers
    from shardwright.runtime.storage.data import require_known
    from shardwright.runtime.storage.mixture import open_mixture
    from shardwright.runtime.storage.steps import newest_manifest
    from shardwright.runtime.storage.weights import open_weights

    job, vocab = plan.job, plan.model.vocab
    mixture = open_mixture(settings.data, job.seq_len, settings.seed, vocab, job.global_batch)
    held_out = held_out_samples(settings, job, vocab)
    for samples in (*mixture.parts, *(held_out.parts if held_out else ())):
        require_known(samples.file, vocab)
    if settings.mask_documents:
        mixture.document_end()
    details_for(plan.model, settings)
    if settings.weights is not None:
        open_weights(settings.weights)
    require_trackers(settings)
    require_fresh(settings)
    if settings.resume is not None:
        folder, manifest = newest_manifest(settings.resume)
        course = course_of(plan, settings, mixture)
        for change in require_same_course(manifest, plan, course, settings.accept_change, str(folder)):
            print(f"other than in {folder}: {change}", file=sys.stderr)
