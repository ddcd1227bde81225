"""Puts argument lists through Megatron-LM's own parser, validation and configuration, without a GPU.

Run by an interpreter that can import `megatron.training` (see megatron_venv.sh), not by the one that runs the tests:

    python check_megatron.py < cases.json > results.json
    python check_megatron.py defaults > defaults.json

A case is {"name", "arguments", "world_size", "environment": {name: value or null}, "capability": [major, minor]}. Its
result is {"name", "error"} or {"name", "values", "facts"}: what Megatron made of the arguments, and what the rules of
megatron_rules.py judge.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import typing
from importlib import import_module
from typing import Any

import typing_extensions

if not hasattr(typing, "override"):  # Megatron-LM 0.19 is written for Python 3.12; this is all that 3.11 lacks.
    typing.override = typing_extensions.override  # type: ignore[attr-defined]

FROM_THE_USER = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--lr", "1e-4")
# Fused rotary embedding is checked for by importing Transformer Engine, which needs CUDA.
WITHOUT_TRANSFORMER_ENGINE = ("--no-rope-fusion",)
TYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
VALUES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_size",
    "sequence_parallel",
    "use_tp_pp_dp_mapping",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
    "data_parallel_sharding_strategy",
    "optimizer",
    "optimizer_cpu_offload",
    "optimizer_offload_fraction",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
    "overlap_p2p_comm",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "train_iters",
    "bf16",
    "fp16",
    "fp8",
    "fp8_recipe",
    "num_experts",
    "mtp_num_layers",
    "multi_latent_attention",
)


def main() -> None:
    """Read cases from standard input, write results to standard output; what Megatron prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        found = defaults() if sys.argv[1:] == ["defaults"] else [result(case) for case in json.load(sys.stdin)]
    json.dump(found, sys.stdout)


def defaults() -> dict[str, str]:
    """Return the default of every argument, as one would write it; "" for none and for a switch that is off."""
    parser = import_module("megatron.training.arguments").add_megatron_arguments(argparse.ArgumentParser())
    return {flag: written(action.default) for action in parser._actions for flag in action.option_strings}


def written(default: Any) -> str:
    if isinstance(default, list):
        return " ".join(map(str, default))
    return "" if default is None or isinstance(default, bool) else str(getattr(default, "name", default))


def result(case: dict[str, Any]) -> dict[str, Any]:
    """Return what Megatron made of a case, or the error that it ended with."""
    for name, value in case["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.environ.update(WORLD_SIZE=str(case["world_size"]), RANK="0", LOCAL_RANK="0")
    try:
        values, facts = parsed(case["arguments"], tuple(case["capability"]))
        return {"name": case["name"], "values": values, "facts": facts}
    except (Exception, SystemExit) as error:
        return {"name": case["name"], "error": f"{type(error).__name__}: {error}"}


def parsed(words: list[str], capability: tuple[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse and validate an argument list for GPUs of a capability, build the transformer's and the optimizer's
    configuration from it."""
    arguments = megatron_arguments(capability)
    argument_utils = import_module("megatron.training.argument_utils")
    training = import_module("megatron.training.training")
    sys.argv = ["pretrain_gpt.py", *words, *FROM_THE_USER, *WITHOUT_TRANSFORMER_ENGINE]
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = argument_utils.core_transformer_config_from_args(args)
    with import_module("stand_ins").with_fused_adam():
        training.get_megatron_optimizer_config(args)
    training.get_megatron_ddp_config(args)
    values = {name: getattr(args, name) for name in VALUES}
    values |= {
        "layers_of_stages": layers_of_stages(config),
        "attention_backend": args.attention_backend.name,
        "num_query_groups": config.num_query_groups,
        "gated": config.gated_linear_unit,
        "bias": [config.add_bias_linear, config.add_qkv_bias],
        "window_size": config.window_size,
        "moe_layer_freq": config.moe_layer_freq,
        "options": options(args, config),
    }
    return values, facts(args, config)


def options(args: Any, config: Any) -> dict[str, Any]:
    """Return what Megatron made of the options of a plan."""
    kinds = (args.main_grads_dtype, args.main_params_dtype, args.exp_avg_dtype, args.exp_avg_sq_dtype)
    selective = args.recompute_granularity == "selective"
    return {
        "modules": sorted(config.recompute_modules) if selective else None,
        "fp32_gradients": args.accumulate_allreduce_grads_in_fp32,
        "precision_aware": args.use_precision_aware_optimizer,
        "types": [TYPES[str(kind)] for kind in kinds],
        "fused_loss": config.cross_entropy_loss_fusion,
        "dispatcher": config.moe_token_dispatcher_type if args.num_experts else None,
    }


def facts(args: Any, config: Any) -> dict[str, Any]:
    """Return what of a configuration the rules of megatron_rules.py judge."""
    latent, tensor = args.multi_latent_attention, args.tensor_model_parallel_size
    exchange = args.cp_comm_type[0] if isinstance(args.cp_comm_type, list) else args.cp_comm_type
    widths = [args.hidden_size, args.ffn_hidden_size // tensor]
    if args.num_experts:
        widths.append(config.moe_ffn_hidden_size // (args.expert_tensor_parallel_size or tensor))
    return {
        "backend": args.attention_backend.name,
        "head_qk": config.qk_head_dim + config.qk_pos_emb_head_dim if latent else config.kv_channels,
        "head_v": config.v_head_dim if latent else config.kv_channels,
        "groups": config.num_query_groups,
        "tensor": tensor,
        "context": args.context_parallel_size,
        "exchange": exchange or "p2p",
        "window": bool(config.window_size),
        "length": args.seq_length,
        "mask": args.create_attention_mask_in_dataloader,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        "fp8": bool(args.fp8),
        "recipe": args.fp8_recipe,
        "widths": widths,
        "rows": args.seq_length * args.micro_batch_size // args.context_parallel_size,
        "fsdp": args.use_megatron_fsdp,
        "overlap": args.tp_comm_overlap,
        "mtp": bool(args.mtp_num_layers),
        "method": args.recompute_method,
        "again": args.recompute_num_layers,
    }


def layers_of_stages(config: Any) -> list[list[int]] | None:
    """Return the decoder layers of each virtual stage of each pipeline rank, as the layout that Megatron made says."""
    decoder = import_module("megatron.core.transformer.enums").LayerType.decoder
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        return None
    return [[chunk.count(decoder) for chunk in rank] for rank in layout.layout]


def megatron_arguments(capability: tuple[int, int]) -> Any:
    """Return megatron.training.arguments, made to believe in a GPU of a capability and a recent Transformer Engine."""
    names = ("megatron.core.utils", "megatron.core.transformer.transformer_config", "megatron.training.arguments")
    modules: list[Any] = [import_module(name) for name in names]
    arguments = modules[-1]
    import_module("torch").cuda.get_device_capability = lambda *_: capability
    arguments.get_device_arch_version = lambda: capability[0]
    for module in modules:
        module.is_te_min_version = lambda *_, **__: True
    return arguments


if __name__ == "__main__":
    main()
