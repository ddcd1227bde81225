"""A user's own plan on a terminal: its prediction, what is wrong with it, and how far it is from the best."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shardwright.errors import Problem
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Evaluation, Origin
from shardwright.reports.text.explain import changes, gaps, reasons, shortages, verdict
from shardwright.reports.text.ladder import Rung, ladder_text
from shardwright.reports.text.layout import WIDTH, listed, table, wrapped
from shardwright.reports.text.plans import plan_text, plans_table, predicted
from shardwright.reports.text.problems import merged
from shardwright.reports.text.strategy import SETTINGS
from shardwright.reports.text.terminal import assumptions_text, heading
from shardwright.reports.words import in_words
from shardwright.units import clock

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
        wrapped(f"Against the best: {stand.words}", "", width),
        ladder_text(mine, rungs, width, measured),
        "" if best is None else _comparison(mine, best, width),
        listed("Not counted: moves time or memory, and is not modelled", origin.uncounted, width),
        listed("How the launch was read", origin.notes, width),
        assumptions_text(mine.model, mine.cluster, width),
    ]
    return "\n\n".join(part for part in parts if part)


def _memory_text(mine: Plan, remedies: Sequence[str], width: int) -> str:
    missing = [stage.words for stage in shortages(mine)]
    if missing:
        return listed("Does not fit", [*missing, *(remedies or ("no single change makes it fit",))], width)
    sure = predicted(mine).fit_probability
    if sure < SURE_FIT:
        return listed(f"Fits with probability {sure:.0%} only", remedies or ("no single change makes it safe",), width)
    return ""


def _comparison(mine: Plan, best: Plan, width: int) -> str:
    """Return the two plans side by side: settings, seconds, reasons."""
    changed = changes(mine, best)
    if not changed:
        return ""
    total = predicted(mine).iteration_seconds, predicted(best).iteration_seconds
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
            ),
            table(("time", "yours", "the best", "difference"), terms, words=("time",)),
            listed("Why", reasons(mine, best), width) or "Why\n  - nothing differs by more than 0.2%",
            "The best\n" + plans_table([best], width),
        )
    )
