"""What was assumed, as lines to show."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.reports.words import flagged
from shardwright.spec.assumption import Assumption
from shardwright.spec.cluster import NodePool
from shardwright.spec.offers import Offer


def pools_assumed(pools: Iterable[NodePool]) -> list[str]:
    """Return what was assumed of machines, each once."""
    return list(dict.fromkeys(f"{pool.gpu.name}: {assumed}" for pool in pools for assumed in pool.assumed))


def offers_assumed(offers: Iterable[Offer], terms: Iterable[Assumption]) -> list[str]:
    """Return what was assumed of machines to rent and of the terms, each once."""
    lines = [f"{offer.pool.gpu.name}: {assumed}" for offer in offers for assumed in offer.assumed]
    return [flagged(words) for words in dict.fromkeys([*lines, *map(str, terms)])]
