"""What gathering a byte of each parameter of a stage takes at least, by who else holds its layers.

Holders of a layer talk at the pace of the slowest links among them, on as many ranks of a machine as the least of
their machines has. Where the units stand is left open: any number of ranks of a machine up to what the holders can
have there. So is what holders come still: any more types, any more ranks. The least of all these counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.network.collectives import Fabric, Group, gather_seconds
from shardwright.search.mixed.tables.columns import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """Seconds by type, types of all holders (as bits), most ranks of a machine, ranks (less one each), first layer and
    the layer after the last: `exact` of these types and ranks, `least` of those and any more. `local` are the units of
    a machine of each type."""

    exact: np.ndarray
    least: np.ndarray
    local: np.ndarray

    def once(
        self, kinds: np.ndarray, starts: np.ndarray, held: np.ndarray, more: np.ndarray, missing: int
    ) -> np.ndarray:
        """Return the least seconds of stages [N, P] whose layers are held by `held` [N, P, G] stages of each type, if
        `missing` replicas are still to come, with `more` [G] stages."""
        there = held > 0
        types = (there << np.arange(held.shape[-1])).sum(axis=-1)
        local = np.where(there, np.minimum(self.local, held + more), 99).min(axis=-1)
        size = np.minimum(held.sum(axis=-1) + missing, self.exact.shape[3])
        local = np.minimum(local, self.exact.shape[2])
        values = self.least if missing else self.exact
        return np.asarray(values[kinds, types, local - 1, size - 1, starts[:, :-1], starts[:, 1:]])


def paces(table: Table) -> Paces:
    """Return the paces of a setting."""
    types, layers, ranks = table.types, table.layers, int(table.units.sum())
    most = int(table.local.max())
    exact = np.full((types, 1 << types, most, ranks, layers, layers + 1), np.inf)
    begin, end = np.triu_indices(layers)
    end = end + 1
    size, local = np.arange(1, ranks + 1)[None, :, None], np.arange(1, most + 1)[:, None, None]
    for kind in range(types):
        parameters = _parameters(table, kind, begin, end)[None, None, :]
        for held in range(1 << types):
            if not held >> kind & 1:
                continue
            groups = Group(size=size, local=np.minimum(local, size))
            seconds = gather_seconds(_slowest(table, kind, held), groups, parameters)
            exact[kind, held][:, :, begin, end] = np.where(local <= size, seconds, np.inf)
    exact = np.minimum.accumulate(exact, axis=2)
    least = np.minimum.accumulate(exact[:, :, :, ::-1], axis=3)[:, :, :, ::-1].copy()
    for held in reversed(range(1 << types)):
        for other in range(types):
            least[:, held] = np.minimum(least[:, held], least[:, held | 1 << other])
    return Paces(exact=exact, least=least, local=table.local)


def _parameters(table: Table, kind: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the parameters of stages from layer `begin` up to `end`, with the embedding and the head at the ends."""
    low, high = np.where(begin == 0, 0, begin + 1), np.where(end == table.layers, table.layers + 2, end + 1)
    running = table.dense[kind] + table.expert[kind]
    whole = (begin == 0) & (end == table.layers)
    return np.asarray(running[high] - running[low] - whole * table.tied_parameters[kind])


def _slowest(table: Table, own: int, held: int) -> Fabric:
    """Return the slowest links of the types `held` as a stage on the type `own` finds them. Of types of unequal
    tensor-parallel degrees each has links for its part of the rings."""
    there = [kind for kind in range(table.types) if held >> kind & 1]
    shares = {kind: float(table.wide[kind] / table.wide[own]) for kind in there}
    return replace(
        table.fabrics[own],
        intra_bytes_per_second=min(table.fabrics[kind].intra_bytes_per_second * shares[kind] for kind in there),
        inter_bytes_per_second=min(table.fabrics[kind].inter_bytes_per_second * shares[kind] for kind in there),
        inter_latency_seconds=max(table.fabrics[kind].inter_latency_seconds for kind in there),
    )
