"""What hardly any published run has, in words: why a faster plan does not come first."""

from __future__ import annotations

from shardwright.cost.trust.rarity import rare_beside
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import PassedOver
from shardwright.reports.text.explain import unit
from shardwright.reports.words import in_words

SMALLEST_SAVING = 0.0005  # a part of the time that is worth a word; chosen


def passed_over_words(better: PassedOver | None) -> str:
    """Return what a better plan has and would save: ZeRO-2 (5 of 3,103 published runs) would take 0.40% less time,
    but hardly any run has it; --set sharding=zero2 asks for it. Nothing where there is none worth a word."""
    if better is None or better.saving < SMALLEST_SAVING:
        return ""
    names = " and ".join(map(in_words, better.switches))
    asked = " ".join(f"--set {pin}" for pin in better.pins)
    them = "it" if len(better.switches) == 1 else "them"
    words = f"{names} would take {better.saving:.2%} less {unit(better.plan)}, but hardly any run has {them}"
    return f"{words}; {asked} asks for it" if asked else words


def rare_words(plan: Plan, best: Plan) -> str:
    """Return what a plan has, and the best has not, that hardly any published run has; nothing where it has none."""
    return " and ".join(map(in_words, rare_beside(plan, best)))
