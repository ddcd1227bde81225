"""What training adds to the operators and links below it: a few named parameters for each framework and architecture.

An operator model knows kernels and a link model knows collectives, each measured alone. Frameworks launch kernels from
Python, fuse few or many of them, bring links to part of their speed beside computation, and wait for the slowest of
many machines; GPUs run at the clocks that their power allows for hours. The
catalogue's row of a framework and `data/architectures.csv` hold the parameters, fitted by
`python -m tools.refit overheads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.cost.compute.operator_table import ATTENTION, GEMM, OperatorTable
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.catalog.frameworks import figures, framework_has, framework_rows
from shardwright.spec.catalog.gpus import gpus, gpus_with
from shardwright.spec.cluster import Gpu
from shardwright.spec.job import Framework, Job

SHARPNESS = 4.0  # of the smooth maximum of device time and host time; chosen, 2 to 8
# Of a layer's backward pass over its forward pass: two kernels for each product, one for most else.
BACKWARD_LAUNCHES = 1.5  # chosen, 1 to 2
# FlashAttention-2, which some frameworks call, does not use the asynchronous tensor cores of these architectures; it
# takes 1.5 to 2 times as long as FlashAttention-3 or cuDNN there (arXiv 2407.08608, figures 5 and 6).
ASYNCHRONOUS = ("Hopper", "Blackwell")
FLASH2_LOSS = 1.7  # documented
# Launches of a layer in fp8 over one in 16 bits: quantisation, maxima and transposes are kernels too.
FP8_LAUNCHES = 1.4  # chosen, 1 to 2
# A call of the host on Grace over one on x86: a product from PyTorch takes 33 µs on GH200 and 37 µs on GB200 where it
# takes 13.5 µs beside a Xeon 8480C (NVIDIA/TransformerEngine issue 2053); less where libraries make the calls.
GRACE_CALLS = 2.0  # chosen, 1.5 to 2.75
UPDATE_EFFICIENCY = 0.75  # of the memory's bandwidth; chosen, 0.6 to 0.9
# Of the speed of products, where a GPU is capped below the power of its data sheet. Power rises with the clock at a
# fixed voltage (1), with its cube where voltage follows the clock (0.33).
POWER_EXPONENT = 0.5  # chosen, 0.33 to 1


@record
class Overheads:
    """Multiples of what operators and links alone would take, and seconds that they do not have.

    `gemm`, `gemm_fp8`, `attention` and `memory` multiply the time of a kind of operator, `exchange` that of sending
    tokens to experts, `optimizer` that of the optimizer step; `intra` and `inter` multiply the bandwidth of links
    within and between machines, `latency` the time of a step between them. `launch_seconds` is the time of one of
    the calls by which the host launches the forward pass of a layer (`compute.launches`; a backward pass takes
    BACKWARD_LAUNCHES as long), which counts where the device would be faster; in a pipeline every tensor-parallel rank
    adds `rank_seconds`.
    `pass_seconds` comes with every pass of a micro-batch through a stage, `step_seconds` with every iteration, and
    every doubling of the machines makes stages slower by `straggling`.
    """

    gemm: float = 1.0
    gemm_fp8: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    exchange: float = 1.0
    intra: float = 1.0
    inter: float = 1.0
    latency: float = 1.0
    optimizer: float = 1.0
    launch_seconds: float = 0.0
    rank_seconds: float = 0.0
    pass_seconds: float = 0.0
    step_seconds: float = 0.0
    straggling: float = 0.0


@record
class Clocks:
    """Multiples of an architecture's operator times in training, which runs at the clocks of hours, not of bursts."""

    gemm: float = 1.0
    gemm_fp8: float = 1.0
    attention: float = 1.0


@record
class Calibration:
    """The overheads of every framework and the clocks of every architecture."""

    frameworks: Mapping[Framework, Overheads]
    architectures: Mapping[str, Clocks]

    def of(self, framework: Framework, gpu: Gpu) -> Overheads:
        """Return the overheads of `framework` on `gpu`. Architectures without runs are as their operators say."""
        software, clocks = self.frameworks[framework], self.architectures.get(gpu.architecture, Clocks())
        slower = power_factor(gpu)
        second = framework_has(framework, "flash2") and gpu.architecture in ASYNCHRONOUS
        return replace(
            software,
            launch_seconds=software.launch_seconds * (GRACE_CALLS if gpu.kind in gpus_with("grace") else 1.0),
            gemm=software.gemm * clocks.gemm * slower,
            gemm_fp8=software.gemm_fp8 * clocks.gemm_fp8 * slower,
            attention=software.attention * clocks.attention * slower * (FLASH2_LOSS if second else 1.0),
        )


def power_factor(gpu: Gpu) -> float:
    """Return by how much a GPU capped below its data sheet's power is slower in matrix products."""
    known = gpus().get(gpu.kind)
    if known is None or not 0.0 < gpu.tdp_watts < known.tdp_watts:
        return 1.0
    return float((known.tdp_watts / gpu.tdp_watts) ** POWER_EXPONENT)


@lru_cache
def shipped() -> Calibration:
    """Return the calibration that ships with the package."""
    return Calibration(
        frameworks={name: figures(Overheads, row) for name, row in framework_rows().items()},
        architectures={
            row["architecture"]: figures(Clocks, row)
            for row in shipped_table("shardwright.cost.frameworks", "architectures.csv")
        },
    )


def overheads(framework: Framework, gpu: Gpu) -> Overheads:
    """Return what `framework` adds on `gpu`."""
    return shipped().of(framework, gpu)


def kernel_factor(software: Overheads, job: Job, operators: OperatorTable) -> Floats:
    """Return by what the time of each operator is multiplied, [operators, 1]."""
    gemm = np.where(operators.low_precision & (job.precision == "fp8"), software.gemm_fp8, software.gemm)
    others = np.where(operators.kind == ATTENTION, software.attention, software.memory)
    return np.where(operators.kind == GEMM, gemm, others)


def host_seconds(software: Overheads, job: Job, launches: Floats | float) -> Floats | float:
    """Return the time in which the host makes so many calls (`compute.launches`), [M]."""
    return software.launch_seconds * launches * (FP8_LAUNCHES if job.precision == "fp8" else 1.0)


def launched_seconds(device: Array, host: Array | float) -> Floats:
    """Return the time of a pass that the device could run in `device` seconds and the host launches in `host`: a
    smooth maximum of both, monotone in each."""
    return np.asarray((device**SHARPNESS + host**SHARPNESS) ** (1.0 / SHARPNESS))
