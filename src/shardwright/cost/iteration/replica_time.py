"""What an iteration takes, replica by replica: the result of costing a plan exactly."""

from __future__ import annotations

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.iteration.footprint import Footprint
from shardwright.cost.iteration.lanes import Lanes
from shardwright.cost.iteration.step import StageTimes
from shardwright.records import record


@record(kw_only=False)
class UnitPasses:
    """Passes of a GPU under uneven FSDP in order, columns [E]: the unit (0 is the embedding), the wave, whether it is
    the backward pass, from when to when, and the seconds of it in which the forward pass is computed again."""

    unit: Ints
    wave: Ints
    backward: Bools
    start_seconds: Floats
    end_seconds: Floats
    recompute_seconds: Floats


@record
class ReplicaTime:
    """One replica: stage times [1, v, P], as they are beside transfers and `undisturbed`, transfers [v * P - 1] and the
    simulated pipeline; tails [P] of gradients and weights, the optimizer step [P], and the memory of each stage [P].
    Under uneven FSDP stage times are sums over units, and `units` are its passes."""

    stages: StageTimes
    undisturbed: StageTimes
    transfers: Floats
    pipeline_seconds: float
    tails: Floats
    gathers: Floats
    optimizer: Floats
    tied_seconds: float
    memory: Footprint
    units: UnitPasses | None = None

    @property
    def peak_bytes(self) -> Floats:
        """The peak of each stage, [P]."""
        return self.memory.total

    @property
    def busy_seconds(self) -> float:
        """The pipeline, and what of the communication it does not hide."""
        return self.pipeline_seconds + float(self.tails.max()) + float(self.gathers.max()) + self.tied_seconds


@record
class Mixed:
    """The iteration of a plan and its replicas' parts; `norm_seconds` are those of the global gradient norm. A layered
    plan has no lanes."""

    seconds: float
    norm_seconds: float
    replicas: tuple[ReplicaTime, ...]
    lanes: tuple[Lanes, ...]
