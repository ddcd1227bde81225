"""The least time of operators: arithmetic at the dense peak, bytes at the full bandwidth, whichever is longer."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operator_table import OperatorTable
from shardwright.spec.cluster import Gpu


def roofline_seconds(gpu: Gpu, dtype: str, operators: OperatorTable) -> Floats:
    """Return max(FLOPs / peak, bytes / bandwidth), [operators, M], for operators in `dtype`. Bytes count two for an
    element of 8 or 16 bits, as the cost model does, and are doubled for fp32."""
    width = 2.0 if dtype in ("fp32", "tf32") else 1.0
    compute = operators.flops / (gpu.peak(dtype) or np.inf)
    return np.asarray(np.maximum(compute, operators.bytes * width / gpu.memory_bytes_per_second))
