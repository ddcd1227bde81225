"""Devices for the tests of measuring, and the few shapes that most of them measure."""

from __future__ import annotations

from shardwright.measure.device import MeasuredDevice
from shardwright.measure.operators import ShapeSettings, operator_rows
from shardwright.spec.catalog.gpus import find_gpu
from shardwright.spec.read.machine_profile import OperatorTime


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


def few_rows(device: MeasuredDevice, settings: ShapeSettings) -> tuple[OperatorTime, ...]:
    """Return one shape of each kind, direction and type of number that a run would measure."""
    return tuple({(row.kind, row.direction, row.dtype): row for row in operator_rows(device, settings)}.values())
