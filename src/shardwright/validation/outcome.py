"""Runs predicted against what was measured of them, those of a site too; and why a prediction may be off, from facts of
the run alone: rules that a person can check, not a diagnosis."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from shardwright.cost.calibrate import Measured
from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.strategies import plan_of_row, strategies
from shardwright.errors import Problem, reject
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import grouped
from shardwright.spec.cluster import Assumption, Cluster
from shardwright.units import GIBIBYTE, GIGA
from shardwright.validation.case import NETWORK, RECOMPUTATION, SHARDING, Case, case_of
from shardwright.validation.facts import Skip, SkippedRunError
from shardwright.validation.forecast import at_level, forecast
from shardwright.validation.runs import PublishedRun

RECOMPUTE_WORDS = ("none", "selective", "full", "full in some layers")
MEMORY_DEFINITIONS = (
    ("reserved", "reserved"),
    ("nvidia-smi", "process"),
    ("alloc", "allocated"),
    ("nanotron", "allocated"),
)


@record
class RunPrediction:
    """What is predicted of a run: seconds of an iteration and the ends of their 80 % interval, peak bytes of the
    kind that the run publishes (of the whole process on the fullest GPU where it publishes none), the probability that
    it fits, and the recomputation assumed."""

    seconds: float
    low_seconds: float
    high_seconds: float
    memory_bytes: float
    fit_probability: float
    recompute: str


@record
class Outcome:
    """A run with its prediction, or with the reason why there is none.

    `failed`: the run is known to have run out of memory or to have crashed. `counted`: it is part of the summary;
    duplicates of a measurement are not.
    """

    run: PublishedRun
    case: Case | None = None
    predicted: RunPrediction | None = None
    skipped: Skip | None = None
    failed: bool = False
    counted: bool = True

    @property
    def measured_seconds(self) -> float | None:
        return None if self.failed else self.run.seconds or None

    @property
    def measured_bytes(self) -> float | None:
        return None if self.failed or not self.run.measured_mem_gb else measured_bytes(self.run)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted seconds."""
        if self.predicted is None or self.measured_seconds is None:
            return None
        return self.measured_seconds / self.predicted.seconds

    @property
    def error(self) -> float | None:
        """Predicted over measured seconds, less 1."""
        return None if self.ratio is None else 1.0 / self.ratio - 1.0

    @property
    def micro_batches(self) -> float | None:
        """Micro-batches of an iteration, where published."""
        run = self.run
        if not run.global_batch or not run.micro_batch or not run.n_gpus:
            return None
        replicas = run.n_gpus / ((run.tp or 1.0) * (run.pp or 1.0) * (run.cp or 1.0))
        return run.global_batch / (replicas * run.micro_batch)

    @property
    def strategy(self) -> str:
        """The parallel degrees above 1, in words."""
        run = self.run
        degrees = {"tp": run.tp, "cp": run.cp, "pp": run.pp, "vpp": run.vpp, "ep": run.ep, "dp": run.dp}
        return " ".join(f"{name} {value:.0f}" for name, value in degrees.items() if value and value > 1)

    @property
    def assumed(self) -> tuple[Assumption, ...]:
        """What was not published and how it was filled in."""
        if self.case is None or self.predicted is None:
            return ()
        filled = Assumption(RECOMPUTATION, f"{self.predicted.recompute}, the least that fits")
        return tuple(filled if guess.about == RECOMPUTATION else guess for guess in self.case.guesses)


def outcomes(
    runs: Sequence[PublishedRun],
    efficiency: Efficiency,
    *,
    failed: bool = False,
    quality: Collection[str] = (),
    kinds: Collection[str] = (),
) -> tuple[Outcome, ...]:
    """Return the outcome of every run, in their order. Runs of another quality or kind than asked for are skipped (a
    run without a quality or kind is not); all are asked for by default. Of duplicates the first that can be predicted
    counts."""
    compared = [prepared(run, failed=failed, quality=quality, kinds=kinds) for run in runs]
    cases = [outcome.case for outcome in compared if outcome.case is not None]
    columns = forecast(cases, efficiency)
    rows = iter(range(len(cases)))
    seen: set[str] = set()
    for place, outcome in enumerate(compared):
        if outcome.case is None:
            continue
        row = next(rows)
        predicted = RunPrediction(
            seconds=float(columns.seconds[row]),
            low_seconds=float(columns.low_seconds[row]),
            high_seconds=float(columns.high_seconds[row]),
            memory_bytes=float((columns.comparable_bytes if outcome.run.measured_mem_gb else columns.peak_bytes)[row]),
            fit_probability=float(columns.fit_probability[row]),
            recompute=RECOMPUTE_WORDS[int(columns.recompute[row])],
        )
        group = outcome.run.dup_group
        compared[place] = Outcome(
            run=outcome.run, case=outcome.case, predicted=predicted, failed=failed, counted=group not in seen
        )
        seen |= {group} - {""}
    return tuple(compared)


def prepared(run: PublishedRun, *, failed: bool, quality: Collection[str], kinds: Collection[str]) -> Outcome:
    """Return the outcome of a run before it is predicted: with its case, or why there is none."""
    if run.quality and quality and run.quality not in quality:
        return Outcome(run=run, failed=failed, skipped=Skip("not_asked_for", f"quality {run.quality} is not asked for"))
    if run.kind and kinds and run.kind not in kinds:
        return Outcome(run=run, failed=failed, skipped=Skip("not_asked_for", f"kind {run.kind} is not asked for"))
    try:
        case = case_of(run)
    except SkippedRunError as error:
        return Outcome(run=run, failed=failed, skipped=error.skip)
    unable = [pool.gpu.name for pool in case.pools if not computes(pool.gpu, case.job.precision)]
    if unable:
        words = f"{unable[0]} cannot compute in {case.job.precision}"
        return Outcome(run=run, failed=failed, skipped=Skip("unable_gpu", words))
    return Outcome(run=run, failed=failed, case=case)


def memory_unit(run: PublishedRun) -> float:
    """Return the bytes of the unit in which a run's memory is given: GB where it says so and not GiB. nanotron prints
    GiB as GB (huggingface/nanotron@31aa4c4:src/nanotron/helpers.py divides by 1024^3), torchtitan and PyTorch's tools
    too."""
    words = run.mem_kind + run.framework
    return GIGA if "GB" in words and "GiB" not in words and not re.search("nanotron|torchtitan", words) else GIBIBYTE


def memory_kind(run: PublishedRun) -> str:
    """Return what a run's memory is: its unit, and whether tensors took it, the allocator reserved it or the process
    held it."""
    unit = "GB" if memory_unit(run) == GIGA else "GiB"
    words = run.mem_kind.casefold()
    definition = next((name for word, name in MEMORY_DEFINITIONS if word in words), "not stated")
    place = ", one rank" if "logging rank" in words or "last global rank" in words else ""
    return f"{unit} {definition}{place}"


def measured_bytes(run: PublishedRun) -> float:
    """Return the measured memory of a run in bytes; 0 where it is not published."""
    return (run.measured_mem_gb or 0.0) * memory_unit(run)


def measured_runs(runs: Sequence[PublishedRun], efficiency: Efficiency, name: str) -> tuple[Measured, ...]:
    """Return the plans of a table's runs with their seconds; `name` stands for the table in messages. Raises SpecError
    with every row that cannot be predicted, and why, or that has no time."""
    problems: list[Problem] = []
    cases: list[Case] = []
    for number, run in enumerate(runs, start=2):
        outcome = prepared(run, failed=False, quality="", kinds=())
        if outcome.case is None or not run.seconds:
            why = outcome.skipped.words if outcome.skipped else "it has no time"
            problems.append(Problem(f"{name}, line {number}", why, "complete the row, or leave it out"))
        else:
            cases.append(outcome.case)
    reject(problems)
    return tuple(
        Measured(plan=plan, seconds=case.run.seconds or 0.0, name=f"{name}, run {case.run.row_id}")
        for case, plan in zip(cases, plans_of(cases, efficiency), strict=True)
    )


def plans_of(cases: Sequence[Case], efficiency: Efficiency) -> tuple[Plan, ...]:
    """Return the plans that some cases ran, with the recomputation that `forecast` takes where none is published."""
    levels = forecast(cases, efficiency).recompute.tolist()
    return tuple(_plan(case, level) for case, level in zip(cases, levels, strict=True))


def _plan(case: Case, level: int) -> Plan:
    if case.plan is not None:
        return case.plan
    row = strategies([at_level(case, level)])
    return plan_of_row(row, case.model, case.job, Cluster(pools=(case.pool,)), case.pool.gpu.name)


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
