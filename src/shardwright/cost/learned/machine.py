"""What the efficiency models know of a GPU: the speed of each of its arithmetics, memory, caches and power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shardwright.errors import bad
from shardwright.records import record
from shardwright.spec.catalog.gpus import gpus_with
from shardwright.spec.cluster import Gpu
from shardwright.units import TERA

TENSOR, VECTOR, FP8, FP8_BLOCK = ("tensor", "vector", "fp8", "fp8_block")

REFERENCE_METHOD = "aiconfigurator"  # times of kernels alone, the best version of each shape
TRAINING_METHOD = "simumax"  # Transformer Engine in a long run: grouped products and the backward of attention
METHODS = (
    *(REFERENCE_METHOD, "aiter", "deepbench", "github_issue_fa", "llmcompass", "neusight"),
    *("neusight_trace", "rocblas_tensile", "sailor_aceso", "simumax", "vidur"),
)
# In the order in which the trees see them: each vendor's by age. Unknown ones count as their vendor's newest.
GENERATIONS = {
    "nvidia": ("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"),
    "intel": ("BMG",),
    "amd": ("CDNA1", "CDNA2", "CDNA3", "CDNA4"),
}

# Consumer cards run above the boost clock of their data sheet: RTX 3090 1.10 and RTX 4090 1.08 of the peak in the best
# matrix product of stas00/ml-engineering (MAMF), which data-centre parts reach 0.75 to 0.87 of.
CONSUMER_BOOST = 1.15  # measured

# Long runs heat the chip and lower its clock, the more so the less power each unit of 16-bit arithmetic has; and what
# a library picks is not the best version of a kernel. Speed in long runs (MooreThreads/SimuMax configs/system,
# microsoft/vidur) over that of the best kernels of ai-dynamo/aiconfigurator@095f58a, shapes of training: A100-SXM 0.86,
# A100-PCIe 0.80, H100 0.80, B200 0.63. exp(-(a + b (TFLOP/s per watt)^c)) gives 0.86, 0.82, 0.76, 0.64.
CHOSEN_LOSS = 0.05  # fitted
SUSTAINED_LOSS, SUSTAINED_POWER = 0.14, 1.3  # fitted
SUSTAINED_FLOOR = 0.6  # below the 0.63 of B200; chosen, 0.5 to 0.63
# Of the loss of 16-bit products: fp8 kernels keep the tensor cores less busy, so draw less power.
FP8_POWER_LOSS = 0.5  # chosen, 0 to 1

# Watts that one TFLOP/s of fp32 on the vector units takes at full clock, by the process of the architecture (16, 12, 7
# and 5 nm; each step of process at about the ratio its foundry states); chosen, 0.7 to 1.4 times. With less, the clock
# falls with the root.
VECTOR_WATTS = {"Pascal": 22.0, "Volta": 18.0, "Turing": 18.0, "Ampere": 9.0, "CDNA1": 9.0, "CDNA2": 8.0}
VECTOR_WATTS_NEWER = 6.0  # chosen, 4 to 8
BOARD_WATTS = 25.0  # that memory, regulators and leakage take of the power limit in any case; chosen, 0 to 60

# Special function units of a multiprocessor (arXiv 2407.08608 §2.2); Blackwell Ultra has twice as many for exponentials
# (NVIDIA Blackwell Ultra architecture brief, 2025).
EXPONENTIALS_PER_CLOCK, DOUBLE_EXPONENTIALS = 16.0, "10.3"  # datasheet

SMALLEST_CACHE_BYTES = 1e6  # numeric


@record
class Facts:
    """One GPU computing in one arithmetic. `element_bytes` is the size of an operand, `watts_per_teraflops` the power
    limit over the dense peak of that arithmetic (of 16-bit arithmetic for fp8), `method` whose way of measuring counts.
    """

    gpu: str
    architecture: str
    vendor: str
    method: str
    arithmetic: str
    element_bytes: float
    flops_per_second: float
    bytes_per_second: float
    multiprocessors: int
    exponentials_per_second: float
    l2_bytes: float
    watts_per_teraflops: float


def facts(gpu: Gpu, precision: str, *, block: bool = False, method: str = REFERENCE_METHOD) -> Facts:
    """Return the facts for products with operands of `precision` (fp32, tf32, fp16, bf16, fp8); `block`: fp8 scaled by
    blocks. Raises SpecError where the GPU cannot compute in it."""
    peaks = dict(gpu.peak_flops)
    used = "tf32" if precision == "fp32" and gpu.vendor == "amd" and "tf32" in peaks else precision
    peak = peaks.get(used)
    if peak is None:
        able = ", ".join(name for name, _ in gpu.peak_flops)
        raise bad("precision", f"{gpu.name} cannot compute in {precision}", f"it has {able}")
    half = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or peak
    arithmetic = TENSOR
    if precision == "fp32":
        arithmetic = VECTOR
    elif precision == "fp8" and peak > half:
        arithmetic = FP8_BLOCK if block else FP8
    per_clock = EXPONENTIALS_PER_CLOCK * (2.0 if gpu.compute_capability == DOUBLE_EXPONENTIALS else 1.0)
    boost = CONSUMER_BOOST if gpu.kind in gpus_with("consumer") else 1.0
    return Facts(
        gpu=gpu.kind,
        architecture=gpu.architecture,
        vendor=gpu.vendor,
        method=method,
        arithmetic=arithmetic,
        element_bytes={"fp32": 4.0, "tf32": 4.0, "fp8": 1.0}.get(precision, 2.0),
        flops_per_second=peak * boost,
        bytes_per_second=gpu.memory_bytes_per_second,
        multiprocessors=gpu.multiprocessors,
        exponentials_per_second=gpu.multiprocessors * gpu.clock_hertz * boost * per_clock,
        l2_bytes=max(gpu.l2_bytes, SMALLEST_CACHE_BYTES),
        watts_per_teraflops=gpu.tdp_watts / ((peak if arithmetic == VECTOR else half) / TERA),
    )


def generation(machine: Facts) -> float:
    """Return the place of the architecture among all known ones."""
    known = GENERATIONS.get(machine.vendor, GENERATIONS["nvidia"])
    name = machine.architecture if machine.architecture in known else known[-1]
    return float([architecture for names in GENERATIONS.values() for architecture in names].index(name))


def method_code(machine: Facts) -> float:
    """Return the place of the method of measuring among all known ones; unknown ones count as the reference."""
    return float(METHODS.index(machine.method)) if machine.method in METHODS else 0.0


def sustained_share(machine: Facts) -> float:
    """Return the speed of matrix products in a long run over that in a short burst (see above)."""
    if machine.arithmetic == VECTOR:
        return 1.0
    hot = FP8_POWER_LOSS if machine.arithmetic in (FP8, FP8_BLOCK) else 1.0
    loss = CHOSEN_LOSS + hot * SUSTAINED_LOSS * machine.watts_per_teraflops**-SUSTAINED_POWER
    return float(max(np.exp(-loss), SUSTAINED_FLOOR))


def sustained(machine: Facts) -> Facts:
    """Return the facts at the clock of a long run of matrix products. Fused attention keeps its speed: its times in
    long runs (A100-PCIe 0.93, B200 1.04 of the burst: MooreThreads/SimuMax) show no such loss."""
    return replace(machine, flops_per_second=machine.flops_per_second * sustained_share(machine))


def in_training(machine: Facts) -> Facts:
    """Return the facts as training frameworks find them, where no kernel was measured alone."""
    return replace(machine, method=TRAINING_METHOD)


def power_share(machine: Facts) -> float:
    """Return the share of its full clock at which a GPU computes fp32 on its vector units under its power limit."""
    if machine.arithmetic != VECTOR:
        return 1.0
    needed = VECTOR_WATTS.get(machine.architecture, VECTOR_WATTS_NEWER)
    free = max(machine.watts_per_teraflops - BOARD_WATTS / (machine.flops_per_second / TERA), 0.1)
    return float((1.0 + (needed / free) ** 2) ** -0.25)
