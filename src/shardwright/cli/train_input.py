"""What `shardwright train` is told, checked before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from shardwright.cli.destination import require_writable
from shardwright.cli.train_options import FleetOptions, OutputOptions, RecipeOptions, names_of
from shardwright.errors import bad, merged, reject
from shardwright.rows import holding
from shardwright.runtime.job.settings import CHANGES
from shardwright.runtime.state.recipe import METHOD_OF, METHODS, SCHEDULES, Method, Recipe
from shardwright.spec.job import Precision

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.layout.groups import Layout
    from shardwright.runtime.storage.mixture import Source

NOT_ELASTIC: Mapping[str, str] = {
    "save_weights": "no machine has all of them: end without it, then `train --resume CHECKPOINT --save-weights DIR` "
    "writes them where all of a checkpoint is, as a step in --upload",
    "json": "it ends with a message on each machine: metrics.csv and recoveries.jsonl in --out say how it went",
}
"""Options that --elastic refuses, and what to do."""
YEAR_SECONDS = 365 * 86_400
RANGES: Sequence[tuple[Callable[[float], bool], str, str, Iterable[str]]] = (
    (
        isfinite,
        "is not finite",
        "give a number",
        ("learning_rate", "epsilon", "patience", "silence", "wait", "weight_decay", "clip", "beta1", "beta2",
         "final_fraction"),
    ),
    (
        lambda value: value > 0,
        "is not above 0",
        "give a positive number",
        ("steps", "accumulate", "eval_batches", "profile_steps", "learning_rate", "epsilon", "patience",
         "snapshot_every", "silence", "wait"),
    ),
    (
        lambda value: value >= 0,
        "is below 0",
        "give 0 or a positive number",
        ("warmup", "decay", "decay_from", "weight_decay", "clip", "checkpoint_every", "eval_every", "keep", "beta1",
         "beta2", "final_fraction", "seed"),
    ),
    (lambda value: value < 1, "is not below 1", "give a number from 0 to below 1", ("beta1", "beta2")),
    (lambda value: value <= 1, "is above 1", "give a number from 0 to 1", ("final_fraction",)),
    (lambda value: value < 1 << 63, "is not below 2^63", "give a smaller number", ("seed",)),
    (lambda value: value <= YEAR_SECONDS, "is more than a year", "give fewer seconds", ("patience", "silence", "wait")),
)  # fmt: skip
"""What holds of numbers, what is wrong where it does not, what helps, and of which options."""


def checked_layout(plan: Plan) -> Layout:
    """Return the layout of a plan that is legal and can be run. Raises SpecError with everything that is wrong."""
    from shardwright.plans.check import check
    from shardwright.runtime.layout.groups import layout_of
    from shardwright.runtime.layout.limits import unrunnable

    reject(merged(check(plan) or unrunnable(plan)))
    return layout_of(plan)


def with_optimizer(plan: Plan, method: str | None) -> Plan:
    """Return a plan with another optimizer, and then without its prediction, which is of the one it had. Raises
    SpecError where there is no such method."""
    if method is not None and method not in METHODS:
        raise bad(f"--optimizer {method}", "is not known", f"one of {', '.join(METHODS)}")
    if method in (None, METHOD_OF[plan.job.optimizer]):
        return plan
    optimizer = next(name for name, known in METHOD_OF.items() if known == method)
    return replace(plan, job=replace(plan.job, optimizer=optimizer), prediction=None)


def with_precision(plan: Plan, precision: str | None) -> Plan:
    """Return a plan in another precision, and then without its prediction, which is of the one it had. Raises SpecError
    where there is no such precision."""
    if precision is not None and precision not in get_args(Precision):
        raise bad(f"--precision {precision}", "is not known", f"one of {', '.join(get_args(Precision))}")
    if precision in (None, plan.job.precision):
        return plan
    recipe = plan.job.fp8_recipe if precision == "fp8" else None
    job = replace(plan.job, precision=cast("Precision", precision), fp8_recipe=recipe)
    return replace(plan, job=job, prediction=None)


def checked_settings(
    plan: Plan,
    file: Path,
    recipe: RecipeOptions,
    output: OutputOptions,
    fleet: FleetOptions,
    given: Set[str],
    *,
    data: Sequence[str],
    resume: Path | None,
    accept_change: tuple[str, ...],
    **others: Any,
) -> Settings:
    """Return what a run of a plan, read from a `file`, is told. Raises SpecError for options that say nothing beside
    those `given`, and for values out of range."""
    from shardwright.runtime.job.course import travelling
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.storage.data import location_of
    from shardwright.runtime.storage.manifest import newest_manifest

    sources = sources_of(data)
    _require_sense(given, fleet, output)
    numbers = {"steps": others["steps"], "patience": others["patience_seconds"]}
    require_in_range(asdict(recipe) | asdict(output) | asdict(fleet) | numbers)
    for name in accept_change:
        if name not in CHANGES:
            raise bad(f"--accept-change {name}", "is not known", f"one of {', '.join(CHANGES)}")
    if others["adapters"] is not None and not plan.job.adapters:
        raise bad("--adapter-weights", "needs a plan with adapters", "plan with --adapter lora:16")
    if output.profile is not None:
        require_measurable(plan)
    inputs = [file, *(source.path for source in sources if isinstance(source.path, Path))]
    require_writable(output.profile, inputs, option="--profile")
    require_writable(output.trace, [*inputs, output.profile], option="--trace")
    require_weights_folder(output.save_weights, whole=not plan.job.adapters)
    manifest = None if resume is None else newest_manifest(resume)[1]
    before = {} if manifest is None else travelling(manifest)
    _require_second_step(output, others["steps"] - (manifest.step if manifest else 0))
    method = METHOD_OF[plan.job.optimizer]
    return Settings(
        data=sources,
        out=output.out,
        recipe=with_falling_rate(recipe_of(before, method, recipe), given),
        seed=before.get("seed", 0) if recipe.seed is None else recipe.seed,
        checkpoint_every=output.checkpoint_every,
        keep=output.keep,
        resume=resume,
        accept_change=accept_change,
        save_weights=output.save_weights,
        precision=plan.job.precision,
        profile=output.profile,
        profile_steps=output.profile_steps,
        trace=output.trace,
        held_out=None if output.eval_data is None else location_of(output.eval_data),
        evaluate_every=output.eval_every,
        evaluate_batches=output.eval_batches,
        tensorboard=output.tensorboard,
        wandb=output.wandb,
        **others,
    )


def recipe_of(before: Mapping[str, Any], method: Method, options: RecipeOptions) -> Recipe:
    """Return the recipe of a run: what the `options` say, else what travelled with the checkpoint that it goes on from.
    Raises SpecError where there is no such schedule."""
    if options.schedule not in (None, *SCHEDULES):
        raise bad(f"--schedule {options.schedule}", "is not known", f"one of {', '.join(SCHEDULES)}")
    betas = before.get("betas", Recipe().betas)
    values: dict[str, Any] = {
        "schedule": options.schedule,
        "learning_rate": options.learning_rate,
        "warmup_steps": options.warmup,
        "decay_from": options.decay_from,
        "decay_steps": options.decay,
        "final_fraction": options.final_fraction,
        "epsilon": options.epsilon,
        "weight_decay": options.weight_decay,
        "clip": options.clip,
        "betas": (
            betas[0] if options.beta1 is None else options.beta1,
            betas[1] if options.beta2 is None else options.beta2,
        ),
    }
    kept = {name: value for name, value in before.items() if name != "seed"}
    return Recipe(**{**kept, **{name: value for name, value in values.items() if value is not None}, "method": method})


def _require_sense(given: Set[str], fleet: FleetOptions, output: OutputOptions) -> None:
    """Raise SpecError for options that say nothing without another, or beside --elastic."""
    of_others = {
        "eval_every": "eval_data",
        "eval_batches": "eval_data",
        "profile_steps": "profile",
        "accept_change": "resume",
    }
    if not fleet.elastic:
        of_others |= dict.fromkeys(names_of(fleet) - {"elastic"}, "elastic")
    for name, other in of_others.items():
        if name in given and other not in given:
            raise bad(_flag(name), f"needs {_flag(other)}", f"add {_flag(other)}, or leave {_flag(name)} out")
    for name in sorted(given & NOT_ELASTIC.keys() if fleet.elastic else ()):
        raise bad(_flag(name), "does not go with --elastic", NOT_ELASTIC[name])
    if fleet.elastic and output.keep == 1:
        message = "an elastic run keeps two checkpoints or more: a new one is whole once all machines have their part"
        raise bad("--keep 1", message, "keep 2 or more, or 0 for all")


def require_in_range(numbers: Mapping[str, Any]) -> None:
    """Raise SpecError for the first option, by name, whose number lies outside its range."""
    for holds, wrong, remedy, names in RANGES:
        for name in names:
            value = numbers.get(name)
            if value is not None and not holds(value):
                raise bad(_flag(name), f"{value:g} {wrong}", remedy)


def with_falling_rate(recipe: Recipe, given: Set[str]) -> Recipe:
    """Return a recipe. Raises SpecError for options among those `given` that say how the rate falls where it never
    does, or ends to before it begins."""
    idle = [name for name in ("schedule", "final_fraction", "decay_from") if name in given]
    if idle and not recipe.decay_steps:
        raise bad(
            _flag(idle[0]),
            "says nothing without --decay: the rate never falls",
            "add --decay N, the step of the lowest",
        )
    last = recipe.decay_steps or inf
    for name, first in (("decay_from", recipe.decay_from), ("warmup", recipe.warmup_steps)):
        if first >= last and given & {name, "decay"}:
            raise bad(f"{_flag(name)} {first}", f"is not before --decay {last}", "begin earlier, or end later")
    return recipe


def _require_second_step(output: OutputOptions, steps: int) -> None:
    """Raise SpecError where a run of so many `steps` has none after the first, and that is to be measured."""
    for option, file in (("--profile", output.profile), ("--trace", output.trace)):
        if file is not None and steps < 2:
            message = f"measures from the second step on, and this run has {max(steps, 0)}"
            raise bad(option, message, f"add {2 - steps} to --steps")


def require_weights_folder(folder: Path | None, *, whole: bool) -> None:
    """Raise SpecError where nothing can be written into a folder, or `whole` weights where a file is that transformers
    would open in their place."""
    from shardwright.runtime.storage.weight_files import SINGLE

    if folder is None:
        return
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise bad(f"--save-weights {folder}", f"{there} is no folder that can be written to", "name another folder")
    if whole and (folder / SINGLE).exists():
        message = f"has a {SINGLE}, which transformers would open in place of what is written"
        raise bad(f"--save-weights {folder}", message, "name another folder, or move the file away")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def sources_of(names: Sequence[str]) -> tuple[Source, ...]:
    """Return the token files that `--data` names, as FILE or FILE=WEIGHT. Raises SpecError where some have a weight and
    others none."""
    from shardwright.runtime.storage.data import location_of
    from shardwright.runtime.storage.mixture import Source

    if not names:
        raise bad("--data", "is missing", "make a token file: shardwright tokens TEXT… -o corpus.bin")
    sources = []
    for text in names:
        name, equals, number = text.rpartition("=")
        try:
            weight = float(number) if equals else None
        except ValueError:
            name, weight = text, None
        if weight is not None and not 0 < weight < inf:
            raise bad(f"--data {text}", "has a weight that is not above 0", "give a positive number")
        sources.append(Source(path=location_of(text if weight is None else name), weight=weight))
    if len({source.weight is None for source in sources}) > 1:
        raise bad("--data", "some files have a weight and others none", "give all a weight (FILE=WEIGHT), or none")
    if len({source.path for source in sources}) < len(sources):
        raise bad("--data", "names a file twice", "name it once, with its whole weight")
    return tuple(sources)


def require_measurable(plan: Plan) -> None:
    """Raise SpecError where the layers of a plan cannot stand for those of others."""
    unlike = holding(
        (
            any(stage.context_parallel > 1 or stage.expert_parallel > 1 for stage in plan.stages),
            (
                "a layer profile has whole sequences and all experts, which ranks of this plan share",
                "measure under a plan with context_parallel and expert_parallel 1",
            ),
        ),
        (
            plan.layered,
            (
                "under uneven FSDP a unit runs all micro-batches at once, which are not timed one by one",
                "measure under a plan of equal copies on the same machines",
            ),
        ),
        (
            plan.schedule.weights_apart,
            (
                "a layer profile has whole backward passes, which this schedule parts",
                "measure under 1f1b, or interleaved",
            ),
        ),
    )
    for message, hint in unlike:
        raise bad("--profile", message, hint)


def require_input(plan: Plan, settings: Settings) -> None:
    """Raise SpecError where data or checkpoint are not what the run needs, before anything is started; say what differs
    from the checkpoint and may. Needs no PyTorch."""
    from shardwright.runtime.job.course import (
        course_of,
        details_for,
        held_out_samples,
        require_fresh,
        require_same_course,
        samples_of,
    )
    from shardwright.runtime.job.metrics import require_trackers
    from shardwright.runtime.storage.data import require_known
    from shardwright.runtime.storage.manifest import newest_manifest
    from shardwright.runtime.storage.mixture import require_one_tokenizer
    from shardwright.runtime.storage.weight_files import adapters_fingerprint, weights_fingerprint

    vocab, mixture = plan.model.vocab, samples_of(plan, settings)
    held_out = held_out_samples(settings, plan.job, vocab)
    files = [samples.file for samples in (*mixture.parts, *(held_out.parts if held_out else ()))]
    require_one_tokenizer(files)
    for file in files:
        require_known(file, vocab)
    if settings.mask_documents:
        if any(kind.mixer for kind in plan.model.kinds):
            message = f"layers without attention, as {plan.model.family} has them, go on from document to document"
            raise bad("--mask-documents", message, "leave it out")
        mixture.document_end()
    details_for(plan.model, settings)
    if settings.weights is not None:
        weights_fingerprint(settings.weights)
    if settings.adapters is not None:
        adapters_fingerprint(settings.adapters)
    require_trackers(settings)
    require_fresh(settings)
    if settings.resume is not None:
        folder, manifest = newest_manifest(settings.resume)
        course = course_of(plan, settings, mixture)
        for change in require_same_course(manifest, plan, course, settings.accept_change, str(folder)):
            print(f"other than in {folder}: {change}", file=sys.stderr)
