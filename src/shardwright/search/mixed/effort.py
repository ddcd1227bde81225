"""When a search that does not reach its gap ends: after steps counted, not timed, so that it always ends alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.spec.cluster import Cluster

SMALL = 128  # GPUs of which clusters are searched thoroughly
NARROWED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Regions that a search looks at, at most; it ends where the last `patience` parts of regions did not narrow the
    gap by a tenth. `ordered`: compositions are bounded by each order of their types from the start."""

    regions: int
    patience: int
    ordered: bool = True

    def spent(self, gaps: Sequence[float]) -> bool:
        """Return whether the search should end, where `gaps` are those before each part that was looked at."""
        return len(gaps) > self.patience and gaps[-1] > NARROWED * gaps[-1 - self.patience]


NO_PROOF = Effort(regions=0, patience=1, ordered=False)
QUICK, THOROUGH = Effort(regions=60, patience=18), Effort(regions=100, patience=30)


def effort_for(cluster: Cluster) -> Effort:
    """Return the effort that suits a cluster's size."""
    return THOROUGH if cluster.gpus <= SMALL else QUICK
