"""`Profiled`: any efficiency model, corrected by what was measured on a machine with the GPU at hand.

The time of an operator becomes a monotone function of the time that the base model gives it, one for each kind,
precision and pass: a factor and, where enough shapes were measured, its drift from small to large operators. Where the
base model knows another device's tiles, and the shapes measured say so, its time is blended with that of the plain
roofline before. A monotone function of monotone times stays monotone, whatever was measured. Links get the latency and
the bandwidth that explain the measured collectives best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import cast

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.cost.compute.efficiency import KERNEL_SECONDS, Efficiency, computes, roofline_seconds
from shardwright.cost.compute.operator_table import BACKWARD, MEMORY, NORM, POINTWISE, OperatorTable
from shardwright.cost.measured.links import FittedLink, measured_link, with_links
from shardwright.cost.measured.operators import KINDS, job_of, table_of
from shardwright.cost.network.collectives import Fabric
from shardwright.errors import bad
from shardwright.records import record
from shardwright.spec.cluster import Cluster, Gpu, NodePool
from shardwright.spec.job import Job, Precision
from shardwright.spec.read.machine_profile import MachineProfile, OperatorTime

# What of a kind deviates alike: the passes of products and attention, the forms of what only moves memory.
FORWARD_PASS, INPUT_GRADIENT, WEIGHT_GRADIENT = range(3)
ELEMENTWISE, NORM_FORWARD, NORM_BACKWARD, OTHER_FORM = range(4)
PARTS = range(4)
FEWEST_OF_A_PART = 3  # chosen: with fewer a median does not hold against one outlier
# Chosen: steps of a quarter from the learned times to the roofline; a blend is one more parameter, so it takes the rows
# of three knots of a curve to choose one, and a tenth less deviation.
BLENDS, FEWEST_TO_BLEND, MUST_GAIN = (0.0, 0.25, 0.5, 0.75, 1.0), 15, 0.9
STAND_INS = {"bf16": ("fp16",), "fp16": ("bf16",), "fp8": (), "fp32": (), "tf32": ()}
EVERY_DTYPE = ("bf16", "fp16", "fp32", "tf32", "fp8")
# Chosen: a median of five rows holds against two outliers; six knots follow a curve over six decades of seconds.
ROWS_PER_KNOT, MOST_KNOTS = 5, 6
PRIOR_ROWS = 2.0  # without a deviation, added to each group so that few rows say little; chosen, 1 to 4
SHORTEST_SECONDS = 1e-12  # numeric


@record
class OperatorCorrection:
    """The correction of the operators of one kind, precision and part: `curve` over the base model's time to the power
    of 1 - `blend` times the roofline's to the power of `blend`."""

    kind: int
    dtype: str
    part: int
    blend: float
    curve: Curve

    def corrected(self, base: Floats, roofline: Floats) -> Floats:
        """Return the corrected times of operators."""
        return self.curve.corrected(blended(base, roofline, self.blend))


@record
class Correction:
    """What the profiles of one type of GPU say of it."""

    gpu: str
    families: tuple[OperatorCorrection, ...]
    intra: FittedLink | None
    inter: FittedLink | None

    def family(self, kind: int, dtype: str, part: int) -> OperatorCorrection | None:
        """Return the correction of some operators: where their precision was not measured, that of one like it (of any
        for operators that only move memory); None where there is none."""
        others = EVERY_DTYPE if kind == MEMORY else STAND_INS[dtype]
        for name in (dtype, *others):
            for family in self.families:
                if (family.kind, family.dtype, family.part) == (kind, name, part):
                    return family
        return None


@record
class Profiled:
    """`base`, with the corrections of the GPUs that were measured; the others it leaves alone."""

    base: Efficiency
    corrections: tuple[Correction, ...]

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the time of every operator, [operators, M]. Raises SpecError where the GPU lacks the precision."""
        seconds = self.base.operator_seconds(gpu, job, operators)
        correction = self._of(gpu)
        if correction is None:
            return seconds
        kind, low, part = operators.kind[:, 0], operators.low_precision[:, 0], _parts(operators)
        corrected = seconds.copy()
        for key in dict.fromkeys(zip(kind.tolist(), part.tolist(), low.tolist(), strict=True)):
            dtype = "bf16" if job.precision == "fp8" and not key[2] else job.precision
            family = correction.family(key[0], dtype, key[1])
            if family is not None:
                rows = (kind == key[0]) & (part == key[1]) & (low == key[2])
                roofline = roofline_seconds(gpu, dtype, operators)[rows] if family.blend else seconds[rows]
                corrected[rows] = family.corrected(seconds[rows], roofline)
        return corrected

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links of `pool`, as measured where they were."""
        links, correction = self.base.fabric(pool), self._of(pool.gpu)
        return links if correction is None else with_links(links, correction.intra, correction.inter)

    def _of(self, gpu: Gpu) -> Correction | None:
        return next((correction for correction in self.corrections if correction.gpu == gpu.kind), None)


def profiled(base: Efficiency, profiles: Sequence[MachineProfile], cluster: Cluster) -> Profiled:
    """Return `base` corrected by machine profiles for the GPUs of `cluster`. Profiles of one GPU are taken together.

    Raises SpecError for a profile of a GPU that the cluster does not have, and where there is nothing to learn from.
    """
    require_gpus(profiles, cluster)
    pools = {pool.gpu.kind: pool for pool in reversed(cluster.pools)}
    by_gpu = {name: [item for item in profiles if item.gpu.name == name] for name in pools}
    return Profiled(
        base=base,
        corrections=tuple(
            correction(base, pools[name], profiles_of) for name, profiles_of in by_gpu.items() if profiles_of
        ),
    )


def require_gpus(profiles: Sequence[MachineProfile], cluster: Cluster) -> None:
    """Raise SpecError for a profile of a GPU that the cluster does not have, and for one without operators."""
    there = {pool.gpu.kind for pool in cluster.pools}
    for profile in profiles:
        if profile.gpu.name not in there:
            hint = "measure on a machine of the cluster, or say which GPU it is (`gpu=NAME` of `shardwright profile`)"
            raise bad(
                "`machine_profile=`", f"is of {profile.gpu.name}, the cluster has {', '.join(sorted(there))}", hint
            )
        if not profile.operators:
            raise bad("`machine_profile=`", "has no measured operator", "let `shardwright profile` run to its end")


def correction(base: Efficiency, pool: NodePool, profiles: Sequence[MachineProfile]) -> Correction:
    """Return what profiles of the GPU of `pool` say of it."""
    operators = [row for profile in profiles for row in profile.operators]
    collectives = [row for profile in profiles for row in profile.collectives]
    links = base.fabric(pool)
    return Correction(
        gpu=pool.gpu.kind,
        families=tuple(_families(base, pool.gpu, operators)),
        intra=measured_link(links, collectives, inter=False),
        inter=measured_link(links, collectives, inter=True),
    )


def base_seconds(base: Efficiency, gpu: Gpu, rows: Sequence[OperatorTime]) -> Floats:
    """Return what an efficiency model says of measured operators, all of one precision, [R]."""
    return base.operator_seconds(gpu, job_of(cast("Precision", rows[0].dtype)), table_of(rows))[:, 0]


def of_one_precision(gpu: Gpu, rows: Sequence[OperatorTime]) -> Iterator[tuple[str, str, list[OperatorTime]]]:
    """Yield kind, precision and rows of the measured operators in the precisions that the cost model knows of `gpu`."""

    def key(row: OperatorTime) -> tuple[str, str]:
        return row.kind, row.dtype

    for (kind, dtype), group in groupby(sorted(rows, key=key), key=key):
        if dtype != "tf32" and computes(gpu, dtype):
            yield kind, dtype, list(group)


def _families(base: Efficiency, gpu: Gpu, rows: Sequence[OperatorTime]) -> Iterator[OperatorCorrection]:
    """Yield the corrections for each kind and precision, with the blend that leaves the least: one that leaves little
    less than the base model alone does not count."""
    for kind, dtype, chosen in of_one_precision(gpu, rows):
        predicted = base_seconds(base, gpu, chosen)
        roofline = roofline_seconds(gpu, dtype, table_of(chosen))[:, 0]
        measured = np.log([row.seconds for row in chosen])
        part = _parts(table_of(chosen))
        best, least = None, np.inf
        for blend in BLENDS if len(chosen) >= FEWEST_TO_BLEND else BLENDS[:1]:
            curves = _curves(blended(predicted, roofline, blend), measured, part)
            families = [
                OperatorCorrection(kind=KINDS[kind], dtype=dtype, part=item, blend=blend, curve=curve)
                for item, curve in curves.items()
            ]
            times = np.select(
                [part == item.part for item in families],
                [item.corrected(predicted, roofline) for item in families],
            )
            left = float(np.abs(measured - np.log(times)).mean())
            if left < MUST_GAIN * least:
                best, least = families, left
        yield from best or ()


def blended(base: Floats, roofline: Floats, blend: float) -> Floats:
    """Return the geometric mean of the base model's time and the roofline's with a kernel's launch, with the weights
    1 - `blend` and `blend`; 0 where the base model says 0, for operators that are not there."""
    return np.where(base > 0.0, base ** (1.0 - blend) * (roofline + KERNEL_SECONDS) ** blend, 0.0)


def _curves(predicted: Floats, measured: Floats, part: Array) -> dict[int, Curve]:
    """Return the correction of each part: one curve for all, moved by what each part deviates."""
    deviation = measured - np.log(predicted)
    levels = {item: _level(deviation, part == item) for item in PARTS}
    common = fitted(predicted, deviation - np.array([levels[item] for item in part.tolist()]))
    return {item: common.moved(level) for item, level in levels.items()}


def _level(deviation: Floats, chosen: Array) -> float:
    """Return the median deviation of the rows of one part, or of all rows where these are too few."""
    return float(np.median(deviation[chosen] if chosen.sum() >= FEWEST_OF_A_PART else deviation))


def _parts(operators: OperatorTable) -> Ints:
    """Return the part of its kind that each operator belongs to, [operators]."""
    backward, form = operators.direction[:, 0] == BACKWARD, operators.form[:, 0]
    norm = np.where(backward, NORM_BACKWARD, NORM_FORWARD)
    of_memory = np.select([form == POINTWISE, form == NORM], [ELEMENTWISE, norm], OTHER_FORM)
    of_product = np.select([operators.weight_gradient[:, 0], backward], [WEIGHT_GRADIENT, INPUT_GRADIENT], FORWARD_PASS)
    return np.where(operators.kind[:, 0] == MEMORY, of_memory, of_product)


@record
class Curve:
    """What to add to the logarithm of a predicted time: `shifts` at the predicted log-times `knots`, lines between, and
    constants beyond. The corrected time never falls where the predicted one rises."""

    knots: tuple[float, ...]
    shifts: tuple[float, ...]

    def corrected(self, seconds: Floats) -> Floats:
        """Return corrected times."""
        logs = np.log(np.maximum(seconds, SHORTEST_SECONDS))
        return np.asarray(seconds * np.exp(np.interp(logs, self.knots, self.shifts)))

    def moved(self, shift: float) -> Curve:
        """Return the curve with a constant added."""
        return Curve(knots=self.knots, shifts=tuple(value + shift for value in self.shifts))


def fitted(predicted: Floats, deviation: Floats) -> Curve:
    """Return the curve for log(measured / predicted) = `deviation` [R] at predicted seconds [R].

    The rows fall into groups of equal count by predicted time. Each group's median deviation, drawn towards that of
    all rows, is a knot at its median time; neighbours that would make the corrected time fall are averaged.
    """
    middle = float(np.median(deviation))
    count = min(max(len(predicted) // ROWS_PER_KNOT, 1), MOST_KNOTS)
    logs = np.log(predicted)
    groups = np.array_split(np.argsort(logs, kind="stable"), count)
    knots = np.array([np.median(logs[group]) for group in groups])
    seconds = np.array(
        [(np.median(deviation[group]) - middle) * len(group) / (len(group) + PRIOR_ROWS) for group in groups]
    )
    shifts = middle + seconds
    return _rising(knots, knots + shifts)


def _rising(knots: Floats, corrected: Floats) -> Curve:
    """Return the curve through points, those that fall replaced by averages (pool adjacent violators). Knots at the
    same place become one."""
    pools: list[tuple[float, float, float]] = []  # weight, knot, corrected
    for knot, value in zip(knots, corrected, strict=True):
        pool = (1.0, float(knot), float(value))
        while pools and (pools[-1][2] > pool[2] or pools[-1][1] >= pool[1]):
            pool = _joined(pools.pop(), pool)
        pools.append(pool)
    return Curve(knots=tuple(pool[1] for pool in pools), shifts=tuple(pool[2] - pool[1] for pool in pools))


def _joined(a: tuple[float, float, float], b: tuple[float, float, float]) -> tuple[float, float, float]:
    weight = a[0] + b[0]
    return weight, (a[0] * a[1] + b[0] * b[1]) / weight, (a[0] * a[2] + b[0] * b[2]) / weight
