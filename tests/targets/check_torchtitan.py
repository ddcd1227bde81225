"""Puts exported configurations through torchtitan's own code, without a GPU.

Run by an interpreter that has torchtitan 0.3 (see targets.sh), as `checking` says.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.distributed.parallel_dims
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.pipeline_parallel import _split_module
from torchtitan.distributed.utils import set_spmd_backend

os.environ |= {"HF_ASSETS_PATH": "assets", "LEARNING_RATE": "3e-4"}
torchtitan.distributed.parallel_dims.device_type = "cpu"  # meshes of this process alone


def values(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return what torchtitan makes of a configuration, after all checks that need no GPU."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        sys.modules.pop("shardwright_plan", None)
        importlib.invalidate_caches()
        try:
            importlib.import_module("shardwright_plan")  # the manager would hide an ImportError
            config: Any = ConfigManager().parse_args(["--module", "shardwright_plan", "--config", "plan"])
        finally:
            sys.path.remove(folder)
    parallel, training = config.parallelism, config.training
    dims = ParallelDims(
        dp_replicate=parallel.data_parallel_replicate_degree,
        dp_shard=parallel.data_parallel_shard_degree,
        cp=parallel.context_parallel_degree,
        tp=parallel.tensor_parallel_degree,
        pp=parallel.pipeline_parallel_degree,
        ep=parallel.expert_parallel_degree,
        world_size=world_size,
    )
    with torch.device("meta"):
        model = config.model_spec.model.build()
    whole = dict(model.named_parameters())
    parts = parallel.module_fqns_per_model_part
    if parts is not None:
        found = [name for names in parts for name, _ in _split_module(model, names).named_parameters()]
        if sorted(_unsplit(found)) != sorted(whole):
            raise ValueError("the parts do not hold every parameter once")
        get_schedule_class(parallel.pipeline_parallel_schedule)
        if training.local_batch_size % parallel.pipeline_parallel_microbatch_size:
            raise ValueError("the local batch is no multiple of the micro-batch")
        if len(parts) % parallel.pipeline_parallel_degree:
            raise ValueError("the parts are no multiple of the pipeline ranks")
    _parallelised(config, world_size)
    data_parallel = dims.dp_replicate * dims.dp_shard
    if training.global_batch_size % (training.local_batch_size * data_parallel):
        raise ValueError("the global batch is no multiple of what the replicas take")
    return {
        "parameters": sum(each.numel() for each in whole.values()),
        "degrees": [dims.tp, dims.cp, dims.pp, data_parallel, dims.ep],
        "parts": None if parts is None else [sum(name.startswith("layers.") for name in names) for names in parts],
        "batch": [training.global_batch_size, training.local_batch_size, training.seq_len],
        "recompute": type(config.activation_checkpoint).__qualname__.split(".")[0],
    }


def _parallelised(config: Any, world_size: int) -> None:
    """Distribute the model of rank 0 as `Trainer.__init__` does, on the meta device and over groups that send nothing."""
    spec, training, parallelism = config.model_spec, config.training, config.parallelism
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        dims = ParallelDims.from_config(parallelism, world_size)
        dims.build_mesh()
        set_spmd_backend(parallelism.spmd_backend)
        spec.model.update_from_config(config=config)
        with torch.device("meta"):
            model = spec.model.build()
        settings = {
            "parallel_dims": dims, "training": training, "parallelism": parallelism, "compile_config": config.compile,
            "ac_config": config.activation_checkpoint, "dump_folder": "outputs",
        }  # fmt: skip
        if not dims.pp_enabled:
            spec.parallelize_fn(model, **settings)
            return
        spec.pipelining_fn(
            model, **settings, device=torch.device("cpu"), model_config=spec.model, parallelize_fn=spec.parallelize_fn,
            loss_fn=config.loss.build(compile_config=config.compile),
        )  # fmt: skip
    finally:
        dist.destroy_process_group()


def _unsplit(names: list[str]) -> list[str]:
    """Return names with the numbers that layers have in the whole model; parts number theirs from 0."""
    found: list[str] = []
    offset, before = 0, -1
    for name in names:
        head, _, rest = name.partition(".")
        if head != "layers":
            found.append(name)
            continue
        number, _, tail = rest.partition(".")
        if int(number) < before:
            offset += before + 1
        before = int(number)
        found.append(f"layers.{int(number) + offset}.{tail}")
    return found


if __name__ == "__main__":
    import_module("checking").answer(values)
