"""`Operator` and `OperatorTable`: operators one by one, and as columns for an efficiency model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from shardwright.arrays import Array, Bools, Floats, Ints
from shardwright.records import record

GEMM, ATTENTION, MEMORY = range(3)
FORWARD, BACKWARD = range(2)
POINTWISE, NORM, SOFTMAX, LOOKUP = range(4)
SIZES = ("m", "n", "k", "groups", "flops", "bytes")


@record
class Operator:
    """One operator for every row of a `Shard`. A GEMM is `groups` products (m × k)(k × n); a `share` of the
    work belongs to the `modules`, bits of `operators.MODULE_BITS`; `low_precision` marks the GEMMs that run in fp8
    where the job says so; `weight_gradient` those that frozen weights do not need; `form` says what a memory-bound
    operator does. It runs `times`, one after another, and its sizes are those of once."""

    kind: int
    direction: int
    m: Array
    n: Array
    k: Array
    groups: Array
    flops: Array
    bytes: Array
    modules: int = 0
    share: float = 1.0
    low_precision: bool = False
    weight_gradient: bool = False
    form: int = POINTWISE
    times: Array | float = 1.0


@record
class OperatorTable:
    """Operators as columns: sizes are [operators, M], kinds and flags [operators, 1], `times` either."""

    kind: Ints
    direction: Ints
    modules: Ints
    share: Floats
    low_precision: Bools
    weight_gradient: Bools
    form: Ints
    m: Floats
    n: Floats
    k: Floats
    groups: Floats
    flops: Floats
    bytes: Floats
    times: Floats


def table(operators: Sequence[Operator]) -> OperatorTable:
    """Return operators, each over the same M shards, as one table."""

    def column(name: str) -> Array:
        values = [getattr(operator, name) for operator in operators]
        if name == "times" and any(np.ndim(value) for value in values):
            return np.stack([np.broadcast_to(value, operators[0].m.shape) for value in values])
        if name in SIZES:
            return np.stack([np.asarray(value, dtype=float) for value in values])
        return np.array(values, dtype=type(values[0]))[:, None]

    return OperatorTable(**{field.name: column(field.name) for field in fields(OperatorTable)})
