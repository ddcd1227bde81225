"""What GPUs and links can do at all, whatever software runs on them: one answer for search, check and exporters."""

from __future__ import annotations

from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Precision

FLASH_CAPABILITY = 8.0  # Ampere: FlashAttention-2's requirement (github.com/Dao-AILab/flash-attention, README)


def capability(gpu: Gpu) -> float:
    """Return the CUDA compute capability as a number (9.0), infinite where the GPU has none."""
    try:
        return float(gpu.compute_capability)
    except ValueError:
        return float("inf")


def fused_attention_runs(gpu: Gpu, precision: Precision) -> bool:
    """Whether FlashAttention has a kernel: from Ampere on, in 16 bits and less. Other makers have kernels of their own,
    in the same precisions."""
    return precision != "fp32" and capability(gpu) >= FLASH_CAPABILITY


def user_buffers_run(pool: NodePool) -> bool:
    """Whether Transformer Engine can overlap tensor-parallel communication with products: its user buffers are written
    by peers, over links that join GPUs directly."""
    return pool.gpu.link_domain > 1
