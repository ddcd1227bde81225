"""Time of sending to host memory and back."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.spec.cluster import Gpu

PCIE_EFFICIENCY = 0.8  # of the link's rate, to and from host memory; chosen, 0.6 to 0.9


def to_host_seconds(gpu: Gpu, size: Array | float) -> Floats:
    """Return the time in which a GPU sends `size` bytes to the memory of its machine, or takes them from there."""
    return np.asarray(size / (gpu.pcie_bytes_per_second * PCIE_EFFICIENCY))


def exposed_offload_seconds(gpu: Gpu, size: Array, forward: Array, backward: Array) -> Floats:
    """Return what a layer waits whose input of `size` bytes leaves the GPU beside its forward pass and comes back
    beside the backward pass of the layer after it, which runs forward again."""
    travelling = to_host_seconds(gpu, size)
    return np.maximum(travelling - forward, 0.0) + np.maximum(travelling - forward - backward, 0.0)
