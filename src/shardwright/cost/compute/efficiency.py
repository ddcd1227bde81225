"""How much of its datasheet a GPU delivers: the one interface behind which efficiency sits, and its analytic form.

Anything with the two methods of `Efficiency` can time a search. `Analytic` needs no measurement of the GPU at hand:
a roofline with a saturated efficiency per architecture, tiles, and a launch time per kernel.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.operator_table import ATTENTION, BACKWARD, GEMM, OperatorTable
from shardwright.cost.network.collectives import Fabric, fabric
from shardwright.errors import bad
from shardwright.records import record
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job


@runtime_checkable
class Efficiency(Protocol):
    """Times operators and derates links. Implementations are pure: equal input, equal output."""

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the time of every operator, [operators, M]."""
        ...

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links of `pool` as collectives find them."""
        ...


@record
class Saturated:
    """Fractions of the dense peak that large operators reach in training, where power and clocks are sustained."""

    gemm: float
    fp8: float
    attention_forward: float
    attention_backward: float


# Medians over GEMMs above 2e11 FLOP of ai-dynamo/aiconfigurator@095f58a and microsoft/vidur, times the ratio of
# sustained to burst speed (B200 0.75, A100 0.90 to 0.95: MooreThreads/SimuMax configs/system; H100 0.87: vidur);
# attention from the same and MooreThreads/SimuMax. The fp8 figures include quantising the operands. Architectures
# without measurements have their elder's figures.
SATURATED = {  # measured
    "Pascal": Saturated(gemm=0.75, fp8=0.75, attention_forward=0.30, attention_backward=0.25),
    "Volta": Saturated(gemm=0.72, fp8=0.72, attention_forward=0.35, attention_backward=0.30),
    "Turing": Saturated(gemm=0.60, fp8=0.60, attention_forward=0.35, attention_backward=0.30),
    "Ampere": Saturated(gemm=0.74, fp8=0.74, attention_forward=0.53, attention_backward=0.43),
    "Ada": Saturated(gemm=0.55, fp8=0.44, attention_forward=0.45, attention_backward=0.35),
    "Hopper": Saturated(gemm=0.66, fp8=0.56, attention_forward=0.52, attention_backward=0.42),
    "Blackwell": Saturated(gemm=0.53, fp8=0.42, attention_forward=0.44, attention_backward=0.36),
    "CDNA1": Saturated(gemm=0.50, fp8=0.50, attention_forward=0.30, attention_backward=0.22),
    "CDNA2": Saturated(gemm=0.58, fp8=0.58, attention_forward=0.35, attention_backward=0.27),
    "CDNA3": Saturated(gemm=0.48, fp8=0.42, attention_forward=0.35, attention_backward=0.28),
    "CDNA4": Saturated(gemm=0.50, fp8=0.43, attention_forward=0.38, attention_backward=0.30),
}
# Chosen: near the middle of the known ones, which reach 0.48 to 0.75 in products; it moves GPUs of others alone.
UNKNOWN_ARCHITECTURE = Saturated(gemm=0.55, fp8=0.45, attention_forward=0.40, attention_backward=0.32)
# Measured.
MEMORY_EFFICIENCY = 0.70  # elementwise kernels of 50 MB and more: sitar-lab/NeuSight@6945927, vidur, 0.57 to 0.75
KERNEL_SECONDS = 4e-6  # launch and tail of one kernel in a full stream; chosen, 2e-6 to 8e-6
# Output tile of one thread block, a common one of cuBLAS (NVIDIA, Matrix Multiplication Background User's Guide);
# products lose half a tile to prologue and epilogue.
TILE = 128  # documented
# Measured.
INTRA_LINK_EFFICIENCY = 0.78  # bus bandwidth over link rate, 8 × A100 and H100, 512 MiB: aiconfigurator nccl_perf
INTER_LINK_EFFICIENCY = 0.80  # the same between machines: coreweave/nccl-tests README, 64 × H100; measured


@record(kw_only=False)
class Analytic:
    """Physics alone: max(FLOPs / (peak · η), bytes / (bandwidth · η)) plus a kernel's launch."""

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the roofline time, [operators, M]. Raises SpecError where the GPU lacks the precision."""
        saturated = SATURATED.get(gpu.architecture, UNKNOWN_ARCHITECTURE)
        fp8 = (job.precision == "fp8") & operators.low_precision
        peak = peak_flops(gpu, "bf16" if job.precision == "fp8" else job.precision)
        if fp8.any():
            peak_fp8 = peak_flops(gpu, "fp8")
            rate = np.where(fp8, peak_fp8 * saturated.fp8, peak * saturated.gemm)
        else:
            rate = np.full_like(operators.flops[:, :1], peak * saturated.gemm)
        gemm = gemm_flops(gpu, operators) / rate
        forward, backward = peak * saturated.attention_forward, peak * saturated.attention_backward
        attention = operators.flops / np.where(operators.direction == BACKWARD, backward, forward)
        compute = np.where(operators.kind == GEMM, gemm, np.where(operators.kind == ATTENTION, attention, 0.0))
        width = 2.0 if job.precision == "fp32" else 1.0
        bandwidth = gpu.memory_bytes_per_second * MEMORY_EFFICIENCY
        traffic = (operators.bytes * width) / bandwidth
        present = (operators.bytes > 0) | (operators.flops > 0)
        return np.asarray(np.maximum(compute, traffic) + KERNEL_SECONDS * present)

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links at the bandwidth that large collectives reach."""
        return fabric(pool, intra_efficiency=INTRA_LINK_EFFICIENCY, inter_efficiency=INTER_LINK_EFFICIENCY)


def gemm_flops(gpu: Gpu, operators: OperatorTable) -> Floats:
    """Return the FLOPs that the multiprocessors are busy for: output tiles in whole waves, inner products with half
    a tile of overhead. Never below the FLOPs of the product, and monotone in every dimension."""
    tiles = np.ceil(operators.m / TILE) * np.ceil(operators.n / TILE) * np.ceil(operators.groups)
    waves = np.ceil(tiles / gpu.multiprocessors)
    # A partial last wave is partly filled by splitting the inner dimension; half of its idle time is saved.
    effective = 0.5 * (waves * gpu.multiprocessors + tiles)
    busy = effective * 2.0 * TILE * TILE * (operators.k + TILE / 2)
    return np.asarray(np.maximum(busy, operators.flops))


def computes(gpu: Gpu, precision: str) -> bool:
    """Return whether a GPU computes in a job's precision (fp8 training needs bf16 as well)."""
    needed = ("fp8", "bf16") if precision == "fp8" else (precision,)
    return all(gpu.peak(name) is not None for name in needed)


def peak_flops(gpu: Gpu, precision: str) -> float:
    """Return the dense peak for the precision in which a job computes; raises SpecError where there is none."""
    peak = gpu.peak(precision)
    if peak is None:
        able = ", ".join(name for name, _ in gpu.peak_flops)
        raise bad("`precision=`", f"{gpu.name} cannot compute in {precision}", f"it computes in {able}")
    return peak


def roofline_seconds(gpu: Gpu, dtype: str, operators: OperatorTable) -> Floats:
    """Return max(FLOPs / peak, bytes / bandwidth), [operators, M], for operators in `dtype`. Bytes count two for an
    element of 8 or 16 bits, as the cost model does, and are doubled for fp32."""
    width = 2.0 if dtype in ("fp32", "tf32") else 1.0
    compute = operators.flops / (gpu.peak(dtype) or np.inf)
    return np.asarray(np.maximum(compute, operators.bytes * width / gpu.memory_bytes_per_second))
