"""Whether some plan of a setting on given machines takes no longer than asked for: branch and bound over its regions.

Unlike the search by time, which has to find good plans first, it asks the integer program of each region for the one
time that matters, and makes plans only where that does not say no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from shardwright.arrays import Ints
from shardwright.search.mixed.branch_and_bound.effort import spent_of
from shardwright.search.mixed.branch_and_bound.tree import Branched, Pruned, Step, TreeNode, Undecided, least_bound
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.heuristics.attempts import Drafter, attempt, solve_within
from shardwright.search.mixed.master.answer import Infeasible, Solved
from shardwright.search.mixed.master.regions import bounded, parts
from shardwright.search.mixed.tables.region import Region
from shardwright.search.space.axes import Space

MOST_REGIONS = 24  # looked at for one setting on the same machines


Part = tuple[Region, Ints]  # with the compositions that it may have


@dataclass(slots=True)
class _Question:
    by: Drafter
    used: tuple[int, ...]
    cutoff: Callable[[], float]
    gap: float
    offer: Callable[[Draft], float]
    looked: int = 0


def decided(
    by: Drafter,
    space: Space,
    roots: list[Region],
    used: tuple[int, ...],
    cutoff: Callable[[], float],
    gap: float,
    offer: Callable[[Draft], float],
) -> tuple[float, int]:
    """Return seconds, `cutoff` at most, that no plan of an instance on all of the types `used` beats, and how many
    regions were looked at. Plans that may take less than `cutoff` are offered, which may lower it; an offer returns the
    exact seconds."""
    counts = by.instance.compositions(space)
    run = _Question(by, used, cutoff, gap, offer)
    bound = least_bound(
        [(by.instance.quickest(root), (root, counts)) for root in roots],
        partial(_processed, run),
        cutoff=cutoff,
        spent=lambda processed: spent_of(processed, MOST_REGIONS),
    )
    return bound, run.looked


def _processed(run: _Question, node: TreeNode[Part]) -> Step[Part]:
    """Bound a region, ask its integer program for a plan within the cutoff, and branch on its parts."""
    run.looked += 1
    (region, counts), instance = node.part, run.by.instance
    found = bounded(instance, region, counts, known=node.bound, cutoff=run.cutoff(), longest=run.cutoff())
    if isinstance(found, Infeasible):
        return Pruned()
    answer = solve_within(run.by, region, found.columns, run.cutoff())
    if isinstance(answer, Infeasible):
        return Pruned()
    if isinstance(answer, Solved):
        run.offer(answer.solution)
    split = [part for part in parts(instance, region, run.cutoff()) if part.used in ((), run.used)]
    if not split:
        attempt(run.by, region, found.seconds, found.columns, run.offer, run.cutoff, run.gap)
        return Undecided(found.seconds)
    rest = found.columns.counts_within(run.cutoff())
    return Branched([(max(found.seconds, instance.quickest(part)), (part, rest)) for part in split])
