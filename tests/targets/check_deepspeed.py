"""Puts exported configurations through DeepSpeed's own code, without a GPU. Run as `checking` says."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any
from unittest import mock

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig

KNOWN = {  # DeepSpeed passes over keys at the top that it does not know: these are in its documentation
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "bf16",
    "fp16",
    "tensor_parallel",
    "communication_data_type",
    "data_types",
}
TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16"}


def values(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return what DeepSpeed makes of a configuration; its world is that of data parallelism."""
    document = json.loads(files["ds_config.json"])
    if unknown := set(document) - KNOWN:
        raise ValueError(f"{sorted(unknown)} is not known")
    tensor = document.get("tensor_parallel", {}).get("autotp_size", 1)
    with (
        mock.patch.object(deepspeed.comm, "get_world_size", return_value=world_size // tensor),
        mock.patch.object(deepspeed.comm, "get_rank", return_value=0),
        mock.patch("deepspeed.runtime.config.dist.get_world_size", return_value=world_size // tensor),
        mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0),
    ):
        found = DeepSpeedConfig(document)
    offload = found.zero_config.offload_optimizer
    return {
        "batch": [found.train_batch_size, found.train_micro_batch_size_per_gpu, found.gradient_accumulation_steps],
        "stage": int(found.zero_config.stage),
        "offload": 0.0
        if offload is None or str(offload.device) in ("none", "OffloadDeviceEnum.none")
        else offload.ratio,
        "bf16": found.bfloat16_config.enabled if hasattr(found, "bfloat16_config") else None,
        "tensor": tensor,
        "reduction": TYPES.get(str(found.communication_data_type)),
    }


if __name__ == "__main__":
    import_module("checking").answer(values)
