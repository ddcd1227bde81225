"""`Learned`: operators and links timed by fits to measurements, on a base of physics that carries to any GPU."""

from __future__ import annotations

from functools import cache

import numpy as np

from shardwright.arrays import Bools, Floats, Ints
from shardwright.cost.compute.operator_table import ATTENTION, BACKWARD, GEMM, OperatorTable
from shardwright.cost.learned import fitted
from shardwright.cost.learned.features import COLUMNS, Shapes
from shardwright.cost.learned.fitted import expected_offset, log_efficiency, shipped
from shardwright.cost.learned.links import fit_of, link_fabric, shipped_links, shipped_network
from shardwright.cost.learned.machine import Facts, facts, in_training, sustained
from shardwright.cost.network.collectives import Fabric
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job

FORWARD_KIND, BACKWARD_KIND, MEMORY_KIND = "forward", "backward", "memory"
BLOCK_RECIPES = ("blockwise", "mxfp8")
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HASHED = ("kind", "direction", "low_precision", "form", "m", "n", "k", "groups", "flops", "bytes")


@record(kw_only=False)
class OperatorClass:
    """Operators of one family and kind on one machine."""

    family: str
    kind: str
    machine: Facts


@record(kw_only=False)
class Learned:
    """Times of operators by gradient-boosted trees over shapes and an offset for each GPU; links by kind."""

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the time of every operator, [operators, M]. Raises SpecError where the GPU lacks the precision."""
        where, place = _distinct(operators)
        rows = {name: np.broadcast_to(getattr(operators, name), operators.m.shape).ravel()[where] for name in _HASHED}
        return _distinct_seconds(gpu, job, rows)[place].reshape(operators.m.shape)

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links at the efficiency that collectives were measured to reach."""
        return link_fabric(pool, fit_of(shipped_links(), pool), shipped_network())


def _machine(gpu: Gpu, job: Job, *, low: bool) -> Facts:
    """Return the GPU's facts in the arithmetic of the job."""
    high = "bf16" if job.precision == "fp8" else job.precision
    return facts(gpu, "fp8" if low else high, block=job.fp8_recipe in BLOCK_RECIPES)


def _distinct(operators: OperatorTable) -> tuple[Ints, Ints]:
    """Return where each distinct operator of a table occurs, [R], and which of them each entry is."""
    code = np.zeros(operators.m.shape, dtype=np.uint64)
    for name in _HASHED:
        bits = getattr(operators, name).astype(np.float64).view(np.uint64)
        code = (code ^ bits) * _MIX
        code ^= code >> np.uint64(29)
    codes, place = np.unique(code.ravel(), return_inverse=True)
    where = np.empty(len(codes), dtype=np.int64)
    where[place] = np.arange(len(place))
    return where, place


def _distinct_seconds(gpu: Gpu, job: Job, rows: dict[str, Floats]) -> Floats:
    """Return the time of each row: of products by arithmetic and grouping, of attention by direction, of the rest."""
    seconds = np.zeros(len(rows["m"]))
    present = (rows["flops"] > 0) | (rows["bytes"] > 0)
    product, fused = rows["kind"] == GEMM, rows["kind"] == ATTENTION
    low = rows["low_precision"].astype(bool) & (job.precision == "fp8")
    grouped, backward = rows["groups"] > 1, rows["direction"] == BACKWARD
    plain = _machine(gpu, job, low=False)
    parts: list[tuple[Bools, OperatorClass]] = []
    for fp8 in (False, True):
        chosen = product & (low == fp8)
        if chosen.any():
            machine = sustained(_machine(gpu, job, low=fp8))
            parts.append((chosen & ~grouped, OperatorClass(fitted.GEMM, machine.arithmetic, machine)))
            parts.append((chosen & grouped, OperatorClass(fitted.GEMM, machine.arithmetic, in_training(machine))))
    parts.append((fused & ~backward, OperatorClass(fitted.ATTENTION, FORWARD_KIND, plain)))
    parts.append((fused & backward, OperatorClass(fitted.ATTENTION, BACKWARD_KIND, in_training(plain))))
    parts.append((~product & ~fused, OperatorClass(fitted.MEMORY, MEMORY_KIND, plain)))
    width = 2.0 if job.precision == "fp32" else 1.0
    for chosen, part in parts:
        picked = np.flatnonzero(chosen & present)
        if len(picked):
            some = {name: rows[name][picked] for name in ("m", "n", "k", "groups", "flops", "form", "direction")}
            seconds[picked] = _part_seconds(part, Shapes(bytes=rows["bytes"][picked] * width, **some))
    return seconds


def _part_seconds(part: OperatorClass, shapes: Shapes) -> Floats:
    """Return the times of the operators of one part; none computes faster than its GPU does."""
    columns = COLUMNS[part.family](part.machine, shapes)
    better = log_efficiency(shipped(part.family), _offset(part), columns.values)
    return np.asarray(np.maximum(columns.seconds * np.exp(-better), shapes.flops / part.machine.flops_per_second))


@cache
def _offset(part: OperatorClass) -> float:
    return expected_offset(shipped(part.family), part.machine, part.kind)
