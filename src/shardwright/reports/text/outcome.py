"""What a plan is predicted to come to, in a few words: time, memory, money."""

from __future__ import annotations

from shardwright.plans.plan import Precedents, Prediction, SiteEffect, StageMemory
from shardwright.reports.words import KIND_WORDS
from shardwright.units import SECONDS_PER_HOUR, format_bytes, format_dollars, format_seconds

TERMS = {
    "forward_seconds": "forward",
    "backward_seconds": "backward",
    "recompute_seconds": "recomputation",
    "tensor_parallel_seconds": "tensor-parallel communication",
    "context_parallel_seconds": "context-parallel communication",
    "expert_parallel_seconds": "expert-parallel communication",
    "pipeline_seconds": "pipeline transfers",
    "bubble_seconds": "pipeline bubble",
    "data_parallel_seconds": "gradient/weight communication",
    "optimizer_seconds": "optimizer",
    "framework_seconds": "framework",
}
COMPUTE = ("forward_seconds", "backward_seconds")
MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "context")
BILLION = 1e9
UNMEASURED = {
    "framework": "`{0}` as its framework",
    "framework_architecture": "{0} on {1} GPUs",
    "framework_kind": "{kind} with {0}",
    "gpu": "the {0}",
    "family_kind": "{kind} of the {0} family",
    "precision_architecture": "{0} on {1} GPUs",
    "gpus": "{0} on more than {1} GPUs",
    "sites": "{0} sites",
}
"""What no published run has, by `plan.Unmeasured.fact`."""


def fullest(prediction: Prediction) -> StageMemory:
    """Return the memory of the stage that fills its GPU most."""
    return max((stage for row in prediction.memory for stage in row), key=_share)


def host_words(prediction: Prediction) -> str:
    """Return what a GPU takes at most of its machine's memory, empty where none takes any."""
    most = max((stage for row in prediction.memory for stage in row), key=lambda stage: stage.in_host_bytes)
    if not most.in_host_bytes:
        return ""
    share = f"{format_bytes(most.host_capacity_bytes)} a GPU" if most.host_capacity_bytes else "an unknown part"
    return f"{format_bytes(most.in_host_bytes)} of {share} in host memory"


def measured_words(measured: Precedents) -> str:
    """Return whether anything like a plan was ever measured, as published runs have it."""
    kind = KIND_WORDS[measured.kind]
    runs = (
        f"{measured.runs:,} published runs of {kind} with this framework and GPU, {measured.at_scale:,} at this scale"
    )
    if not measured.lacking:
        return runs if measured.runs else f"no published run has {kind} with this framework on this GPU"
    lacks = [UNMEASURED[missing.fact].format(*map(_part, missing.of), kind=kind) for missing in measured.lacking]
    words = " or ".join([", ".join(lacks[:-1]), lacks[-1]] if len(lacks) > 1 else lacks)
    return f"no published run has {words}" + (f"; {runs}" if measured.runs else "")


def _part(value: str) -> str:
    return f"{int(value):,}" if value.isdigit() else value


def memory_terms(memory: StageMemory) -> str:
    """Return the terms of a stage's memory, largest first."""
    terms = sorted(((getattr(memory, f"{name}_bytes"), name) for name in MEMORY_TERMS), reverse=True)
    return ", ".join(f"{name} {format_bytes(size)}" for size, name in terms if size > 0.01 * memory.total_bytes)


def money_words(prediction: Prediction) -> str:
    """Return price and run time; never a cost without the time behind it."""
    hours, rate = prediction.hours_total, prediction.dollars_per_hour
    run = None if hours is None else format_seconds(hours * SECONDS_PER_HOUR)
    if rate is None:
        words = "price unknown (give price_per_hour in the cluster file)"
        return words if run is None else f"{run} for all tokens; {words}"
    hours_per_billion = BILLION / prediction.tokens_per_second / SECONDS_PER_HOUR
    words = (
        f"{format_dollars(rate)} an hour; a billion tokens take {format_seconds(hours_per_billion * SECONDS_PER_HOUR)} "
        f"and {format_dollars(rate * hours_per_billion)}"
    )
    if prediction.dollars_total is not None and run is not None:
        words += (
            f"; all tokens take {run} and {format_dollars(prediction.dollars_total)}, including failures and restarts"
        )
    return words


def bottleneck(prediction: Prediction) -> str:
    """Return in words what holds a plan back most."""
    time, total = prediction.time, prediction.time.total_seconds
    filled = [(_share(stage), place) for row in prediction.memory for place, stage in enumerate(row)]
    share, fullest_stage = min(filled, key=lambda item: (-item[0], item[1]))
    shares = {words: getattr(time, name) / total for name, words in TERMS.items() if name not in COMPUTE}
    shares[f"compute of stage {prediction.busiest_stage}"] = sum(getattr(time, name) for name in COMPUTE) / total
    first, second = sorted(shares, key=lambda words: -shares[words])[:2]
    said = f"{first} ({shares[first]:.0%} of the iteration)"
    if shares[second] > 0.02:
        said += f", then {second} ({shares[second]:.0%})"
    return said + f"; memory of stage {fullest_stage} is {share:.0%} full"


def _share(memory: StageMemory) -> float:
    return memory.total_bytes / memory.capacity_bytes


def effect_words(effect: SiteEffect | None) -> str:
    """Return in words what a calibration did to a prediction; empty where none was given."""
    if effect is None:
        return ""
    if not effect.runs:
        return f"not calibrated: {effect.unsaid}"
    runs = f"{effect.runs} run{'s' * (effect.runs > 1)}"
    kin = "" if effect.same_kind else ", none of this family of models"
    words = f"calibrated on {runs} of yours{kin}: {effect.factor - 1.0:+.0%} seconds"
    return f"{words}, interval {effect.narrower:.0%} as wide"
