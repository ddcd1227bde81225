"""A user's own plan on a terminal: its prediction, what is wrong with it, how far it is from the best, and the way
there, a change at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shardwright.errors import Problem, merged
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Evaluation, Origin
from shardwright.records import record
from shardwright.reports.text import outcome
from shardwright.reports.text.explain import changes, gaps, reasons, shortages, verdict
from shardwright.reports.text.layout import WIDTH, labelled, listed, paragraphs, table, wrapped
from shardwright.reports.text.plans import plan_text, plans_table
from shardwright.reports.text.strategy import SETTINGS
from shardwright.reports.text.terminal import assumptions_text, heading
from shardwright.reports.words import in_words
from shardwright.units import clock, format_bytes

SURE_FIT = 0.9  # the probability to fit that a search asks for by default


def evaluation_text(
    result: Evaluation,
    problems: Sequence[Problem],
    origin: Origin,
    width: int = WIDTH,
    rungs: Sequence[Rung] = (),
    measured: float | None = None,
) -> str:
    """Return the report of an evaluation; `rungs` lead from the plan to better ones, `measured` is what a step of it
    took the user."""
    mine, best = result.plan, result.best.plans[0] if result.best.plans else None
    stand = verdict(mine, best, legal=not problems, gap=result.best.search.gap)
    parts = [
        heading(mine.model, mine.cluster, mine.job, width),
        listed("Not legal", [str(problem) for problem in merged(problems)], width),
        plan_text(mine, "Your plan", width),
        _memory_text(mine, [in_words(remedy) for remedy in result.remedies], width),
        "" if result.best.no_trainer is None else wrapped(in_words(result.best.no_trainer), "", width),
        wrapped(f"Against the best: {stand.words}", "", width),
        ladder_text(mine, rungs, width, measured),
        "" if best is None else _comparison(mine, best, width),
        origin_text(origin, width),
        assumptions_text(mine.model, mine.cluster, width),
    ]
    return paragraphs(parts)


def origin_text(origin: Origin, width: int = WIDTH) -> str:
    """Return what of a launch is not counted, and how it was read; "" of a plan that no launch was read for."""
    uncounted = listed("Not counted: moves time or memory, and is not modelled", origin.uncounted, width)
    return paragraphs((uncounted, listed("How the launch was read", origin.notes, width)))


def _memory_text(mine: Plan, remedies: Sequence[str], width: int) -> str:
    missing = [stage.words for stage in shortages(mine)]
    if missing:
        return listed("Does not fit", [*missing, *(remedies or ("no single change makes it fit",))], width)
    sure = mine.predicted.fit_probability
    if sure < SURE_FIT:
        return listed(f"Fits with probability {sure:.0%} only", remedies or ("no single change makes it safe",), width)
    return ""


def _comparison(mine: Plan, best: Plan, width: int) -> str:
    """Return the two plans side by side: settings, seconds, reasons."""
    changed = changes(mine, best)
    if not changed:
        return ""
    total = mine.iteration_seconds, best.iteration_seconds
    of = partial(clock, like=total[1])
    shown = [gap for gap in gaps(mine, best) if max(gap.mine_seconds, gap.best_seconds) >= 0.0005 * total[1]]
    terms = [[gap.words, of(gap.mine_seconds), of(gap.best_seconds), of(gap.seconds, sign="+")] for gap in shown]
    terms.append(["an iteration", of(total[0]), of(total[1]), of(total[0] - total[1], sign="+")])
    return "\n\n".join(
        (
            table(
                ("setting", "yours", "the best"),
                [[SETTINGS[name], *pair] for name, pair in changed.items()],
                words=("setting",),
                width=width,
            ),
            table(
                ("time", "yours", "the best", "difference"), terms, words=("time",), spare=("difference",), width=width
            ),
            listed("Why", reasons(mine, best), width) or "Why\n  - nothing differs by more than 0.2%",
            "The best\n" + plans_table([best], width),
        )
    )


INDENT = " " * 26


@record
class Rung:
    """A step with the arguments that make it: to write, and to leave out (none where no arguments are known)."""

    plan: Plan
    free: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def flags(self) -> str:
        """The arguments in one line, ready to paste."""
        without = f"leave out {' '.join(self.removed)}" if self.removed else ""
        return "; ".join(part for part in (" ".join(self.added), without) if part)


def ladder_text(mine: Plan, rungs: Sequence[Rung], width: int, measured: float | None = None) -> str:
    """Return the steps from `mine` with the arguments that make each. `measured` seconds of the user's own
    run scale all times."""
    if not rungs:
        return "" if measured is None else _measured_words(mine, measured, width)
    scale = measured / mine.iteration_seconds if measured else 1.0
    like = scale * mine.iteration_seconds
    lines, before = ["One change at a time", _step("yours", mine, scale, like, width)], mine
    for number, rung in enumerate(rungs, 1):
        changed = "; ".join(
            f"{SETTINGS[name]} {old} → {new}" for name, (old, new) in changes(before, rung.plan).items()
        )
        words = f"{number}. {changed}{' (free)' if rung.free else ''}"
        lines.append(_step(words, rung.plan, scale, like, width))
        lines += [wrapped(rung.flags, INDENT, width)] if rung.flags else []
        before = rung.plan
    if measured:
        lines += ["", _measured_words(mine, measured, width, " The times above are scaled by that.")]
    return "\n".join(lines)


def _step(words: str, plan: Plan, scale: float, like: float, width: int) -> str:
    prediction = plan.predicted
    memory = format_bytes(outcome.fullest(prediction).total_bytes)
    seconds = clock(scale * prediction.iteration_seconds, like=like)
    return labelled(f"  {seconds}  {memory}", words, width, column=len(INDENT))


def _measured_words(mine: Plan, measured: float, width: int, more: str = "") -> str:
    prediction = mine.predicted
    seconds, (low, high) = prediction.iteration_seconds, prediction.interval
    inside = "inside" if low <= measured <= high else "outside"
    took, other = (clock(value, like=measured) for value in (measured, seconds))
    words = f"You measured {took}; {other} was predicted ({measured / seconds - 1.0:+.1%}), {inside} its interval."
    return wrapped(words + more, "", width)
