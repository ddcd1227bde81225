"""What a machine profile says in a few figures: the part of the peaks that was reached, how far a model was off before
it is corrected by the profile, and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency, roofline_seconds
from shardwright.cost.measured.links import FittedLink
from shardwright.cost.measured.machine import Profiled, base_seconds, correction, of_one_precision
from shardwright.cost.measured.operators import table_of
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.read.machine_profile import MachineProfile, OperatorTime

FOLDS = 5  # chosen: each fold is fitted without a fifth of the rows


@record
class FamilySummary:
    """The rows of one kind and precision. `achieved` is the median part of the speed that dense peak and memory
    bandwidth allow, `best` the largest. `ratio` is the median of measured over predicted time, `error` the median of
    |log| of it; `corrected_error` is that after a correction by the other rows, without the row itself."""

    kind: str
    dtype: str
    rows: int
    achieved: float
    best: float
    ratio: float
    error: float
    corrected_error: float


@record
class LinkSummary:
    """A link as the model has it and as it was measured."""

    scope: str
    predicted: FittedLink
    measured: FittedLink


def family_summaries(base: Efficiency, pool: NodePool, profile: MachineProfile) -> tuple[FamilySummary, ...]:
    """Return a summary for each kind and precision that the cost model knows of the GPU of `pool`."""
    gpu = pool.gpu
    return tuple(
        _summary(base, pool, profile, kind, dtype, rows)
        for kind, dtype, rows in of_one_precision(gpu, profile.operators)
    )


def link_summaries(base: Efficiency, pool: NodePool, profile: MachineProfile) -> tuple[LinkSummary, ...]:
    """Return the links within and between machines, as far as they were measured."""
    corrected, links = correction(base, pool, [profile]), base.fabric(pool)
    intra = FittedLink(latency_seconds=links.intra_latency_seconds, bytes_per_second=links.intra_bytes_per_second)
    inter = FittedLink(latency_seconds=links.inter_latency_seconds, bytes_per_second=links.inter_bytes_per_second)
    pairs = (("intra_node", intra, corrected.intra), ("inter_node", inter, corrected.inter))
    return tuple(
        LinkSummary(scope=scope, predicted=predicted, measured=measured)
        for scope, predicted, measured in pairs
        if measured is not None
    )


def achieved_parts(gpu: Gpu, dtype: str, rows: Sequence[OperatorTime]) -> Floats:
    """Return the part of the speed that dense peak and memory bandwidth allow which each operator reached, [R]."""
    seconds = np.array([row.seconds for row in rows])
    return np.asarray(roofline_seconds(gpu, dtype, table_of(rows))[:, 0] / seconds)


def _summary(
    base: Efficiency, pool: NodePool, profile: MachineProfile, kind: str, dtype: str, rows: Sequence[OperatorTime]
) -> FamilySummary:
    seconds = np.array([row.seconds for row in rows])
    achieved = achieved_parts(pool.gpu, dtype, rows)
    ratio = seconds / base_seconds(base, pool.gpu, rows)
    left = np.concatenate([*_left_out(base, pool, profile, rows)])
    return FamilySummary(
        kind=kind,
        dtype=dtype,
        rows=len(rows),
        achieved=float(np.median(achieved)),
        best=float(achieved.max()),
        ratio=float(np.median(ratio)),
        error=float(np.median(np.abs(np.log(ratio)))),
        corrected_error=float(np.median(np.abs(left))),
    )


def _left_out(
    base: Efficiency, pool: NodePool, profile: MachineProfile, rows: Sequence[OperatorTime]
) -> Iterator[Floats]:
    """Yield log(measured / corrected) of every fifth row, corrected by the rows between."""
    for fold in range(min(FOLDS, len(rows))):
        taken = rows[fold::FOLDS]
        others = [row for row in profile.operators if row not in taken]
        learned = replace(profile, operators=tuple(others), collectives=())
        model = Profiled(base=base, corrections=(correction(base, pool, [learned]),))
        yield np.log([row.seconds for row in taken]) - np.log(base_seconds(model, pool.gpu, taken))
