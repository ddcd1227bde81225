"""Which buckets have their optimizer state in host memory."""

from __future__ import annotations

from collections.abc import Sequence


def in_host(elements: Sequence[int], share: float) -> frozenset[int]:
    """Return which of the buckets, each of so many `elements`, hold at least a `share` of all elements between them:
    the largest, and last the smallest that is enough. None of them could be left out."""
    left = share * sum(elements)
    ordered = sorted(range(len(elements)), key=lambda index: (-elements[index], index))
    chosen: set[int] = set()
    for place, index in enumerate(ordered):
        if left <= 0:
            break
        enough = [other for other in ordered[place:] if elements[other] >= left]
        taken = enough[-1] if enough else index
        chosen.add(taken)
        left -= elements[taken]
    return frozenset(chosen)
