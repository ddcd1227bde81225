"""Rules and shares in turns: at fixed shares the integer program gives the best rules, at fixed rules the linear
program gives the best shares.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from shardwright.synthesis.baselines import Rules, everything
from shardwright.synthesis.best_rules import best
from shardwright.synthesis.choice import Choice, Hint, time_of
from shardwright.synthesis.decisions import Decisions
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.memory import fits
from shardwright.synthesis.neighbourhoods import improved
from shardwright.synthesis.prices import Prices, RankShares, prices
from shardwright.synthesis.ratios import best_shares

TURNS = 6
ENOUGH = 1e-4  # relative; what improves less ends the turns
CLOSE = 0.02  # of the bound: neighbourhoods are not looked at


Position: TypeAlias = tuple[tuple[Any, ...], ...]
"""Shares, told apart to 1e-6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProblem:
    """What to choose, for which machines, how close to the bound, whether what can wait is hidden, and among which
    rules."""

    these: Decisions
    net: Machines
    gap: float
    overlap: bool
    rules: Rules = everything

    def prices(self, shares: RankShares) -> Prices:
        """Return the prices at some shares."""
        return prices(self.these, self.net, shares, overlap=self.overlap)

    def best(self, shares: RankShares, hint: Hint | None = None) -> Choice | None:
        """Return the best choice at some shares, None if none is found that fits."""
        costs = self.prices(shares)
        allowed = self.rules(self.these, costs)
        return best(self.these, costs, gap=self.gap, allowed=allowed, hint=hint, branch=False)

    def priced(self, choice: Choice, shares: RankShares) -> Choice:
        """Return the choice priced at other shares."""
        return replace(choice, seconds=time_of(self.these, self.prices(shares), choice.rules, choice.sent))

    def fits(self, choice: Choice, shares: RankShares) -> bool:
        """Return whether the choice fits the memory of all devices."""
        return fits(self.these, choice.rules, self.net, shares)


def turns(
    problem: ProgramProblem, start: RankShares, hint: Hint | None = None, seen: set[Position] | None = None
) -> tuple[Choice, RankShares] | None:
    """Return the best choice and shares to which turns from one start lead, None if nothing fits there. They end at
    shares that are among `seen`, from which others went on; those that they pass are added."""
    found: tuple[Choice, RankShares] | None = None
    shares = start
    seen = set() if seen is None else seen
    for _ in range(TURNS):
        if (position := _position(shares)) in seen:
            break
        seen.add(position)
        choice = problem.best(shares, hint)
        if choice is None or (found and not _better(choice, found[0])):
            break
        hint = choice.hint
        found = reshared(problem, choice, shares)
        if not _better(found[0], choice):
            break
        shares = found[1]
    return found


def polished(problem: ProgramProblem, choice: Choice, shares: RankShares) -> tuple[Choice, RankShares]:
    """Return what turns of branch and bound and shares lead to, where the bound leaves room; of neighbourhoods and
    shares, where branch and bound does not close it."""
    for _ in range(TURNS):
        if choice.gap <= CLOSE:
            break
        costs = problem.prices(shares)
        allowed = problem.rules(problem.these, costs)
        near = best(problem.these, costs, gap=problem.gap, allowed=allowed, hint=choice.hint, known=choice) or choice
        if near.gap > CLOSE:
            near = improved(problem.these, costs, near, allowed)
        if not _better(near, choice):
            break
        choice, shares = reshared(problem, near, shares)
    return choice, shares


def reshared(problem: ProgramProblem, choice: Choice, shares: RankShares) -> tuple[Choice, RankShares]:
    """Return the choice at its best shares. What it exchanges depends on the shares, so the linear program is asked
    again until it agrees with itself."""
    found, last = (choice, shares), np.inf
    for _ in range(TURNS):
        new = best_shares(problem.these, choice, problem.net, shares, problem.prices(shares))
        if new is None or not problem.fits(choice, new):
            break
        priced, shares = problem.priced(choice, new), new
        if priced.seconds.total > last * (1 - ENOUGH):
            break
        last = priced.seconds.total
        found = (priced, new) if last < found[0].seconds.total else found
    return found


def limited(
    problem: ProgramProblem, shares: RankShares, rules: Rules, *, below: float = np.inf, branch: bool = True
) -> tuple[Choice, RankShares] | None:
    """Return what others would run, None if it does not fit, is not allowed, or takes `below` seconds or more: what is
    found must never be slower than that, not even by the gap."""
    costs = problem.prices(shares)
    allowed = rules(problem.these, costs) & problem.rules(problem.these, costs)
    choice = best(problem.these, costs, gap=problem.gap, allowed=allowed, branch=branch, below=below)
    return None if choice is None else (choice, shares)


def _position(shares: RankShares) -> Position:
    return tuple((name, *np.round(row, 6).tolist()) for name, row in sorted(shares.exact.items()))


def _better(new: Choice, old: Choice) -> bool:
    return new.seconds.total <= old.seconds.total * (1 - ENOUGH)
