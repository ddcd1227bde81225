"""When a search that does not reach its gap ends: after steps counted, not timed, so that it always ends alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.spec.cluster import Cluster

SMALL = 128  # GPUs of which clusters are searched thoroughly
NARROWED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Regions that a search looks at, at most; it ends where the last `patience` splits of regions did not narrow the
    gap by a tenth. A region is not split any more where the last `idle` splits that led to it did not raise its bound.
    The integer program of one that can be split is solved where its bound is at least `near` times the cutoff, or
    where units are few."""

    regions: int
    patience: int
    idle: int
    near: float

    def spent(self, regions: int, gaps: Sequence[float]) -> float:
        """Return which part is spent on so many regions, where `gaps` are those before each that was split; at 1 the
        search should end."""
        if len(gaps) > self.patience and gaps[-1] > NARROWED * gaps[-1 - self.patience]:
            return 1.0
        return spent_of(regions, self.regions)


def spent_of(done: int, most: int) -> float:
    """Return the part that is done of what may be done at most."""
    return 1.0 if done >= most else done / most


NO_PROOF = Effort(regions=0, patience=1, idle=1, near=1.0)
QUICK = Effort(regions=100, patience=8, idle=4, near=0.96)
THOROUGH = Effort(regions=300, patience=20, idle=12, near=0.985)


def effort_for(cluster: Cluster) -> Effort:
    """Return the effort that suits a cluster's size."""
    return THOROUGH if cluster.gpus <= SMALL else QUICK
