"""From a graph and machines to a program: rules and shares chosen together.

At fixed shares the integer program gives the best rules, at fixed rules the linear program gives the best shares. The
two take turns from several starts, for one start alone can end far from the best, and what others would run is a
candidate. Then shares become whole units, and the program is priced with those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from shardwright.cost.frameworks.overheads import launched_seconds
from shardwright.errors import bad
from shardwright.progress import tell, within
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.synthesis.baselines import Rules, data_parallel, everything, fsdp, hap, remedies
from shardwright.synthesis.best_rules import best, relaxed
from shardwright.synthesis.choice import Choice, Hint, sent_by, time_of
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.extract import program, replicated_share, unknown
from shardwright.synthesis.graph import FREE, Graph, Sharded
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.memory import alone, fits, rank_bytes
from shardwright.synthesis.neighbourhoods import improved
from shardwright.synthesis.prices import Prices, RankShares, prices
from shardwright.synthesis.program import Program
from shardwright.synthesis.ratios import best_shares, by_memory, rounded, starts

GAP = 2e-3
POLISHED = 4  # of what turns lead to, the fastest
FAR = 0.2  # from the bound: then what other starts led to is polished too
FEW = 100  # decisions, which take a second to polish: so are those of all starts
NEAR = 0.12  # the bound: further from it a branch and bound takes long and closes little
TURNS = 6
ENOUGH = 1e-4  # relative; what improves less ends the turns
CLOSE = 0.02  # of the bound: neighbourhoods are not looked at
Position: TypeAlias = tuple[tuple[Any, ...], ...]  # shares, told apart to 1e-6


@record
class Synthesis:
    """A choice of rules at exact shares, those shares rounded, and the choice priced with them."""

    space: Decisions
    exact: Choice
    shares: RankShares
    choice: Choice

    @property
    def seconds(self) -> float:
        """The time of a step in whole units."""
        return self.choice.seconds.total


def synthesize(
    graph: Graph, net: Machines, *, gap: float = GAP, overlap: bool = True, rules: Rules = everything
) -> Program:
    """Return the fastest program of `rules` found for `graph` on `net`. Raises `SpecError` if none fits the memory."""
    return written(graph, net, search(graph, net, gap=gap, overlap=overlap, rules=rules))


def written(graph: Graph, net: Machines, synthesis: Synthesis) -> Program:
    """Return the program for all of `graph` that stands for what was found."""
    made = program(graph, synthesis.space, synthesis.choice, net, synthesis.shares)
    notes = {
        "rounding_loss": coarse(synthesis.seconds) / coarse(synthesis.exact.seconds.total) - 1.0,
        "replicated_flops": replicated_share(synthesis.space, synthesis.choice),
        "warnings": unknown(synthesis.space),
        "machines": net.machine_of.tolist(),
        "devices": [device.name for device in net.device_of],
        "memory_bytes": coarse(rank_bytes(synthesis.space, synthesis.choice.rules, net, synthesis.shares)).tolist(),
    }
    seconds, bound = (launched(graph, net, seconds_of) for seconds_of in (made.seconds, made.bound_seconds))
    return replace(made, seconds=seconds, bound_seconds=bound, notes=notes)


def launched(graph: Graph, net: Machines, seconds: float) -> float:
    """Return the time of a step that devices could run in `seconds`, as the slowest host launches its operators: every
    rank runs them all, whatever the program."""
    operators = sum(node.op not in FREE for node in graph.nodes)
    host = operators * max(device.launch_seconds for device in net.device_of)
    return coarse(float(launched_seconds(np.asarray(seconds), host))) if host else seconds


def search(
    graph: Graph, net: Machines, *, gap: float = GAP, overlap: bool = True, rules: Rules = everything
) -> Synthesis:
    """Return the best rules and shares found. Raises `SpecError` if none fits the memory."""
    synthesis = best_of(decisions(graph, ranks=net.ranks, state_ratio=True), net, gap=gap, overlap=overlap, rules=rules)
    if synthesis is None:
        raise bad("spmd", "no program fits the memory of the devices", remedies(graph, net, rules))
    return synthesis


def best_of(
    space: Decisions, net: Machines, *, gap: float = GAP, overlap: bool = True, branch: bool = True,
    rules: Rules = everything,
) -> Synthesis | None:  # fmt: skip
    """Return the best choice of `rules` and shares found, None if none fits the memory. Parameters that are gathered
    are kept for the backward where that is faster than to gather them again, and fits: both are searched unless there
    is room for all. Without `branch` rivals are rounded from the linear relaxation, whose bound counts, which takes a
    fraction of the time."""
    roomy = bool(alone(space).max() <= net.limits.min())
    with within(0.0, 0.9 if roomy else 0.45):
        once = _best_of(replace(space, kept=True), net, gap=gap, overlap=overlap, branch=branch, rules=rules)
    if once is not None and roomy:
        twice: Synthesis | None = _gathered_again(space, net, once, overlap=overlap)
    else:
        with within(0.45, 0.9):
            twice = _best_of(space, net, gap=gap, overlap=overlap, branch=branch, rules=rules)
    if once is None or twice is None:
        return once or twice
    return twice if twice.seconds <= once.seconds * (1 + gap) else once


def _gathered_again(space: Decisions, net: Machines, synthesis: Synthesis, *, overlap: bool) -> Synthesis:
    """Return the choice with parameters gathered for each pass, which holds less."""
    rules, costs = synthesis.choice.rules, prices(space, net, synthesis.shares, overlap=overlap)
    sent = sent_by(space, costs, rules)
    choice = replace(synthesis.choice, sent=sent, seconds=time_of(space, costs, rules, sent))
    return replace(synthesis, space=space, choice=choice)


def _best_of(
    space: Decisions, net: Machines, *, gap: float, overlap: bool, branch: bool, rules: Rules
) -> Synthesis | None:
    problem = ProgramProblem(space=space, net=net, gap=gap, overlap=overlap, rules=rules)
    first = starts(space, net)
    choices = list(_from(problem, first)) or list(_from(problem, [by_memory(net)]))
    choices.sort(key=lambda choice: choice[0].seconds.total)
    for promising in choices[:POLISHED]:
        choices.append(polished(problem, *promising))
        if choices[-1][0].gap <= FAR and len(space.decisions) > FEW:
            break
    kept = [
        promising
        for promising in (in_whole_units(problem, *promising) for promising in choices)
        if promising is not None
    ]
    tell(0.6)
    for start, others in product(first[:2], (data_parallel, fsdp, hap)):
        least = min((promising.seconds for promising in kept), default=np.inf)
        rival = limited(problem, start, others, below=least, branch=branch)
        choices += [rival] if rival else []
        kept += [promising for promising in [rival and in_whole_units(problem, *rival)] if promising is not None]
    tell(0.8)
    if choices and not kept:
        kept = [promising for promising in [_others_in_whole_units(problem, *choices[0])] if promising is not None]
    return _bounded(problem, min(kept, key=lambda choice: choice.seconds), branch=branch) if kept else None


def _from(problem: ProgramProblem, several: Sequence[RankShares]) -> Iterator[tuple[Choice, RankShares]]:
    """Yield what turns from each start lead to."""
    hint, seen = None, set[Position]()
    for number, start in enumerate(several, start=1):
        choice = turns(problem, start, hint, seen)
        tell(0.5 * number / len(several))
        if choice is not None:
            hint = choice[0].hint
            yield choice


def _bounded(problem: ProgramProblem, synthesis: Synthesis, *, branch: bool) -> Synthesis:
    """Return what was found, or a better choice, with the bound of all choices at its final shares: the bound that it
    came with is of the shares that the last integer program had, before they were improved and rounded."""
    choice, branch = synthesis.choice, branch and synthesis.exact.gap <= NEAR
    final = problem.best(synthesis.shares, choice.hint, branch=branch, known=choice)
    if final is None:
        bound = relaxed(problem.space, problem.prices(synthesis.shares)).bound_seconds
        final = replace(choice, bound_seconds=min(bound, choice.seconds.total))
    return replace(synthesis, choice=final)


def in_whole_units(problem: ProgramProblem, choice: Choice, shares: RankShares) -> Synthesis | None:
    """Return the choice at shares in whole units, None if it does not fit there."""
    whole = whole_units(problem.space, shares)
    if not problem.fits(choice, whole):
        return None
    return Synthesis(space=problem.space, exact=choice, shares=whole, choice=problem.priced(choice, whole))


def _others_in_whole_units(problem: ProgramProblem, choice: Choice, shares: RankShares) -> Synthesis | None:
    """Return the best choice at the units that shares round to, where units are few and memory is scarce."""
    whole = whole_units(problem.space, shares)
    best = problem.best(whole, choice.hint)
    return None if best is None else Synthesis(space=problem.space, exact=choice, shares=whole, choice=best)


def whole_units(space: Decisions, shares: RankShares) -> RankShares:
    """Return the shares with whole units for every cut that a program of this choice can have."""
    rules = [rule for decision in space.decisions for rule in decision.rules]
    rules += [rule for some in space.views.values() for rule in some]
    held = {decision for rule in rules for decision in (*rule.inputs, *rule.outputs) if isinstance(decision, Sharded)}
    keys = sorted({(decision.ratio, decision.units) for decision in held})
    sizes = {(ratio, units): _units(shares.row(ratio), units) for ratio, units in keys}
    return RankShares(exact=shares.exact, sizes=sizes)


def _units(shares: tuple[float, ...], units: int) -> tuple[int, ...]:
    return tuple(int(amount) for amount in rounded(np.asarray(shares), units))


@record
class ProgramProblem:
    """What to choose, for which machines, how close to the bound, whether what can wait is hidden, and among which
    rules."""

    space: Decisions
    net: Machines
    gap: float
    overlap: bool
    rules: Rules = everything

    def prices(self, shares: RankShares) -> Prices:
        return prices(self.space, self.net, shares, overlap=self.overlap)

    def best(
        self, shares: RankShares, hint: Hint | None = None, *, branch: bool = False, known: Choice | None = None
    ) -> Choice | None:
        """Return the best choice at some shares, None if none is found that fits."""
        costs = self.prices(shares)
        allowed = self.rules(self.space, costs)
        return best(self.space, costs, gap=self.gap, allowed=allowed, hint=hint, branch=branch, known=known)

    def priced(self, choice: Choice, shares: RankShares) -> Choice:
        return replace(choice, seconds=time_of(self.space, self.prices(shares), choice.rules, choice.sent))

    def fits(self, choice: Choice, shares: RankShares) -> bool:
        return fits(self.space, choice.rules, self.net, shares)


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
        allowed = problem.rules(problem.space, costs)
        near = best(problem.space, costs, gap=problem.gap, allowed=allowed, hint=choice.hint, known=choice) or choice
        if near.gap > CLOSE:
            near = improved(problem.space, costs, near, allowed)
        if not _better(near, choice):
            break
        choice, shares = reshared(problem, near, shares)
    return choice, shares


def reshared(problem: ProgramProblem, choice: Choice, shares: RankShares) -> tuple[Choice, RankShares]:
    """Return the choice at its best shares. What it exchanges depends on the shares, so the linear program is asked
    again until it agrees with itself."""
    best, last = (choice, shares), np.inf
    for _ in range(TURNS):
        new = best_shares(problem.space, choice, problem.net, shares, problem.prices(shares))
        if new is None or not problem.fits(choice, new):
            break
        priced, shares = problem.priced(choice, new), new
        if priced.seconds.total > last * (1 - ENOUGH):
            break
        last = priced.seconds.total
        best = (priced, new) if last < best[0].seconds.total else best
    return best


def limited(
    problem: ProgramProblem, shares: RankShares, rules: Rules, *, below: float = np.inf, branch: bool = True
) -> tuple[Choice, RankShares] | None:
    """Return what others would run, None if it does not fit, is not allowed, or takes `below` seconds or more: what is
    found must never be slower than that, not even by the gap."""
    costs = problem.prices(shares)
    allowed = rules(problem.space, costs) & problem.rules(problem.space, costs)
    choice = best(problem.space, costs, gap=problem.gap, allowed=allowed, branch=branch, below=below)
    return None if choice is None else (choice, shares)


def _position(shares: RankShares) -> Position:
    return tuple((name, *np.round(row, 6).tolist()) for name, row in sorted(shares.exact.items()))


def _better(new: Choice, old: Choice) -> bool:
    return new.seconds.total <= old.seconds.total * (1 - ENOUGH)
