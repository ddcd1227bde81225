"""Why a prediction may be off, from facts of the run alone: rules that a person can check, not a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardwright.records import record
from shardwright.rows import grouped
from shardwright.validation.case import NETWORK, RECOMPUTATION, SHARDING
from shardwright.validation.outcome import Outcome

SHORT_SECONDS = 0.1
MANY_GPUS = 512
UNLIKELY_FIT = 0.1
WAIT_SECONDS = 0.3
OUTLIER_SPREADS = 4.0  # median absolute deviations from the median of a sweep
OUTLIER_FACTOR = 1.25
MOST_REASONS = 4


@record(kw_only=False)
class Reason:
    """A likely reason of an error: its kind, and the reason in words."""

    kind: str
    words: str


OUTLIER = Reason("outlier", "an outlier within its own sweep")
NO_REASON = Reason("unknown", "nothing that the run publishes tells")


def sweep_of(outcome: Outcome) -> tuple[object, ...]:
    """Return what the runs of one sweep of strategies have in common, the release of the framework too: what became
    faster by another release is no strategy."""
    run = outcome.run
    asked = (run.model, run.gpu, run.n_gpus, run.global_batch, run.seq_len, run.precision, run.kind)
    return run.source, run.version, *asked


def sweep_outliers(counted: Sequence[Outcome]) -> frozenset[int]:
    """Return the places of outcomes whose measured over predicted time is far from that of the other strategies of
    their sweep, of which there must be four or more."""
    sweeps = grouped((sweep_of(outcome), place) for place, outcome in enumerate(counted) if outcome.ratio is not None)
    outliers: set[int] = set()
    for places in sweeps.values():
        if len(places) < 4:
            continue
        logs = np.log([counted[place].ratio or math.nan for place in places])
        off = np.abs(logs - np.median(logs))
        limit = max(OUTLIER_SPREADS * float(np.median(off)), float(np.log(OUTLIER_FACTOR)))
        outliers |= {place for place, distance in zip(places, off, strict=True) if distance > limit}
    return frozenset(outliers)


def reasons(outcome: Outcome, *, outlier: bool) -> tuple[Reason, ...]:
    """Return the likely reasons of an error, the most telling first, at most four. `outlier`: the run is one within its
    own sweep."""
    likely = [OUTLIER] if outlier else []
    likely += [reason for reason, holds in RULES.items() if holds(outcome)]
    return tuple(likely[:MOST_REASONS]) or (NO_REASON,)


def _assumed(about: str) -> Callable[[Outcome], bool]:
    return lambda outcome: any(assumed.about == about for assumed in outcome.assumed)


def _short(outcome: Outcome) -> bool:
    return outcome.measured_seconds is not None and outcome.measured_seconds < SHORT_SECONDS


def _tensor_parallel_across_machines(outcome: Outcome) -> bool:
    run = outcome.run
    return (run.tp or 1.0) > (run.gpus_per_node or 8.0)


def _few_micro_batches(outcome: Outcome) -> bool:
    count, stages = outcome.micro_batches, outcome.run.pp
    return count is not None and stages is not None and count < stages


def _waits(outcome: Outcome) -> bool:
    measured, predicted, count = outcome.measured_seconds, outcome.predicted, outcome.micro_batches
    pipeline = (outcome.run.pp or 1.0) > 1.0
    if measured is None or predicted is None or not count or not pipeline:
        return False
    return measured > 2.0 * predicted.seconds and (measured - predicted.seconds) / count > WAIT_SECONDS


def _unlikely(outcome: Outcome) -> bool:
    return outcome.predicted is not None and outcome.predicted.fit_probability < UNLIKELY_FIT


RULES: Mapping[Reason, Callable[[Outcome], bool]] = {
    Reason("kernel_launches", "less than 0.1 s an iteration: launching kernels counts"): _short,
    Reason("pipeline_waits", "more than 0.3 s longer with every micro-batch of the pipeline, as if it waited"): _waits,
    Reason("tensor_parallel_across_machines", "tensor parallel across machines"): _tensor_parallel_across_machines,
    Reason("mixed_gpus", "GPUs of several types"): lambda outcome: outcome.run.hetero == "yes",
    Reason("predicted_not_to_fit", "predicted not to fit, so something that saves memory is not published"): _unlikely,
    Reason("flagged", "flagged by those who collected it"): lambda outcome: outcome.run.noted.flagged,
    Reason("few_steps", "few steps measured"): lambda outcome: outcome.run.noted.few_steps,
    Reason("rounded", "read from a picture or rounded figures"): lambda outcome: outcome.run.noted.rounded,
    Reason("unpublished_recomputation", "unpublished recomputation"): _assumed(RECOMPUTATION),
    Reason("unstated_network", "network not stated"): _assumed(NETWORK),
    Reason("unpublished_sharding", "unpublished optimizer sharding"): _assumed(SHARDING),
    Reason("unpublished_micro_batch", "unpublished micro-batch"): lambda outcome: outcome.run.micro_batch is None,
    Reason("unpublished_precision", "unpublished precision"): lambda outcome: not outcome.run.precision,
    Reason("unstated_fp8_recipe", "fp8 recipe not stated"): lambda outcome: outcome.run.precision == "fp8",
    Reason("deterministic_kernels", "deterministic kernels of a CI test"): lambda outcome: (
        outcome.run.kind in ("ci", "release")
    ),
    Reason("frozen_or_packed", "frozen weights, packed samples"): lambda outcome: (
        outcome.run.kind in ("lora", "peft", "sft")
    ),
    Reason("unstated_expert_balance", "balance of the experts not stated"): lambda outcome: (
        (outcome.run.n_experts or 0.0) > 1.0
    ),
    Reason("few_micro_batches", "fewer micro-batches than stages"): _few_micro_batches,
    Reason("many_gpus", "more than 512 GPUs: stragglers and network load"): lambda outcome: (
        (outcome.run.n_gpus or 0.0) > MANY_GPUS
    ),
}
