"""`Case`: all that is known of a run, in one value that the causes look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.lanes import contexts_of
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.replica_time import Mixed
from shardwright.cost.predict import predict
from shardwright.diagnosis.padding import Padding
from shardwright.diagnosis.signs import Sign
from shardwright.plans.placement import placement_of
from shardwright.plans.plan import Plan, Prediction
from shardwright.runs.run import MeasuredRun
from shardwright.runs.state import GoodState
from shardwright.traces.figures import RankFigures
from shardwright.traces.out_of_memory import OutOfMemory
from shardwright.traces.snapshot import MemorySnapshot

SLOWEST = 1.5  # times what is expected; chosen, 1.3 to 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan, what a step of it took, and what else was recorded.

    `plan` is costed; `efficiency` is what costed it. `step_seconds` are the median of the good state, of the log, else
    of the trace, else as the user says; None where nothing tells. `stall_seconds` are what an average step takes beyond
    that, by reason. `ranks` are figures of traces, `signs` lines of logs that tell a cause.
    """

    plan: Plan
    efficiency: Efficiency
    step_seconds: float | None = None
    spread: float = 0.0
    run: MeasuredRun | None = None
    state: GoodState | None = None
    stall_seconds: tuple[tuple[str, float], ...] = ()
    ranks: tuple[RankFigures, ...] = ()
    signs: tuple[Sign, ...] = ()
    padding: Padding | None = None
    snapshots: tuple[MemorySnapshot, ...] = ()
    out_of_memory: OutOfMemory | None = None

    @property
    def prediction(self) -> Prediction:
        """What the cost model says of the plan."""
        assert self.plan.prediction is not None, "the plan of a case is costed"
        return self.plan.prediction

    @property
    def expected_seconds(self) -> float:
        """What a step should take."""
        return self.prediction.iteration_seconds

    @property
    def limit_seconds(self) -> float:
        """What a step may take and be as expected: the end of the prediction's interval, which is wide far from
        published runs, and no more than `SLOWEST` times what is expected."""
        return min(self.prediction.interval[1], SLOWEST * self.expected_seconds)

    @cached_property
    def account(self) -> Mixed:
        """The iteration of the plan, stage by stage."""
        return mixed_iteration(self.plan, self.efficiency)

    @cached_property
    def stage_of_rank(self) -> dict[int, tuple[int, int]]:
        """The replica and stage of each rank, where ranks are placed as the plan says."""
        placement = placement_of(self.plan)
        stages = [
            (number, stage) for number, replica in enumerate(self.plan.replicas) for stage in range(len(replica.stages))
        ]
        pairs = zip(placement.ranks().tolist(), placement.stage.tolist(), strict=True)
        return {rank: stages[stage] for rank, stage in pairs}

    @cached_property
    def critical(self) -> RankFigures | None:
        """The rank that the others wait for: it waits least itself."""
        return min(self.ranks, key=lambda rank: (rank.exposed_seconds, rank.rank), default=None)

    def expected_compute(self, rank: int) -> float | None:
        """Return the seconds in which a rank should compute, without the update; None where its stage is not known."""
        place = None if self.plan.layered else self.stage_of_rank.get(rank)
        if place is None:
            return None
        replica, stage = place
        times = self.account.replicas[replica].undisturbed
        count = self.plan.replicas[replica].micro_batches
        return float(count * (times.forward + times.backward)[0, :, stage].sum())


def costed(plan: Plan, efficiency: Efficiency) -> Plan:
    """Return a plan with its prediction."""
    return plan.costed(predict(plan, efficiency, contexts=contexts_of(plan, efficiency)))


def median(values: Sequence[float]) -> float:
    """Return the median, 0 of nothing."""
    return float(np.median(values)) if len(values) else 0.0
