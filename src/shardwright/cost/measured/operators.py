"""Measured operators in the form in which the cost model asks for times: a table of operators, and a job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.cost.compute.flops import score_flops_per_token
from shardwright.cost.compute.operator_table import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    GEMM,
    MEMORY,
    NORM,
    POINTWISE,
    Operator,
    OperatorTable,
    table,
)
from shardwright.cost.compute.operators import CORE, FLASH_BACKWARD_FLOPS
from shardwright.spec.job import Job, Precision
from shardwright.spec.layer import Attention
from shardwright.spec.read.machine_profile import OperatorTime

KINDS = {"gemm": GEMM, "attention": ATTENTION, "memory": MEMORY}
FORMS = {"layer_norm": NORM, "rms_norm": NORM}


def job_of(precision: Precision, seq_len: int = 4096) -> Job:
    """Return a job in which operators run as they were measured."""
    return Job(global_batch=1, seq_len=seq_len, precision=precision)


def table_of(rows: Sequence[OperatorTime]) -> OperatorTable:
    """Return measured operators as a table, [operators, 1]. Bytes count two for an element, as those of the cost model
    do, whose efficiency models double them for fp32."""
    return table([_operator(row) for row in rows])


def _operator(row: OperatorTime) -> Operator:
    make = {"gemm": _gemm, "attention": _attention, "memory": _memory}[row.kind]
    return make(row, FORWARD if row.direction == "forward" else BACKWARD)


def _column(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value], dtype=float)


def _gemm(row: OperatorTime, direction: int) -> Operator:
    m, n, k, groups = (float(size) for size in (row.m, row.n, row.k, row.groups))
    return Operator(
        kind=GEMM,
        direction=direction,
        m=_column(m),
        n=_column(n),
        k=_column(k),
        groups=_column(groups),
        flops=_column(2.0 * m * n * k * groups),
        bytes=_column(2.0 * (m * k + k * n + m * n) * groups),
        low_precision=row.dtype == "fp8",
        weight_gradient=row.direction == "wgrad",
    )


def _attention(row: OperatorTime, direction: int) -> Operator:
    shape = Attention(heads=row.heads, kv_heads=row.kv_heads, head_dim=row.head_dim, value_head_dim=row.head_dim)
    work, traffic = (1.0, 1.0) if direction == FORWARD else (FLASH_BACKWARD_FLOPS, 2.0)
    size = 2.0 * row.tokens * (2 * shape.out_width + shape.key_width + shape.value_width)
    return Operator(
        kind=ATTENTION,
        direction=direction,
        m=_column(row.tokens),
        n=_column(row.seq),
        k=_column(row.head_dim),
        groups=_column(row.heads),
        flops=_column(row.tokens * score_flops_per_token(shape, row.seq) * work),
        bytes=_column(size * traffic),
        modules=CORE,
    )


def _memory(row: OperatorTime, direction: int) -> Operator:
    zero = _column(0.0)
    return Operator(
        kind=MEMORY,
        direction=direction,
        m=zero,
        n=zero,
        k=zero,
        groups=zero,
        flops=zero,
        bytes=_column(row.bytes / (2.0 if row.dtype == "fp32" else 1.0)),
        form=FORMS.get(row.operation, POINTWISE),
    )
