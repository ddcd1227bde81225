"""The answer of a search in about fifteen lines: what to run, how fast and how sure, what it costs, what next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from shardwright.cost.trust.rarity import UNREPORTED, rare_in
from shardwright.plans.findings import MixedPlans, NoTrainer
from shardwright.plans.mesh import has_equal_shares, is_mesh
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Nearby, Ranking, Usual
from shardwright.reports.text import mixed, outcome, programs, strategy
from shardwright.reports.text.explain import kinds_words, passed_over_words, unit, with_options_words
from shardwright.reports.text.layout import WIDTH, labelled
from shardwright.reports.text.outcome import effect_words
from shardwright.reports.text.plans import FAR, whole_run
from shardwright.reports.text.terminal import against_rules, heading
from shardwright.reports.words import in_words
from shardwright.spec.catalog.frameworks import OWN
from shardwright.units import clock, format_bytes, format_count

FURTHER = "--details has the other plans, memory by stage, where the time goes, what was assumed"
COLUMN = 10
NAMED = 3  # kinds of plans that a proof leaves out, of more than are told in full
FRAMEWORK = r"^--framework[=\n].*$"  # among the words of a command, one a line
ANY = "any"  # the framework of the command line that is every one that runs the model
ONE_FILE = {"megatron": "run.sh"}  # of targets that write a single file


def first_screen(ranking: Ranking, out: Path | None = None, width: int = WIDTH, asked: Sequence[str] = ()) -> str:
    """Return the first screen of a search that found plans; `out` is the file that the best one was written to, `asked`
    the words of the command."""
    best = ranking.best
    lines = [labelled(name, words, width, column=COLUMN) for name, words in _answers(ranking)]
    instead = None if ranking.no_trainer is None else _instead(ranking.no_trainer, asked)
    further = (instead or next_step(out, trainers_of_best(ranking)), ("more", FURTHER))
    after = [labelled(name, words, width, column=COLUMN) for name, words in further]
    return "\n".join([heading(best.model, best.cluster, best.job, width), "", *lines, "", *after])


def _answers(ranking: Ranking) -> Iterator[tuple[str, str]]:
    best = ranking.best
    yield from plan_answers(best, whole_run(best), mixed.idle_sentence(ranking), ranking.usual)
    rows = (
        ("how good", "; ".join(_good(ranking))),
        ("not proved", _left_out(ranking)),
        ("program", programs.program_words(ranking)),
        ("nearby", "; ".join(map(partial(_near, best), ranking.nearby))),
    )
    yield from (row for row in rows if row[1])


def plan_answers(best: Plan, whole: str, idle: str = "", usual: Usual | None = None) -> Iterator[tuple[str, str]]:
    """Return what there is to say of a plan alone, `whole` the words of its whole run, `idle` of the GPUs without,
    `usual` the best plan without what is hardly tested of it."""
    known = best.predicted.measured
    rows = (
        ("run", f"{mixed.gpu_words(best)}: {strategy.degrees_words(best)}; {runs_on(best)}"),
        ("experts", strategy.products_words(best)),
        ("idle", idle),
        ("measured", "" if known is None else outcome.measured_words(known)),
        ("speed", _speed(best)),
        ("whole run", whole),
        ("price", "; ".join(_prices(best))),
        ("memory", _memory(best)),
        ("bottleneck", outcome.bottleneck(best.predicted)),
        ("how sure", "; ".join(_sure(best, usual))),
    )
    yield from (row for row in rows if row[1])


def runs_on(plan: Plan) -> str:
    """Return which software runs a plan, and which one it is priced for."""
    if _ordinary(plan):
        return f"priced for {plan.job.framework}"
    unequal = "shares" if plan.layered else "stages" if len(plan.replicas) == 1 else "replicas"
    if plan.job.framework == OWN:
        return f"priced for `shardwright train`, which alone runs unequal {unequal}"
    return f"`shardwright train` alone runs unequal {unequal}; priced for {plan.job.framework}"


def _ordinary(plan: Plan) -> bool:
    """Whether a trainer beside our own runs a plan: uniform ones, and those for Megatron-LM."""
    by_megatron = plan.job.framework == "megatron" and is_mesh(plan)
    return plan.uniform or by_megatron or (plan.job.framework != OWN and has_equal_shares(plan))


def _speed(best: Plan) -> str:
    prediction = best.predicted
    of = partial(clock, like=prediction.iteration_seconds)
    low, high = prediction.interval
    return (
        f"{of(prediction.iteration_seconds)} an iteration (80% sure: {of(low)} to {of(high)}), "
        f"{format_count(prediction.tokens_per_second)} tokens/s, MFU {prediction.mfu:.1%}"
    )


def _prices(best: Plan) -> Iterator[str]:
    """Yield what a GPU of each type costs an hour, and who asks that since when."""
    for pool in best.cluster.pools:
        price, dollars = pool.price, pool.dollars_per_node_hour
        if pool.gpu.name not in best.gpus_by_type or price is None or dollars is None:
            continue
        name = f"{pool.gpu.name} " if len(best.gpus_by_type) > 1 else ""
        market = "spot" if pool.spot else "on demand"
        whose = f"{price.seller}, {price.date}" if price.seller else "yours" if price.source == "user" else price.date
        yield f"{name}${dollars / pool.gpus_of_machine:.2f} a GPU and hour {market} ({whose})"


def _memory(best: Plan) -> str:
    prediction = best.predicted
    fullest = outcome.fullest(prediction)
    parts = [
        f"fullest GPU {format_bytes(fullest.total_bytes)} of {format_bytes(fullest.capacity_bytes)}",
        outcome.host_words(prediction),
        f"fits with probability {prediction.fit_probability:.0%}",
    ]
    return "; ".join(part for part in parts if part)


def _sure(best: Plan, usual: Usual | None) -> Iterator[str]:
    prediction = best.predicted
    yield from (words for words in [effect_words(prediction.site)] if words)
    record = prediction.measured.record if prediction.measured else None
    if record is not None and prediction.mfu > record.mfu:
        yield (
            f"MFU {prediction.mfu:.1%} is above the record of its class: {record.mfu:.1%}, {record.model} on "
            f"{record.gpus} {record.gpu}, the best of {record.runs:,} published runs"
        )
    rare = [in_words(switch) for switch in rare_in(best) if switch.axis != UNREPORTED]
    if rare:
        slower = "slower" if unit(best) == "time" else "dearer"
        without = f", {usual.loss:.1%} {slower} without" if usual else ""
        yield f"hardly tested: {' and '.join(rare)}{without}"
    if prediction.evidence:
        run = prediction.evidence[0]
        far = " (far from this plan)" if run.distance > FAR else ""
        yield f"nearest published run{far}: {run.model} on {run.gpus} {run.gpu}, predicted {run.error:+.0%} off"


def _good(ranking: Ranking) -> Iterator[str]:
    gap, best = ranking.search.gap, ranking.best
    near = "" if gap is None else "the best" if gap < 5e-5 else f"within {gap:.2%} of the best"
    early = "stopped early: " if ranking.search.interrupted else ""
    rows = (
        against_rules(ranking),
        kinds_words(ranking.kinds, best),
        f"{early}proved {near} of {ranking.search.candidates:,} candidates" if near else "",
        passed_over_words(ranking.passed_over),
        with_options_words(ranking.with_options),
    )
    yield from (row for row in rows if row)


def _left_out(ranking: Ranking) -> str:
    """Return what a proof does not cover: a few kinds of plans, and how many more there are; "" where it covers all."""
    kinds = ranking.search.not_covered if ranking.search.gap is not None else ()
    shown = kinds if len(kinds) <= NAMED + 1 else kinds[:NAMED]
    more = [f"{len(kinds) - len(shown)} other kinds that --details names"] if len(shown) < len(kinds) else []
    mixes = [in_words(kind) for kind in shown if isinstance(kind, MixedPlans)]
    others = [*(in_words(kind) for kind in shown if not isinstance(kind, MixedPlans)), *more]
    return "; ".join([*mixes, *(["plans with " + "; ".join(others)] if others else [])])


def _near(best: Plan, row: Nearby) -> str:
    speed = f"{format_count(row.tokens_per_second)} tokens/s ({row.gain:+.0%}"
    if row.shares:
        shares = " and ".join(map(str, row.shares))
        return f"this batch on unequal replicas, of {shares} micro-batches: {speed}; --framework train runs them)"
    if row.gpus != best.cluster.gpus:
        return f"{row.gpus} GPUs: {speed} a GPU)"
    return f"batch {row.global_batch}: {speed})"


def _instead(nobody: NoTrainer, asked: Sequence[str]) -> tuple[str, str] | None:
    """Return the command that was asked, for a framework that runs the model; None where there is none."""
    if not nobody.able or not asked:
        return None
    framework = nobody.able[0] if len(nobody.able) == 1 else ANY
    words = re.sub(FRAMEWORK, f"--framework\n{framework}", "\n".join(asked), flags=re.MULTILINE).split("\n")
    return "next", f"nobody that we know runs this plan; shardwright {shlex.join(words)}"


def next_step(out: Path | None, trainers: tuple[str, ...] | None = None) -> tuple[str, str]:
    """Return the command to type next, under its name. `trainers` run the plan, the one to take first; where that was
    not asked (None), the command that says who does."""
    plan = "plan.json" if out is None else str(out)
    keep = "--out plan.json keeps the plan; then " if out is None else ""
    if trainers is None:
        return "next", f"{keep}shardwright check {plan}"
    if not trainers:
        return "next", "nobody that we know runs this plan: `shardwright support --model MODEL` says who runs the model"
    if trainers[0] == OWN:
        return "next", f"{keep}shardwright train {plan} --data corpus.bin"
    folder = ONE_FILE.get(trainers[0], "launch/")
    return "next", f"{keep}shardwright export {plan} --to {trainers[0]} -o {folder}"


def trainers_of_best(ranking: Ranking) -> tuple[str, ...] | None:
    """Return who runs the best plan of a search, None where that was not asked."""
    if ranking.no_trainer is not None:
        return ()
    return ranking.trainers[0] if ranking.trainers else None
