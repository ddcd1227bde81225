"""Runs predicted against what was measured of them, those of a site too."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from shardwright.cost.calibrate import Measured
from shardwright.cost.compute.efficiency import Efficiency, computes
from shardwright.cost.strategies import plan_of_row, strategies
from shardwright.errors import Problem, reject
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.cluster import Assumption, Cluster
from shardwright.units import GIBIBYTE, GIGA
from shardwright.validation.case import RECOMPUTATION, Case, case_of
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
    plans = plans_of(cases, efficiency)
    return tuple(
        Measured(plan=plan, seconds=case.run.seconds or 0.0, name=f"{name}, run {case.run.row_id}")
        for case, plan in zip(cases, plans, strict=True)
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
