"""A rank of Megatron-Core 0.19: the exported arguments through Megatron-LM's own parser, then its own model, data
parallelism, optimizer and schedule.

What its usual modules of Transformer Engine and Apex do needs CUDA, so others stand in for them (`fused_modules`).
"""

from __future__ import annotations

import importlib.util
import math
import sys
import typing
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from shardwright.rehearsal.inside import fused_modules
from shardwright.rehearsal.inside.fake_device import even_lists
from shardwright.rehearsal.inside.guard import Refused
from shardwright.rehearsal.inside.meter import GRADIENTS, PARAMETERS, STATE, Meter

RELEASE = "0.19"
INSTALL = "tests/targets/megatron_venv.sh makes an environment; name its interpreter with `python=`"
FROM_THE_USER = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--lr", "1e-4")
# User buffers of Transformer Engine, which stay where they are; what nothing stands in for.
WITHOUT = ("--tp-comm-overlap", "--no-gradient-accumulation-fusion")
DISPATCHER, BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
SPLIT, EXCHANGE, KERNELS = "even split of tokens over experts", "all-to-all dispatcher", "fused kernels"
OF_EXPERTS = {
    SPLIT: "the host reads how many rows go where",
    EXCHANGE: "in place of DeepEP's or HybridEP's kernels, which keep no more of tokens than where they went",
}
OF_KERNELS = {
    KERNELS: "what torch.compile makes one kernel of allocates its results alone (megatron/core/jit.py: jit_fuser)",
}


def rehearse(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Run two steps of a rank, of which the second is measured: Adam's state appears in the first."""
    args, config = _configured(question, meter)
    _share_again(meter)
    latent: Any = import_module("megatron.core.transformer.multi_latent_attention")
    latent.fused_apply_mla_rope_for_q = fused_modules.rotated_queries
    latent.fused_apply_mla_rope_for_kv = fused_modules.rotated_keys_and_values
    if args.num_experts:
        _split_evenly(args, meter)
    models = _models(args, config, meter)
    training, core = import_module("megatron.training.training"), import_module("megatron.core.optimizer")
    wanted = training.get_megatron_optimizer_config(args)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    optimizer = core.get_megatron_optimizer(wanted, models)
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = import_module("megatron.core.distributed").finalize_model_grads
    config.no_sync_func = [model.no_sync for model in models] if len(models) > 1 else models[0].no_sync
    meter.mark(PARAMETERS, (parameter for model in models for parameter in model.parameters()))
    for model in models:
        for buffer in (*model.buffers, *model.expert_parallel_buffers):
            meter.mark(GRADIENTS, [buffer.grad_data])
            meter.mark(PARAMETERS, [buffer.param_data])
    for _ in range(2):
        meter.begin_step()
        _step(args, models, optimizer, int(question["micro_batches"]), meter)
        _mark_state(optimizer, meter)
    version = import_module("megatron.core").__version__
    reasons = fused_modules.SHIMS | OF_EXPERTS | OF_KERNELS
    shims = {name: why for name, why in reasons.items() if name in meter.used}
    return {"shims": shims, "choices": [f"megatron-core {version}"]}


def _split_evenly(args: Any, meter: Meter) -> None:
    """Have tokens go to experts as evenly as can be: those of a rank on their way, and those of its tensor-parallel
    experts together."""
    tokens = args.micro_batch_size * args.seq_length // args.context_parallel_size
    if args.sequence_parallel:
        tokens //= args.tensor_model_parallel_size
    routed = [_routed(args, tokens)] * 2
    together = routed[0] * (args.expert_tensor_parallel_size or args.tensor_model_parallel_size)
    even_lists(lambda: routed[-1])

    def sorted_chunks(rows: Any, sizes: Any, order: Any, probs: Any = None, fused: bool = False) -> tuple[Any, Any]:
        """Return chunks in the order in which they are, as fake tensors know no other."""
        parts = (None if part is None else part.split(sizes.tolist()) for part in (rows, probs))
        moved, weights = (None if part is None else torch.cat(part) for part in parts)
        return moved, weights

    def counted(run: Callable[..., Any], rows: int) -> Callable[..., Any]:
        def with_rows(self: Any, *args: Any, **kwargs: Any) -> Any:
            if rows == together and getattr(self, "output_splits_tp", None) is not None:
                self.output_splits_tp = np.full(together // routed[0], routed[0])
            routed[1] = rows
            return run(self, *args, **kwargs)

        return with_rows

    dispatchers: Any = import_module("megatron.core.transformer.moe.token_dispatcher")
    dispatchers.sort_chunks_by_idxs = sorted_chunks
    exchange = dispatchers.MoEAlltoAllTokenDispatcher
    exchange.preprocess = _known_rows(exchange.preprocess, routed[0])
    for kind in (exchange, dispatchers.MoEAllGatherTokenDispatcher):
        kind.dispatch_preprocess = counted(kind.dispatch_preprocess, routed[0])
        kind.dispatch_postprocess = counted(kind.dispatch_postprocess, together)
    if args.moe_token_dispatcher_type == "allgather":
        permute = dispatchers.permute
        dispatchers.permute = lambda *given, **rest: permute(*given, **(rest | {"num_out_tokens": together}))
    meter.used.add(SPLIT)


def _known_rows(run: Callable[..., Any], rows: int) -> Callable[..., Any]:
    """Return a dispatcher's `preprocess` after which it knows how many rows it sends, where the device decides that."""

    def preprocess(self: Any, *args: Any) -> Any:
        counts = run(self, *args)
        self.num_out_tokens = rows
        return counts

    return preprocess


def _routed(args: Any, tokens: int) -> int:
    """Return the rows that tokens become on their way to experts, as evenly as can be."""
    rows = tokens * args.moe_router_topk
    if args.moe_expert_capacity_factor is None:
        return int(rows)
    most = math.ceil(rows / args.num_experts * args.moe_expert_capacity_factor) * args.num_experts
    return int(most if args.moe_pad_expert_input_to_capacity else min(rows, most))


def _configured(question: dict[str, Any], meter: Meter) -> tuple[Any, Any]:
    """Return Megatron-LM's arguments and the transformer's configuration that it makes of them."""
    if not hasattr(typing, "override"):  # Megatron-LM 0.19 is written for Python 3.12; this is all that 3.11 lacks
        try:
            typing.override = import_module("typing_extensions").override  # type: ignore[attr-defined]
        except ImportError:
            raise Refused("typing_extensions", "is not installed", "pip install typing_extensions") from None
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise Refused("megatron-core", "is not installed where the trainer is to run", INSTALL)
    if importlib.util.find_spec("triton") is None:
        raise Refused("triton", "is not installed; Megatron-Core imports it", "pip install triton")
    fused_modules.install(meter)
    whole: Any = torch
    whole.compile = partial(_as_one_kernel, meter)
    version = str(import_module("megatron.core").__version__)
    if not version.startswith(f"{RELEASE}."):
        raise Refused("megatron-core", f"is {version}; exports are written for {RELEASE}", INSTALL)
    arguments = import_module("megatron.training.arguments")
    words = [word for word in question["arguments"] if word not in WITHOUT]
    if "flex" in words:
        words[words.index(DISPATCHER) + 1] = "alltoall"
        del words[words.index(BACKEND) : words.index(BACKEND) + 2]
        meter.used.add(EXCHANGE)
    sys.argv = ["pretrain_gpt.py", *words, *FROM_THE_USER]
    import os

    os.environ.update(WORLD_SIZE=str(question["world_size"]), RANK=str(question["rank"]), LOCAL_RANK="0")
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = import_module("megatron.training.argument_utils").core_transformer_config_from_args(args)
    config.perform_initialization = False
    return args, config


def _models(args: Any, config: Any, meter: Meter) -> list[Any]:
    """Return the virtual stages of the rank, in Megatron-Core's data parallelism."""
    parallel = import_module("megatron.core.parallel_state")
    parallel.initialize_model_parallel(
        args.tensor_model_parallel_size,
        args.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
    )
    for group, words in (
        (parallel.get_tensor_model_parallel_group(), "tensor"),
        (parallel.get_data_parallel_group(with_context_parallel=True), "gradient"),
        (parallel.get_expert_data_parallel_group(), "gradient"),
        (parallel.get_expert_model_parallel_group(), "expert"),
    ):
        meter.label(group, words)
    import_module("megatron.core.tensor_parallel").model_parallel_cuda_manual_seed(1)
    specs = import_module("megatron.core.models.gpt.gpt_layer_specs")
    gpt = import_module("megatron.core.models.gpt").GPTModel
    float16 = import_module("megatron.core.transformer.module").Float16Module
    chunks = args.virtual_pipeline_model_parallel_size or 1
    divisor = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    vocab = -(-args.vocab_size // divisor) * divisor
    models = []
    for chunk in range(chunks):
        first = parallel.is_pipeline_first_stage(ignore_virtual=True) and chunk == 0
        last = parallel.is_pipeline_last_stage(ignore_virtual=True) and chunk == chunks - 1
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=chunk)
        ahead = None
        if last and args.mtp_num_layers:  # as pretrain_gpt.py has it
            like = (
                spec if spec.layer_specs else specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=True)[-1]
            )
            ahead = specs.get_gpt_mtp_block_spec(config, like, use_transformer_engine=True, vp_stage=chunk)
        model = gpt(
            config=config, transformer_layer_spec=spec, mtp_block_spec=ahead, vocab_size=vocab,
            max_sequence_length=args.max_position_embeddings,
            pre_process=first, post_process=last, position_embedding_type=args.position_embedding_type,
            rotary_base=args.rotary_base,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            vp_stage=chunk if chunks > 1 else None,
        ).cuda()  # fmt: skip
        models.append(float16(config, model) if args.bf16 or args.fp16 else model)
    wanted = import_module("megatron.training.training").get_megatron_ddp_config(args)
    wanted.check_for_nan_in_grad = wanted.check_for_large_grads = False
    wrap = import_module("megatron.core.distributed").DistributedDataParallel
    return [wrap(config, wanted, model, disable_bucketing=number > 0) for number, model in enumerate(models)]


def _step(args: Any, models: list[Any], optimizer: Any, micro_batches: int, meter: Meter) -> None:
    length = args.seq_length // args.context_parallel_size

    def forward(_: Any, model: Any) -> tuple[Any, Any]:
        tokens = torch.zeros(args.micro_batch_size, length, dtype=torch.int64, device="cuda")
        positions = torch.arange(length, device="cuda")[None]

        def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            loss = losses.float().mean()
            return loss, {"loss": loss.detach()}

        return model(tokens, positions, None, labels=tokens), loss_of

    run = import_module("megatron.core.pipeline_parallel").get_forward_backward_func()
    several = len(models) > 1
    for model in models:
        model.zero_grad_buffer()
    optimizer.zero_grad()
    run(
        forward_step_func=forward, data_iterator=[None] * len(models) if several else None,
        model=models if several else models[0], num_microbatches=micro_batches, seq_length=args.seq_length,
        micro_batch_size=args.micro_batch_size, forward_only=False,
    )  # fmt: skip
    meter.phase = "update"
    optimizer.step()
    meter.phase = "forward"


def _mark_state(optimizer: Any, meter: Meter) -> None:
    """Say which memory holds fp32 weights and moments."""
    for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in chained.optimizer.param_groups:
            meter.mark(STATE, group["params"])
        for state in chained.optimizer.state.values():
            meter.mark(STATE, (value for value in state.values() if isinstance(value, torch.Tensor)))


def _share_again(meter: Meter) -> None:
    """Have what a module gives again stand for what it gave, without a C++ extension."""

    def share(given: torch.Tensor, again: torch.Tensor) -> None:
        with meter.one_kernel():
            given.untyped_storage().resize_(again.untyped_storage().nbytes())

    import_module("megatron.core.tensor_parallel.random")._get_share_storage = lambda: share  # type: ignore[attr-defined]


def _as_one_kernel(meter: Meter, function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    """Return a function of which only the results are allocated; without one, what makes it of one."""
    if function is None:
        return partial(_as_one_kernel, meter)

    def run(*args: Any, **kwargs: Any) -> Any:
        with meter.one_kernel():
            result = function(*args, **kwargs)
        with meter.shimmed(KERNELS):
            meter.given(result)
        return result

    return run
