"""`Options`: what a trainer does alike on every GPU, whatever the layout, and leaves to the user to choose.

Names and values are Megatron-LM's (core_v0.19); the catalogue's row of a framework says which of them it has. An option
that is None is the framework's own, and is priced as the published runs of that framework ran.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from shardwright.records import record

Module = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]
MODULES: tuple[Module, ...] = get_args(Module)
GradReduce = Literal["fp32", "bf16"]
MainGrads = Literal["fp32", "bf16"]
MainParams = Literal["fp32", "fp16"]
ParamGather = Literal["bf16", "fp8"]
MasterWeights = Literal["fp32", "none"]
ActivationOffload = Literal["none", "inputs"]
WeightOffload = Literal["none", "host"]
GradientSync = Literal["every", "last"]
Moment = Literal["fp32", "bf16", "fp16", "fp8"]
Loss = Literal["unfused", "fused", "chunked", "tiled"]
Dispatcher = Literal["alltoall", "allgather", "flex"]
ExpertPadding = Literal["none", "capacity"]
ExpertProducts = Literal["grouped", "loop"]
CudaGraph = Literal["none", "moe", "attention", "layers", "full"]
ExchangeOverlap = Literal["none", "batches"]
WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}  # bytes of an element
STATE = ("main_grads", "main_params", "exp_avg", "exp_avg_sq")


@record
class Options:
    """`recompute_modules` are what selective recomputation runs again, in the order of `MODULES`. `grad_reduce` is the
    type in which gradients are accumulated and reduced. The four of `STATE` are those of the precision-aware optimizer,
    which is used where any of them is said; those that are not said are fp32 then. A `fused` loss goes over the logits
    in few kernels; a `chunked` one has those of some tokens at a time, with the output projection inside; a `tiled` one
    those of some tokens and a part of the vocabulary, once more in the backward pass (TRL from 1.7 on). With
    `master_weights` none the 16-bit weights are updated as they are (with or without stochastic rounding), and
    gradients and moments have their type. `activation_offload` keeps the inputs of layers that run again in host
    memory, `weight_offload` a rank's part of sharded weights (ZeRO-3). `dispatcher` sends tokens to their experts: one
    copy for each expert (`alltoall`), all tokens to all ranks (`allgather`), or one copy for each machine (`flex`:
    DeepEP, HybridEP). Of what a rank routes to an expert, that takes `expert_capacity` times an even share at most and
    the rest is dropped, or exactly so much with `expert_padding` to the capacity; None drops nothing.
    `expert_imbalance` is what the fullest of the ranks that share experts computes over their mean (None: 1, forced
    balance). Experts of transformers are multiplied together (`grouped`, as release 5 does), or one after another in a
    `loop` (`expert_products`). Sharded gradients are summed in `every` micro-batch, or whole ones are kept until the
    `last` (`gradient_sync`). CUDA graphs launch nothing, the router and what counts its tokens (`moe`), that and
    attention, whole layers, or the `full` iteration (`cuda_graph`); with `exchange_overlap` tokens are sent to experts
    beside the computation of other micro-batches. With `param_gather` in fp8 the weights of fp8 products are kept and
    gathered in 8 bits alone."""

    recompute_modules: tuple[Module, ...] | None = None
    grad_reduce: GradReduce | None = None
    main_grads: MainGrads | None = None
    main_params: MainParams | None = None
    exp_avg: Moment | None = None
    exp_avg_sq: Moment | None = None
    loss: Loss | None = None
    dispatcher: Dispatcher | None = None
    expert_capacity: float | None = None
    expert_padding: ExpertPadding | None = None
    expert_imbalance: float | None = None
    expert_products: ExpertProducts | None = None
    master_weights: MasterWeights | None = None
    activation_offload: ActivationOffload | None = None
    weight_offload: WeightOffload | None = None
    gradient_sync: GradientSync | None = None
    param_gather: ParamGather | None = None
    cuda_graph: CudaGraph | None = None
    exchange_overlap: ExchangeOverlap | None = None

    @property
    def precision_aware(self) -> bool:
        """Whether the precision-aware optimizer is used."""
        return any(getattr(self, name) is not None for name in STATE)

    @property
    def padded(self) -> bool:
        """Whether every expert computes exactly its capacity."""
        return self.expert_padding == "capacity"

    @property
    def weights_in_host(self) -> bool:
        """Whether a rank's part of the weights is in host memory."""
        return self.weight_offload == "host"

    @property
    def bf16_gradients(self) -> bool:
        """Whether gradients are kept and reduced in bf16. With bf16 main gradients they are, unless told otherwise
        (arguments.py 1186-1194 of Megatron-LM core_v0.19.2)."""
        return (self.grad_reduce or self.main_grads or ("bf16" if self.master_weights == "none" else None)) == "bf16"


DEFAULTS = Options()


def _words(hint: Any) -> tuple[str, ...]:
    """The words of the Literal inside a type hint, none for a number."""
    arguments = get_args(hint)
    return (
        arguments if get_origin(hint) is Literal else tuple(word for argument in arguments for word in _words(argument))
    )


VALUES: dict[str, tuple[str, ...]] = {name: _words(hint) for name, hint in get_type_hints(Options).items()}
"""The words of each option, none of those that are numbers."""


def said(options: Options) -> dict[str, str]:
    """Return the options that are not the framework's own as words, by name."""
    values = {field.name: getattr(options, field.name) for field in fields(Options)}
    return {name: word_of(value) for name, value in values.items() if value is not None}


def word_of(value: str | float | tuple[str, ...]) -> str:
    """Return the value of an option as a word; modules are joined by `+`."""
    if isinstance(value, str):
        return value
    return "+".join(value) if isinstance(value, tuple) else f"{value:.15g}"


def ordered(modules: set[str]) -> tuple[Module, ...] | None:
    """Return modules in the order of `MODULES`; None for core attention alone, which is what Megatron-LM recomputes
    unless told otherwise."""
    in_order = tuple(module for module in MODULES if module in modules)
    return None if in_order == ("core_attn",) else in_order
