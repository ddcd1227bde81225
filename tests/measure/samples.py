"""Devices for the tests of measuring."""

from __future__ import annotations

from shardwright.measure.device import MeasuredDevice
from shardwright.spec.catalog.gpus import find_gpu


def device(**changes) -> MeasuredDevice:
    """An H200 machine, but for `changes`."""
    fields = {
        "name": "NVIDIA H200",
        "backend": "cuda",
        "count": 8,
        "gpu": find_gpu("H200"),
        "dtypes": ("bf16", "fp8", "fp16", "tf32", "fp32"),
        "memory_bytes": 150e9,
        "cache_bytes": 6e7,
        "multiprocessors": 132,
        "threads": None,
        "torch": "2.13.0",
        "cuda": "13.0",
        "driver": "580",
    }
    return MeasuredDevice(**(fields | changes))
