"""A rank of Megatron-Core 0.19: the exported arguments through Megatron-LM's own parser, then its own model, data
parallelism, optimizer and schedule.

What its usual modules of Transformer Engine and Apex do needs CUDA, so Megatron-Core's local modules stand in for them,
with a shim for flash attention (`FlashAttention`).
"""

from __future__ import annotations

import importlib.util
import sys
import typing
from importlib import import_module
from typing import Any

import torch

from shardwright.rehearsal.inside.fake_device import even_lists
from shardwright.rehearsal.inside.guard import Refused
from shardwright.rehearsal.inside.meter import GRADIENTS, PARAMETERS, STATE, Meter

RELEASE = "0.19"
INSTALL = "tests/targets/megatron_venv.sh makes an environment; name its interpreter with `python=`"
FROM_THE_USER = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--lr", "1e-4")
# User buffers of Transformer Engine, and its product of many experts in one kernel.
WITHOUT = ("--tp-comm-overlap", "--moe-grouped-gemm")
DISPATCHER, BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
LOCAL = (
    "--transformer-impl", "local", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion", "--no-rope-fusion",
    "--no-masked-softmax-fusion",
)  # fmt: skip
ATTENTION, NORM, SQUARES = "flash attention", "norms of sequence parallelism", "gradient norm"
SPLIT, EXCHANGE = "even split of tokens over experts", "all-to-all dispatcher"
SHIMS = {
    ATTENTION: "keeps q, k, v, its output and an fp32 number a row and head, as FlashAttention-2 does "
    "(flash_attn_interface.py: FlashAttnFunc.forward); Transformer Engine's module is not run",
    NORM: "torch.nn.RMSNorm, which Megatron-Core's local modules refuse under sequence parallelism; Transformer Engine "
    "has a norm fused with the product after it, which keeps the same input",
    SQUARES: "Apex' and Transformer Engine's multi-tensor kernels; one number a bucket",
}
CHOICES = (
    "optimizer: torch.optim.AdamW in place of Apex' or Transformer Engine's fused Adam",
    "gradients of weights are added to their buffers by autograd, not by the fused kernel",
    "layers of Megatron-Core's local modules, in place of Transformer Engine's",
)
OF_EXPERTS = {
    SPLIT: "the host reads how many rows go where",
    EXCHANGE: "in place of DeepEP's or HybridEP's kernels, which keep no more of tokens than where they went",
}
EXPERT_CHOICES = ("experts run one after another (SequentialMLP), in place of Transformer Engine's grouped product",)


def rehearse(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Run two steps of a rank, of which the second is measured: Adam's state appears in the first."""
    args, config = _configured(question, meter)
    _stand_ins(meter)
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
    experts = EXPERT_CHOICES if args.num_experts else ()
    shims = SHIMS | {name: why for name, why in OF_EXPERTS.items() if name in meter.used}
    return {"shims": shims, "choices": [*CHOICES, *experts, f"megatron-core {version}"]}


def _split_evenly(args: Any, meter: Meter) -> None:
    """Have tokens go to experts as evenly as can be."""
    tokens = args.micro_batch_size * args.seq_length // args.context_parallel_size
    if args.sequence_parallel:
        tokens //= args.tensor_model_parallel_size
    even_lists(tokens * args.moe_router_topk)

    def sorted_chunks(rows: Any, sizes: Any, order: Any, probs: Any = None, fused: bool = False) -> tuple[Any, Any]:
        """Return chunks in the order in which they are, as fake tensors know no other."""
        parts = (None if part is None else part.split(sizes.tolist()) for part in (rows, probs))
        moved, weights = (None if part is None else torch.cat(part) for part in parts)
        return moved, weights

    import_module("megatron.core.transformer.moe.token_dispatcher").sort_chunks_by_idxs = sorted_chunks  # type: ignore[attr-defined]
    meter.used.add(SPLIT)


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
    version = str(import_module("megatron.core").__version__)
    if not version.startswith(f"{RELEASE}."):
        raise Refused("megatron-core", f"is {version}; exports are written for {RELEASE}", INSTALL)
    arguments = import_module("megatron.training.arguments")
    words = [word for word in question["arguments"] if word not in WITHOUT]
    if "flex" in words:
        words[words.index(DISPATCHER) + 1] = "alltoall"
        del words[words.index(BACKEND) : words.index(BACKEND) + 2]
        meter.used.add(EXCHANGE)
    sys.argv = ["pretrain_gpt.py", *words, *FROM_THE_USER, *LOCAL]
    import os

    os.environ.update(WORLD_SIZE=str(question["world_size"]), RANK=str(question["rank"]), LOCAL_RANK="0")
    args = arguments.parse_args()
    arguments.validate_args(args)
    config = import_module("megatron.training.argument_utils").core_transformer_config_from_args(args)
    config.perform_initialization = False
    config.bias_dropout_fusion = False
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
    if args.num_experts:
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization
        )
        layers = spec.layer_specs
    else:
        spec = specs.get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization=config.normalization)
        layers = [spec]
    for layer in layers:
        layer.submodules.self_attention.submodules.core_attention = _attention_module(meter)
    chunks = args.virtual_pipeline_model_parallel_size or 1
    divisor = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    vocab = -(-args.vocab_size // divisor) * divisor
    models = []
    for chunk in range(chunks):
        first = parallel.is_pipeline_first_stage(ignore_virtual=True) and chunk == 0
        last = parallel.is_pipeline_last_stage(ignore_virtual=True) and chunk == chunks - 1
        model = gpt(
            config=config, transformer_layer_spec=spec, vocab_size=vocab,
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


def _stand_ins(meter: Meter) -> None:
    norms = import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm

    def norm(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        meter.used.add(NORM)
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        made: Any = kind(hidden_size, eps=eps)
        for parameter in made.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return made

    def squares(*_: Any) -> tuple[torch.Tensor, None]:
        with meter.shimmed(SQUARES):
            return torch.zeros(1, device="cuda"), None

    norms.__new__ = norm
    clipping: Any = import_module("megatron.core.optimizer.clip_grads")
    clipping.multi_tensor_applier = squares


def _attention_module(meter: Meter) -> Any:
    base: Any = import_module("megatron.core.transformer.module").MegatronModule

    class CoreAttention(base):  # type: ignore[misc]
        """Core attention [positions, batch, heads, size] by the shim."""

        def __init__(self, config: Any, layer_number: int, *_: Any, **__: Any) -> None:
            super().__init__(config)

        def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
            function: Any = FlashAttention
            out = function.apply(query, key, value, meter)
            return out.reshape(*out.shape[:2], -1)

    return CoreAttention


class FlashAttention(torch.autograd.Function):
    """What FlashAttention-2 allocates, keeps and computes."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, meter: Meter) -> Any:
        length, batch, heads, _ = query.shape
        with meter.shimmed(ATTENTION):
            out = torch.empty(length, batch, heads, value.shape[3], dtype=query.dtype, device=query.device)
            sums = torch.empty(batch, heads, length, dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.meter, ctx.flops = meter, batch * heads * length * key.shape[0] * (query.shape[3] + value.shape[3])
        meter.add_flops(ATTENTION, ctx.flops)  # the half of the scores that is used
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        ctx.meter.add_flops(ATTENTION, 2.5 * ctx.flops)
        with ctx.meter.shimmed(ATTENTION):
            sums = torch.empty(query.shape, dtype=torch.float32, device=query.device)  # of the queries' gradient
            result = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None)
            del sums
        return result
