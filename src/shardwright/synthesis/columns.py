"""What a search decides as columns: the rules of all decisions, and the ways to convert the tensors between them.

Shares and machines change what columns cost, and nothing of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.synthesis.buckets import call_sizes
from shardwright.synthesis.collectives import possible
from shardwright.synthesis.decisions import Decisions, Use
from shardwright.synthesis.properties import Property, Sharded

BLOCKING, DEFERRED, EARLY = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionColumns:
    """Rules [R]: `decision` and `rule` name them, and those of a decision start at `first`; `cut` is the place among
    `cuts` of how its work is cut, `held` of how its first result is, -1 for neither.

    Ways [C]: of which `use`, from which property to which (`source`, `target`), and when that must be done (`kind`);
    `calls` is the part of a call that each is, 1 where it is sent alone. `pair` is the place of the size of the call,
    source and target among `pairs`."""

    decision: Ints
    rule: Ints
    first: Ints
    cut: Ints
    held: Ints
    cuts: tuple[Sharded, ...]
    use: Ints
    source: tuple[Property, ...]
    target: tuple[Property, ...]
    kind: Ints
    calls: Floats
    pair: Ints
    pairs: tuple[tuple[float, Property, Property], ...]


@lru_cache(maxsize=8)
def columns(these: Decisions, *, overlap: bool = True) -> DecisionColumns:
    """Return the columns. Without `overlap` every conversion is waited for."""
    rows = [(number, place) for number, one in enumerate(these.decisions) for place in range(len(one.rules))]
    counts = np.array([len(one.rules) for one in these.decisions])
    cuts: dict[Property | None, int] = {}
    cut, held = [], []
    for one in these.decisions:
        for rule in one.rules:
            cut.append(_place(cuts, rule.cut))
            held.append(_place(cuts, rule.outputs[0] if rule.outputs else None))
    pairs: dict[tuple[float, Property, Property], int] = {}
    ways, parts, together = [], [], call_sizes(these.short.graph)
    for number, use in enumerate(these.uses):
        made = list(dict.fromkeys(rule.outputs[use.output] for rule in these.decisions[use.decision].rules))
        for target, kind in _wanted(use):
            for source in made:
                if source != target and possible(source, target):
                    size = whole = float(use.value.size_bytes)
                    if kind != BLOCKING:
                        whole = together.of(_asked_by(these, use), size, source, target, early=use.early)
                    pair = pairs.setdefault((whole, source, target), len(pairs))
                    ways.append((number, source, target, kind, pair))
                    parts.append(size / whole)
    uses, sources, targets, kinds, at = zip(*ways, strict=True) if ways else ((),) * 5
    when = np.array(kinds, dtype=np.int64)
    return DecisionColumns(
        decision=np.array([row[0] for row in rows]),
        rule=np.array([row[1] for row in rows]),
        first=np.cumsum(counts) - counts,
        cut=np.array(cut),
        held=np.array(held),
        cuts=tuple(one for one in cuts if isinstance(one, Sharded)),
        use=np.array(uses, dtype=np.int64),
        source=sources,
        target=targets,
        kind=when if overlap else np.full_like(when, BLOCKING),
        calls=np.array(parts),
        pair=np.array(at, dtype=np.int64),
        pairs=tuple(pairs),
    )


def _asked_by(these: Decisions, use: Use) -> str:
    """Return the node that reads a tensor first where it is early, or makes it."""
    nodes = these.short.graph.nodes
    return nodes[min(use.first[0], len(nodes) - 1) if use.early else use.places[0]].name


def _place(cuts: dict[Property | None, int], held: Property | None) -> int:
    return cuts.setdefault(held, len(cuts)) if isinstance(held, Sharded) else -1


def _wanted(use: Use) -> list[tuple[Property, int]]:
    """Return the properties that are asked for, and when they must be there."""
    soon = dict.fromkeys(asked for reader in use.readers if not reader.at_end for asked in reader.asked)
    late = dict.fromkeys(asked for reader in use.readers if reader.at_end for asked in reader.asked)
    if use.early:
        return [(asked, EARLY) for asked in soon | late]
    return [(asked, BLOCKING) for asked in soon] + [(asked, DEFERRED) for asked in late]
