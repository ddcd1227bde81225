"""Puts exported configurations through Accelerate's own code, without a GPU. Run as `checking` says."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from accelerate import ParallelismConfig
from accelerate.commands.config import config_args
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env


def values(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return the environment that Accelerate makes of a configuration, and what its plugins read from it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accelerate.yaml"
        path.write_text(files["accelerate.yaml"], encoding="utf-8")
        config_args.load_config_from_file(str(path))
        arguments, *_ = _validate_launch_command(
            launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        )
    if arguments.num_processes != world_size:
        raise ValueError(f"{arguments.num_processes} processes for a world of {world_size}")
    environment = prepare_multi_gpu_env(arguments)
    known = {action.dest for action in launch_command_parser()._actions}
    document = yaml.safe_load(files["accelerate.yaml"])
    for part in ("fsdp_config", "parallelism_config"):
        unknown = set(document.get(part, {})) - known
        if unknown:  # Accelerate passes over them
            raise ValueError(f"{part}: {sorted(unknown)} is not known")
    told: dict[str, Any] = {"precision": environment.get("ACCELERATE_MIXED_PRECISION"), "nodes": arguments.num_machines}
    if arguments.use_fsdp:
        os.environ.update(environment)
        plugin = FullyShardedDataParallelPlugin()
        sizes = ParallelismConfig()
        sizes._validate_accelerator(
            SimpleNamespace(multi_device=True, num_processes=world_size, is_fsdp2=True, distributed_type="FSDP")
        )
        told |= {
            "fsdp": plugin.fsdp_version,
            "reshard": plugin.reshard_after_forward,
            "degrees": [sizes.dp_replicate_size, sizes.dp_shard_size, sizes.tp_size, sizes.cp_size],
        }
    return told


CLEAN = dict(os.environ)


def apart(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return the same in an environment without the variables of the case before."""
    os.environ.clear()
    os.environ.update(CLEAN)
    return values(files, world_size)


if __name__ == "__main__":
    import_module("checking").answer(apart)
