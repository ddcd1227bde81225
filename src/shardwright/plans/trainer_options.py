"""Whether a job's options are its framework's to choose, and go with its model, its precision and each other.

Files and lines are those of Megatron-LM core_v0.19.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from shardwright.errors import Problem
from shardwright.spec.catalog.frameworks import MEGATRON, OWN, framework_has, framework_options, framework_rows
from shardwright.spec.job import Fp8Recipe, Job
from shardwright.spec.model import Model
from shardwright.spec.options import DEFAULTS, STATE, said
from shardwright.spec.preference import LOSSES, OTHER_CODE

OWN_FP8_RECIPE: Fp8Recipe = "tensorwise"
OWN_FP8_RECIPES = (None, OWN_FP8_RECIPE)
SWITCHES = ("fp8_storage", "fused_loss")  # of a job, which `train` does not have
OF_EXPERTS = ("dispatcher", "expert_capacity", "expert_padding", "expert_imbalance", "expert_products")  # options
Faults = Iterator[tuple[str, str, str]]  # option, what is wrong, what helps


def option_problems(model: Model, job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the options of a job, whatever the plan."""
    if job.framework == OWN and job.fp8_recipe not in OWN_FP8_RECIPES:
        message = f"{job.fp8_recipe} is not there in {OWN}, which has one scale a tensor"
        yield Problem("job.fp8_recipe", message, f"use {OWN_FP8_RECIPE}, or leave it out")
    yield from _preference(model, job)
    given = said(job.options)
    if not given or job.framework not in framework_rows():
        return
    able = framework_options(job.framework)
    for name in given:
        if name not in able:
            have = f"{job.framework} leaves to choose: {', '.join(able) or 'none of these'}"
            yield Problem(f"job.options.{name}", f"is not {job.framework}'s to choose", have)
    checks = (
        _widths(job, given),
        _masters(job, given),
        _modules(model, job),
        _experts(model, given),
        _capacity(model, given),
        _loss(job, given),
        _gathers(job, given),
    )
    for faults in checks:
        for name, message, hint in faults:
            yield Problem(f"job.options.{name}", message, hint)


def _preference(model: Model, job: Job) -> Iterator[Problem]:
    """What TRL's trainers of losses over preferences take is a model of texts that predicts the next token."""
    other = [tower.noun for tower in model.towers] or ([] if model.causal else ["masked tokens"])
    preference = job.preference
    if (model.scores is not None) != (preference is not None and preference.passes.scores):
        message = "gives scores, which" if model.scores else "gives logits; scores are what"
        yield Problem("model.scores", f"{message} the loss `reward` is of", "leave scores out, or train by that loss")
    if preference is None:
        return
    if other:
        message = f"is {preference.loss}, which is described for models of texts, and {model.name} has {other[0]}"
        yield Problem("job.preference", message, "leave it out")
    if preference.precomputed and not (preference.passes.reference and preference.by == "trl"):
        message = f"is true, but {preference.loss} by {preference.by} has no reference to compute before"
        yield Problem("job.preference.precomputed", message, "write false")
    if preference.loss not in OTHER_CODE.get(preference.by, LOSSES):
        yield Problem("job.preference.by", f"is {preference.by}, which has no code for {preference.loss}", "write trl")


def beyond_own(job: Job) -> tuple[str, ...]:
    """Return what of a job `shardwright train`, which has no options, does not have, each as name=value."""
    recipe = () if job.fp8_recipe in OWN_FP8_RECIPES else (f"fp8_recipe={job.fp8_recipe}",)
    switches = (f"{name}=true" for name in SWITCHES if getattr(job, name))
    loss = () if job.preference is None else (f"preference={job.preference.name}",)
    return (*recipe, *switches, *loss, *(f"{name}={word}" for name, word in said(job.options).items()))


def as_own(job: Job) -> Job:
    """Return a job as `shardwright train` runs it, without what it does not have."""
    recipe = job.fp8_recipe if job.fp8_recipe in OWN_FP8_RECIPES else None
    off: Any = dict.fromkeys(SWITCHES, False)
    return replace(job, framework=OWN, options=DEFAULTS, fp8_recipe=recipe, **off)


def _widths(job: Job, given: Mapping[str, str]) -> Faults:
    """arguments.py 1186-1188, optimizer_config.py 430-436."""
    for name in ("grad_reduce", *STATE):
        if name in given and job.precision not in ("bf16", "fp8"):
            yield name, f"is {given[name]} with precision {job.precision}", "use bf16 or fp8, or leave it out"
        elif name in given and name != "grad_reduce" and job.optimizer != "adam":
            yield name, f"belongs to Adam, the optimizer is {job.optimizer}", "use adam, or leave it out"
    if given.get("grad_reduce") == "fp32" and given.get("main_grads") == "bf16":
        yield "main_grads", "is bf16, but gradients are reduced in fp32", "set grad_reduce=bf16, or main_grads=fp32"


def _masters(job: Job, given: Mapping[str, str]) -> Faults:
    small = "is none, but frozen weights have no masters, and adapters are small"
    rows = (
        (job.precision != "bf16", f"is none with precision {job.precision}", "use bf16, or leave it out"),
        (job.adapters, small, "leave it out"),
    )
    for wrong, message, hint in rows if given.get("master_weights") == "none" else ():
        if wrong:
            yield "master_weights", message, hint


def _modules(model: Model, job: Job) -> Faults:
    """transformer_config.py 1784-1834."""
    modules, kinds = job.options.recompute_modules or (), model.kinds
    lacking = {
        "mla_up_proj": "" if any(kind.latent for kind in kinds) else "latent attention",
        "mlp": "" if any(kind.mlp for kind in kinds) else "dense feed-forward blocks",
        "moe": "" if any(kind.moe for kind in kinds) else "experts",
        "moe_act": "" if any(kind.moe for kind in kinds) else "experts",
        "shared_experts": "" if any(kind.moe and kind.moe.shared_width for kind in kinds) else "shared experts",
    }
    for module in modules:
        if lacking.get(module):
            yield "recompute_modules", f"has {module}, but the model has no {lacking[module]}", "leave it out"
        if module in ("moe_act", "layernorm") and job.precision == "fp8" and job.fp8_recipe in (None, "delayed"):
            hint = "leave it out, or use another fp8 recipe"
            yield "recompute_modules", f"has {module}, which delayed scaling cannot run again", hint
    if job.options.recompute_modules == ():
        yield "recompute_modules", "is empty", "name a module, or leave it out"


def _experts(model: Model, given: Mapping[str, str]) -> Faults:
    """transformer_config.py 2684-2699."""
    beside = given.get("exchange_overlap") == "batches"
    if not model.has_experts:
        for name in (*OF_EXPERTS, *(("exchange_overlap",) if beside else ())):
            if name in given:
                yield name, f"is {given[name]}, but the model has no experts", "leave it out"
    elif beside and given.get("dispatcher") == "allgather":
        yield "exchange_overlap", "is batches, which needs the dispatcher alltoall or flex", "leave one of them out"
    elif beside and "moe" in given.get("recompute_modules", "").split("+"):
        yield "exchange_overlap", "is batches, but recompute_modules has moe", "leave one of them out"
    if given.get("cuda_graph") == "moe" and not model.has_experts:
        yield "cuda_graph", "is moe, but the model has no experts", "leave it out, or say attention"


def _capacity(model: Model, given: Mapping[str, str]) -> Faults:
    """transformer_config.py 1660-1690. An expert takes each token of a rank once at most, which `permute` of
    moe/moe_utils.py takes for granted where it pads."""
    padded, capacity = given.get("expert_padding") == "capacity", given.get("expert_capacity")
    imbalance = given.get("expert_imbalance")
    most = min((kind.moe.experts / kind.moe.top_k for kind in model.kinds if kind.moe), default=inf)
    if imbalance is not None and not 1.0 <= float(imbalance) < inf:
        yield (
            "expert_imbalance",
            f"is {imbalance}, but the fullest rank has the mean at least",
            "write 1 or more",
        )
    if capacity is None and padded and model.has_experts:
        yield "expert_padding", "is capacity, but no capacity is said", "set expert_capacity=1, or leave it out"
    elif capacity is not None and not 0.0 < float(capacity) < inf:
        yield "expert_capacity", f"is {capacity}", "write a number above 0"
    elif capacity is not None and padded and float(capacity) > most:
        message = f"is {capacity}, with which padded experts take more than all tokens"
        yield "expert_capacity", message, f"write {most:g} or less"


def _gathers(job: Job, given: Mapping[str, str]) -> Faults:
    """Weights of mxfp8 are gathered in 16 bits (param_and_grad_buffer.py: reuse_grad_buf_for_mxfp8_param_ag)."""
    if given.get("param_gather") != "fp8":
        return
    if job.precision != "fp8":
        yield "param_gather", f"is fp8 with precision {job.precision}", "use fp8, or leave it out"
    elif job.fp8_recipe == "mxfp8":
        yield "param_gather", "is fp8 with mxfp8, whose weights are gathered in 16 bits", "leave it out"


def _loss(job: Job, given: Mapping[str, str]) -> Faults:
    loss, megatron = given.get("loss"), job.framework == MEGATRON
    preferred = "" if job.preference is None else job.preference.loss
    rows = (
        (
            loss == "chunked" and megatron,
            "is chunked, which Megatron-LM has not",
            "use fused, or another framework",
        ),
        (
            loss in ("fused", "unfused") and not megatron,
            f"is {loss}, which is Megatron-LM's to choose",
            "use chunked, or leave it out",
        ),
        (
            loss == "tiled" and not framework_has(job.framework, "transformers"),
            "is tiled, which TRL has, the trainer of transformers' models",
            "leave it out",
        ),
        (
            loss is not None and job.preference is not None,
            f"is {loss}, but that of {preferred} is TRL's own",
            "leave it out",
        ),
        (
            loss is not None and job.fused_loss,
            f"is {loss} beside job.fused_loss, which holds no logits",
            "leave one of them out",
        ),
    )
    yield from (("loss", message, hint) for wrong, message, hint in rows if wrong)
