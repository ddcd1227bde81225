"""From a graph and machines to a program: rules and shares chosen together.

At fixed shares the integer program gives the best rules; at fixed rules the linear program gives the best shares. The
two take turns from several starts until neither improves, for one start alone can end far from the best. Then shares
become whole units, and the program is priced with those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shardwright.errors import bad
from shardwright.progress import tell
from shardwright.synthesis.baselines import Rules, data_parallel, fsdp, hap
from shardwright.synthesis.best_rules import best, relaxed, time_of
from shardwright.synthesis.choice import Choice
from shardwright.synthesis.decisions import Decisions, decisions
from shardwright.synthesis.extract import program, replicated_share, unknown
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.machines import Machines
from shardwright.synthesis.memory import alone, fits, rank_bytes
from shardwright.synthesis.prices import Prices, Shares, prices
from shardwright.synthesis.program import Program
from shardwright.synthesis.properties import COMPUTE, FEATURES, STATE, Sharded
from shardwright.synthesis.ratios import best_shares
from shardwright.synthesis.remedies import by_memory, remedies
from shardwright.synthesis.rounding import rounded

TURNS = 6
ENOUGH = 1e-4  # relative; what improves less ends the turns
GAP = 2e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """A choice of rules at exact shares, those shares rounded, and the choice priced with them."""

    these: Decisions
    exact: Choice
    shares: Shares
    choice: Choice

    @property
    def rounding_loss(self) -> float:
        """Relative time lost to whole units."""
        return self.choice.seconds.total / self.exact.seconds.total - 1.0


def synthesize(graph: Graph, net: Machines, *, gap: float = GAP, overlap: bool = True) -> Program:
    """Return the fastest program found for `graph` on `net`. Raises `SpecError` if none fits the memory."""
    found = search(graph, net, gap=gap, overlap=overlap)
    made = program(graph, found.these, found.choice, net, found.shares)
    notes = {
        "rounding_loss": found.rounding_loss,
        "replicated_flops": replicated_share(found.these, found.choice),
        "warnings": unknown(found.these),
        "machines": net.machine_of.tolist(),
        "memory_bytes": rank_bytes(graph, made, found.these.state).tolist(),
    }
    return replace(made, notes=notes)


def search(graph: Graph, net: Machines, *, gap: float = GAP, overlap: bool = True) -> Synthesis:
    """Return the best rules and shares found. Raises `SpecError` if none fits the memory."""
    found = best_of(decisions(graph, ranks=net.ranks, state_ratio=True), net, gap=gap, overlap=overlap)
    if found is None:
        raise bad("spmd", "no program fits the memory of the devices", remedies(graph, net))
    return found


def best_of(
    these: Decisions, net: Machines, *, gap: float = GAP, overlap: bool = True, branch: bool = True
) -> Synthesis | None:
    """Return the best rules and shares found, None if none fits the memory. Without `branch` the bound is that of the
    linear relaxation, and takes a fraction of the time."""
    tries: list[Callable[[], tuple[Choice, Shares] | None]]
    roomy = [start for start in starts(net) if _has_room(these, net, start)]
    tries = [partial(turns, these, net, start, gap=gap, overlap=overlap) for start in roomy]
    tries += [
        partial(_limited, these, net, start, rules, gap=gap, overlap=overlap)
        for start in starts(net)[:2]
        for rules in (data_parallel, fsdp, hap)
    ]
    found = []
    for number, attempt in enumerate(tries, start=1):
        found.append(attempt())
        tell(number / (len(tries) + 1))
    if not any(found):
        found = [turns(these, net, by_memory(net), gap=gap, overlap=overlap)]
    kept = [(one, in_whole_units(these, net, *one, overlap=overlap)) for one in found if one is not None]
    kept = [one for one in kept if fits(these, one[1][0].rules, net, one[1][1])]
    if not kept:
        return None
    (exact, _), (choice, shares) = min(kept, key=lambda one: one[1][0].seconds.total)
    final = _bounded(these, net, choice, shares, gap=gap, overlap=overlap, branch=branch)
    return Synthesis(these=these, exact=exact, shares=shares, choice=final)


def _bounded(
    these: Decisions, net: Machines, choice: Choice, shares: Shares, *, gap: float, overlap: bool, branch: bool
) -> Choice:
    """Return the choice, or a better one, with the bound of all choices at its final shares: the bound that it came
    with is of the shares that the last integer program had, before they were improved and rounded."""
    final = best(these, prices(these, net, shares, overlap=overlap), gap=gap, hint=choice.hint, branch=branch)
    if final is None:
        bound = relaxed(these, prices(these, net, shares, overlap=overlap)).bound_seconds
        return replace(choice, bound_seconds=min(bound, choice.seconds.total))
    if final.seconds.total < choice.seconds.total:
        return final
    return replace(choice, bound_seconds=min(final.bound_seconds, choice.seconds.total))


def in_whole_units(
    these: Decisions, net: Machines, choice: Choice, shares: Shares, *, overlap: bool = True
) -> tuple[Choice, Shares]:
    """Return shares in whole units, and the choice priced with them."""
    whole = whole_units(these, shares)
    costs = prices(these, net, whole, overlap=overlap)
    return replace(choice, seconds=time_of(these, costs, choice.rules, choice.sent)), whole


def _limited(
    these: Decisions, net: Machines, shares: Shares, rules: Rules, *, gap: float, overlap: bool
) -> tuple[Choice, Shares] | None:
    """Return what others would run: what is found must never be slower than that, not even by the gap."""
    costs = prices(these, net, shares, overlap=overlap)
    choice = best(these, costs, gap=gap, allowed=rules(these, costs), branch=False)
    return None if choice is None else (choice, shares)


def starts(net: Machines) -> list[Shares]:
    """Return the shares from which the turns start: proportional to speed, even, half way between, and the fastest kind
    of devices alone; one if all devices are alike. State is shared evenly at first."""
    rows = [net.proportional(), net.even()]
    rows.append(tuple(float(one) for one in np.mean(rows, axis=0)))
    fastest = net.flops_per_second >= net.flops_per_second.max()
    rows.append(tuple((fastest / fastest.sum()).tolist()))
    return [Shares(exact={COMPUTE: row, FEATURES: row, STATE: net.even()}) for row in dict.fromkeys(rows)]


def turns(
    these: Decisions, net: Machines, start: Shares, *, gap: float, overlap: bool = True
) -> tuple[Choice, Shares] | None:
    """Return the best choice and shares to which turns from one start lead."""
    shares, found, hint = start, None, None
    for _ in range(TURNS):
        costs = prices(these, net, shares, overlap=overlap)
        choice = best(these, costs, gap=gap, hint=hint, branch=False)
        hint = choice.hint if choice else None
        if choice is None or (found and choice.seconds.total > found[0].seconds.total * (1 - ENOUGH)):
            break
        found = (choice, shares)
        better = _reshared(these, net, choice, shares, costs, overlap=overlap)
        if better is None or better[0].seconds.total > choice.seconds.total * (1 - ENOUGH):
            break
        found, shares = better, better[1]
    return found


def _reshared(
    these: Decisions, net: Machines, choice: Choice, shares: Shares, costs: Prices, *, overlap: bool
) -> tuple[Choice, Shares] | None:
    """Return the choice at its best shares. What it exchanges depends on the shares, so the linear program is asked
    again until it agrees with itself."""
    found = None
    for _ in range(TURNS):
        new = best_shares(these, choice, net, shares, costs)
        if new is None:
            return found
        costs = prices(these, net, new, overlap=overlap)
        if not fits(these, choice.rules, net, new):
            return found
        priced = replace(choice, seconds=time_of(these, costs, choice.rules, choice.sent))
        if found is not None and priced.seconds.total > found[0].seconds.total * (1 - ENOUGH):
            return found
        found, shares = (priced, new), new
    return found


def _has_room(these: Decisions, net: Machines, start: Shares) -> bool:
    """Return whether the devices that are at work have room together for what one would hold alone; all may always
    be tried."""
    at_work = np.array(start.row(COMPUTE)) > 0
    room = sum(device.memory_bytes for device, there in zip(net.device_of, at_work, strict=True) if there)
    return bool(at_work.all() or alone(these).max() <= room)


def whole_units(these: Decisions, shares: Shares) -> Shares:
    """Return the shares with whole units for every cut that a program of this choice can have."""
    rules = [rule for one in these.decisions for rule in one.rules]
    rules += [rule for some in these.views.values() for rule in some]
    held = {one for rule in rules for one in (*rule.inputs, *rule.outputs) if isinstance(one, Sharded)}
    keys = sorted({(one.ratio, one.units) for one in held})
    sizes = {(ratio, units): _units(shares.row(ratio), units) for ratio, units in keys}
    return Shares(exact=shares.exact, sizes=sizes)


def _units(shares: tuple[float, ...], units: int) -> tuple[int, ...]:
    return tuple(int(one) for one in rounded(np.asarray(shares), units))
