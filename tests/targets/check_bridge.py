"""Puts exported recipes through Megatron-Bridge's own validation, without a GPU. Run as `checking` says.

Packages that need CUDA, or that no recipe of ours uses, have stand-ins: modules in which every name is an empty class.
Transformer Engine's comes after megatron-core has been imported, which looks whether it is there.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

import typing_extensions

if not hasattr(typing, "override"):  # Megatron is written for Python 3.12; this is all that 3.11 lacks.
    typing.override = typing_extensions.override  # type: ignore[attr-defined]

STAND_INS = {
    *("modelopt", "nvidia_resiliency_ext", "multistorageclient", "peft", "diffusers", "megatron.energon", "wandb"),
    *("mlflow", "comet_ml", "nemo_run", "qwen_vl_utils", "imageio", "open_clip", "timm", "flash_attn", "datasets"),
}
CORE = (
    *("models.gpt.gpt_model", "models.gpt.gpt_layer_specs", "optimizer", "distributed", "transformer.moe.moe_layer"),
    "transformer.multi_latent_attention",
)
TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
USERS = {"DATA_PATH": "data", "TOKENIZER_MODEL": "tokenizer", "CHECKPOINT_DIR": "out", "LEARNING_RATE": "1e-4", "TRAIN_ITERS": "10"}  # fmt: skip


class Empty(type):
    """A class of which every attribute is another."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class StandIn(types.ModuleType):
    __version__ = "2.9.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        wanted = any(name == known or name.startswith(f"{known}.") for known in STAND_INS)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def values(files: dict[str, str], world_size: int) -> dict[str, Any]:
    """Return what Megatron-Bridge makes of a recipe."""
    os.environ |= {**USERS, "WORLD_SIZE": str(world_size), "RANK": "0", "LOCAL_RANK": "0"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.py"
        path.write_text(files["shardwright_recipe.py"], encoding="utf-8")
        spec = importlib.util.spec_from_file_location("recipe", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    with importlib.import_module("stand_ins").with_fused_adam():
        config = module.pretrain_config()
        config.validate()
    model = config.model
    layout = getattr(model, "pipeline_model_parallel_layout", None)
    return {
        "degrees": [
            model.tensor_model_parallel_size,
            model.context_parallel_size,
            model.pipeline_model_parallel_size,
            config.data_parallel_size,
            model.expert_model_parallel_size,
        ],
        "virtual": model.virtual_pipeline_model_parallel_size or 1,
        "layers": model.num_layers,
        "stages": None if layout is None else len(layout.layout) if hasattr(layout, "layout") else str(layout),
        "batch": [config.train.micro_batch_size, config.train.global_batch_size, model.seq_length],
        "recompute": model.recompute_granularity or "none",
        "sequence": model.sequence_parallel,
        "distributed": config.ddp.use_distributed_optimizer,
        "fsdp": config.ddp.use_megatron_fsdp,
        "fp8": config.mixed_precision.fp8 is not None,
        "options": options(config),
    }


def options(config: Any) -> dict[str, Any]:
    """Return what Megatron-Bridge made of the options of a plan. In fp32 and fp16 gradients are as they are."""
    model, optimizer, selective = config.model, config.optimizer, config.model.recompute_granularity == "selective"
    kinds = (
        optimizer.main_grads_dtype,
        optimizer.main_params_dtype,
        optimizer.exp_avg_dtype,
        optimizer.exp_avg_sq_dtype,
    )
    return {
        "modules": sorted(model.recompute_modules) if selective else None,
        "fp32_gradients": config.mixed_precision.grad_reduce_in_fp32,
        "precision_aware": optimizer.use_precision_aware_optimizer,
        "types": [TYPES[str(kind)] for kind in kinds],
        "fused_loss": model.cross_entropy_loss_fusion,
        "dispatcher": model.moe_token_dispatcher_type if model.num_moe_experts else None,
    }


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        sys.meta_path.insert(0, Finder())
        for name in CORE:
            importlib.import_module(f"megatron.core.{name}")
        STAND_INS.update(("transformer_engine", "transformer_engine_torch"))
        hopper = types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100")  # what DeepEP is allowed on
        importlib.import_module("torch").cuda.get_device_properties = lambda *_: hopper
    importlib.import_module("checking").answer(values)


if __name__ == "__main__":
    main()
