"""Whether some plan of a setting on given machines takes no longer than asked for: branch and bound over its regions.

Unlike the search by time, which has to find good plans first, it asks the integer program of each region for the one
time that matters, and makes plans only where that does not say no.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from shardwright.cost.strategies import Ints
from shardwright.search.mixed.drafts.draft import Draft
from shardwright.search.mixed.field import Field
from shardwright.search.mixed.heuristics.attempts import attempt, closing
from shardwright.search.mixed.master.regions import bounded, parts
from shardwright.search.mixed.tables.region import Region
from shardwright.search.space.axes import Space

MOST_REGIONS = 24  # looked at for one setting on the same machines


@dataclass(order=True, slots=True)
class _Node:
    bound: float
    order: int
    region: Region = dataclass_field(compare=False)
    counts: Ints = dataclass_field(compare=False)


def decided(
    each: Field,
    space: Space,
    roots: list[Region],
    used: tuple[int, ...],
    goal: Callable[[], float],
    gap: float,
    offer: Callable[[Draft], float],
) -> tuple[float, int]:
    """Return seconds, `goal` at most, that no plan of a setting on all of the types `used` beats, and how many regions
    were looked at. Plans that may take less than `goal` are offered, which may lower it; an offer returns the exact
    seconds."""
    counts = each.compositions(space)
    heap = [_Node(each.quickest(root), place, root, counts) for place, root in enumerate(roots)]
    heapq.heapify(heap)
    bound, looked, order = goal(), 0, len(heap)
    while heap and heap[0].bound < goal() and looked < MOST_REGIONS:
        node = heapq.heappop(heap)
        looked += 1
        found = bounded(each, node.region, node.counts, known=node.bound, ceiling=goal(), gap=0.0)
        if found is None:
            continue
        low, listing = found
        draft = closing(each, node.region, listing, goal())
        if draft is False:
            continue
        if isinstance(draft, Draft):
            offer(draft)
        split = [part for part in parts(each, node.region, goal()) if part.used in ((), used)]
        if not split:
            attempt(each, node.region, low, listing, offer, goal, gap)
            bound = min(bound, low)
            continue
        rest = listing.counts_within(goal())
        for part in split:
            order += 1
            heapq.heappush(heap, _Node(max(low, each.quickest(part)), order, part, rest))
    return min([bound, goal(), *(node.bound for node in heap)]), looked
