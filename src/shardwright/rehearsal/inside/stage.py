"""Sets the stage of a rehearsal: fake devices, a fake process group, fake tensors and the meter, around a runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.rehearsal.inside.fake_device import install
from shardwright.rehearsal.inside.kernels import CHOICES, SHIMS, choose_kernels
from shardwright.rehearsal.inside.meter import Meter
from shardwright.rehearsal.inside.peaks import blocks_at_peak, measured

Runner = Callable[[dict[str, Any], Meter], dict[str, Any]]


def played(question: dict[str, Any], runner: Runner) -> dict[str, Any]:
    """Return what a runner's step took."""
    meter = Meter()
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # imports what must see the devices as they are
    install(meter, question["gpu"])
    choose_kernels(meter)
    dist.init_process_group(
        "fake", store=FakeStore(), rank=int(question["rank"]), world_size=int(question["world_size"])
    )
    with fake, meter:
        said = runner(question, meter)
    result = measured(meter)
    said["choices"] = [*CHOICES, *said.get("choices", ())]
    reasons = SHIMS | said.pop("shims")
    said["shims"] = {
        name: {"why": why, "bytes": result["shims"].get(name, 0)}
        for name, why in reasons.items()
        if name in meter.used or name not in SHIMS
    }
    if question.get("blocks"):
        result["blocks"] = blocks_at_peak(meter)
    return result | said
