"""Transformer Engine 2.8 as Megatron-Core meets it: modules with its parameters, which allocate, keep, compute and send
what its own do, and its fused rotation and Adam.

Transformer Engine is not importable without CUDA, so these stand in for it under its name (`install`), and
Megatron-Core builds its usual layers from them. Files named here are those of transformer_engine/pytorch, release 2.8.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from shardwright.rehearsal.inside.meter import Meter

VERSION = "2.8.0"
LINEAR, NORM, EXPERTS, ATTENTION, ROTATION, ADAM, SQUARES = (
    "linear layers", "norms", "grouped linear layers", "attention", "fused rotation", "fused Adam", "gradient norm"
)  # fmt: skip
SHIMS = {
    LINEAR: "keep their input, before and after a norm that is fused with them, gather it anew for the gradient of the "
    "weight, which goes to its buffer, and give autograd one empty tensor for all weights of a shape (module/{linear,"
    "layernorm_linear,base}.py: get_dummy_wgrad)",
    NORM: "keep their input, made contiguous, and an fp32 number a row (ops/basic/rmsnorm.py)",
    EXPERTS: "keep the rows of all experts, and give autograd an empty tensor for the gradient of each weight "
    "(module/grouped_linear.py)",
    ATTENTION: "keeps q, k, v, its output and an fp32 number a row and head; makes q, k and v contiguous unless they "
    "lie interleaved in one tensor (attention/dot_product_attention/utils.py: get_qkv_layout); on context-parallel "
    "ranks keys and values of all go through buffers of this one (context_parallel.py: AttnFuncWithCPAndKVP2P)",
    ROTATION: "keeps its angles alone (attention/rope.py: FusedRoPEFunc; of latent attention Megatron-Core's own "
    "kernel, fusions/fused_mla_yarn_rope_apply.py)",
    ADAM: "updates in place (optimizers/fused_adam.py)",
    SQUARES: "multi-tensor kernels; one number a bucket",
}
FLASH_BACKWARD = 2.5  # arXiv 2205.14135, algorithm 4: five products for two
_METER: list[Meter] = []
_EMPTY: dict[tuple[Any, ...], torch.Tensor] = {}


def install(meter: Meter) -> None:
    """Have imports of Transformer Engine find these modules."""
    _METER[:] = [meter]
    names: dict[str, dict[str, Any]] = {
        "transformer_engine": {"__version__": VERSION},
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {"DelayedScaling": type("DelayedScaling", (), {})},
        "transformer_engine.pytorch": {
            "Linear": Linear, "LayerNormLinear": LayerNormLinear, "GroupedLinear": GroupedLinear, "RMSNorm": RMSNorm,
            "LayerNorm": LayerNorm, "DotProductAttention": DotProductAttention,
            "ops": types.SimpleNamespace(Sequential=None, FusibleOperation=None),
        },
        "transformer_engine.pytorch.distributed": {
            "CudaRNGStatesTracker": type("CudaRNGStatesTracker", (), {}),
            "activation_recompute_forward": lambda *_, **__: nullcontext(),
        },
        "transformer_engine.pytorch.fp8": {
            "FP8GlobalStateManager": types.SimpleNamespace(
                is_fp8_enabled=lambda: False, get_fp8_recipe=lambda: None,
            ),
            "fp8_autocast": lambda **_: nullcontext(), "fp8_model_init": lambda **_: nullcontext(),
        },
        "transformer_engine.pytorch.attention": {},
        "transformer_engine.pytorch.module": {},
        "transformer_engine.pytorch.module.base": {"get_dummy_wgrad": _empty},
        "transformer_engine.pytorch.router": {
            f"fused_{name}": None for name in (
                "topk_with_score_function", "compute_score_for_moe_aux_loss", "moe_aux_loss",
            )
        },
        "transformer_engine.pytorch.tensor": {"QuantizedTensor": type("QuantizedTensor", (), {})},
        "transformer_engine.pytorch.attention.rope": {"apply_rotary_pos_emb": rotated},
        "transformer_engine.pytorch.optimizers": {
            "FusedAdam": FusedAdam, "FusedSGD": torch.optim.SGD, "multi_tensor_applier": _applied,
            "multi_tensor_l2norm": _squares, "multi_tensor_scale": None, "multi_tensor_scale_tensor": None,
        },
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": _accumulated, "wgrad_gemm_accum_fp16": _accumulated,
        },
    }  # fmt: skip
    for name, contents in names.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def _accumulated(inputs: torch.Tensor, gradient: torch.Tensor, into: torch.Tensor) -> None:
    """Add the gradient of a weight of Megatron-Core's own linear layers to its buffer."""
    _METER[0].add_flops("mm", 2.0 * inputs.shape[0] * into.numel())


def _applied(operator: Any, _: Any, tensors: Any, *arguments: Any) -> Any:
    return (torch.zeros(1, device="cuda"), None) if operator is _squares else None


def _squares() -> None:
    """Name the kernel of the gradient norm."""


def _parameter(*shape: int, dtype: torch.dtype, **attributes: Any) -> torch.nn.Parameter:
    result = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="cuda"))
    for name, value in attributes.items():
        setattr(result, name, value)
    return result


def _empty(shape: Sequence[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """Return what autograd is given for weights of a shape whose gradients are in their buffers."""
    key = (*shape, dtype)
    if key not in _EMPTY:
        with _METER[0].shimmed(LINEAR):
            _EMPTY[key] = torch.empty(*shape, dtype=dtype, device="cuda")
    return _EMPTY[key].detach()


def _given_gradient(weight: Any) -> torch.Tensor:
    weight.grad_added_to_main_grad = True
    return _empty(weight.shape, weight.dtype)


class Linear(torch.nn.Module):
    """A product with a weight that tensor-parallel ranks share by columns, by rows or not (`parallel_mode`)."""

    def __init__(
        self, in_features: int, out_features: int, *, sequence_parallel: bool = False, tp_group: Any = None,
        tp_size: int = 1, bias: bool = True, return_bias: bool = False, parallel_mode: str | None = None,
        params_dtype: torch.dtype = torch.float32, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        by_rows, by_columns = parallel_mode == "row", parallel_mode == "column"
        inputs = in_features // tp_size if by_rows else in_features
        outputs = out_features // tp_size if by_columns else out_features
        split = {"tensor_model_parallel": by_rows or by_columns, "partition_dim": int(by_rows), "partition_stride": 1}
        self.weight = _parameter(outputs, inputs, dtype=params_dtype, **split)
        self.bias = (
            _parameter(outputs, dtype=params_dtype, sequence_parallel=by_rows and sequence_parallel) if bias else None
        )
        self.use_bias, self.te_return = bias, return_bias
        self.parallel_mode, self.tp_size, self.tp_group = parallel_mode, tp_size, tp_group
        self.sequence_parallel = sequence_parallel and tp_size > 1
        self.in_features, self.out_features = inputs, outputs

    def forward(self, x: torch.Tensor, **_: Any) -> Any:
        out = Product.apply(x, self.weight, None if self.te_return else self.bias, None, self)
        return (out, self.bias) if self.te_return else out


class LayerNormLinear(Linear):
    """Such a product after a norm."""

    def __init__(self, in_features: int, out_features: int, *, normalization: str = "LayerNorm", **rest: Any) -> None:
        super().__init__(in_features, out_features, **rest)
        kind = {"dtype": rest["params_dtype"], "sequence_parallel": rest.get("sequence_parallel", False)}
        self.layer_norm_weight = _parameter(in_features, **kind)
        self.layer_norm_bias = _parameter(in_features, **kind) if normalization == "LayerNorm" else None

    def forward(self, x: torch.Tensor, **_: Any) -> Any:
        bias = None if self.te_return else self.bias
        out = Product.apply(x, self.weight, bias, self.layer_norm_weight, self, self.layer_norm_bias)
        return (out, self.bias) if self.te_return else out


class Product(torch.autograd.Function):
    """What `_Linear` and `_LayerNormLinear` do."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: Any, bias: Any, norm: Any, layer: Linear, norm_bias: Any = None
    ) -> torch.Tensor:
        ctx.layer, ctx.weight, ctx.biased = layer, weight, bias is not None
        with _METER[0].shimmed(LINEAR):
            normed, sums = x, None
            if norm is not None:
                x = x.contiguous()
                normed = torch.empty_like(x)
                sums = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
            by_columns, by_rows = layer.parallel_mode == "column", layer.parallel_mode == "row"
            total = _gathered(normed, layer) if by_columns and layer.sequence_parallel else normed
            out = torch.matmul(total, weight.t())
            del total
            if by_rows and layer.sequence_parallel:
                out = _scattered(out, layer)
            elif by_rows and layer.tp_size > 1:
                dist.all_reduce(out, group=layer.tp_group)
        ctx.norm = norm is not None
        ctx.norm_biased = norm_bias is not None
        ctx.save_for_backward(x, normed if ctx.norm else None, sums, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        layer: Linear = ctx.layer
        (gradient,) = gradients
        x, normed, _, weight = ctx.saved_tensors
        by_columns, by_rows = layer.parallel_mode == "column", layer.parallel_mode == "row"
        with _METER[0].shimmed(LINEAR):
            if by_rows and layer.sequence_parallel:
                gradient = _gathered(gradient, layer)
            source = normed if ctx.norm else x
            total = _gathered(source, layer) if by_columns and layer.sequence_parallel else source
            into = None
            if ctx.needs_input_grad[0]:
                into = torch.matmul(gradient, weight)
                if by_columns and layer.sequence_parallel:
                    into = _scattered(into, layer)
                elif by_columns and layer.tp_size > 1:
                    dist.all_reduce(into, group=layer.tp_group)
            _METER[0].add_flops("mm", 2.0 * total.numel() // total.shape[-1] * weight.numel())
            del total
            of_bias = torch.empty_like(weight[:, 0]) if ctx.biased else None
            of_norm = of_norm_bias = None
            if ctx.norm:
                into = torch.empty_like(x)
                of_norm = torch.empty_like(x[(0,) * (x.dim() - 1)])
                of_norm_bias = torch.empty_like(of_norm) if ctx.norm_biased else None
            return into, _given_gradient(ctx.weight), of_bias, of_norm, None, of_norm_bias


def _gathered(part: torch.Tensor, layer: Linear) -> torch.Tensor:
    whole = part.new_empty(part.shape[0] * layer.tp_size, *part.shape[1:])
    dist.all_gather_into_tensor(whole, part.contiguous(), group=layer.tp_group)
    return whole


def _scattered(whole: torch.Tensor, layer: Linear) -> torch.Tensor:
    part = whole.new_empty(whole.shape[0] // layer.tp_size, *whole.shape[1:])
    dist.reduce_scatter_tensor(part, whole, group=layer.tp_group)
    return part


class RMSNorm(torch.nn.Module):
    """A norm alone."""

    biased = False

    def __init__(
        self, normalized_shape: int, *, sequence_parallel: bool = False, params_dtype: torch.dtype = torch.float32,
        **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        make = partial(_parameter, normalized_shape, dtype=params_dtype, sequence_parallel=sequence_parallel)
        self.weight, self.bias = make(), make() if self.biased else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Normed.apply(x, self.weight, self.bias)
        return out


class LayerNorm(RMSNorm):
    biased = True


class Normed(torch.autograd.Function):
    """What a norm alone does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        with _METER[0].shimmed(NORM):
            x = x.contiguous()
            sums = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
            out = torch.empty_like(x)
        ctx.save_for_backward(x, sums, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        x, _sums, weight, bias = ctx.saved_tensors
        with _METER[0].shimmed(NORM):
            of_bias = None if bias is None else torch.empty_like(bias)
            return torch.empty_like(x), torch.empty_like(weight), of_bias


class GroupedLinear(torch.nn.Module):
    """Products of the rows of each expert with its weight."""

    def __init__(
        self, num_gemms: int, in_features: int, out_features: int, *, tp_size: int = 1, bias: bool = False,
        parallel_mode: str | None = None, params_dtype: torch.dtype = torch.float32, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        inputs = in_features // tp_size if parallel_mode == "row" else in_features
        outputs = out_features // tp_size if parallel_mode == "column" else out_features
        for number in range(num_gemms):
            setattr(self, f"weight{number}", _parameter(outputs, inputs, dtype=params_dtype))
        self.num_gemms, self.use_bias = num_gemms, bias
        self.in_features, self.out_features = inputs, outputs

    def forward(self, x: torch.Tensor, splits: Sequence[int], **_: Any) -> torch.Tensor:
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        out: torch.Tensor = GroupedProduct.apply(x, *weights)
        return out


class GroupedProduct(torch.autograd.Function):
    """What `_GroupedLinear` does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.weights = weights
        ctx.save_for_backward(x, *weights)
        ctx.flops = 2.0 * x.shape[0] * weights[0].numel()
        _METER[0].add_flops("grouped", ctx.flops)
        with _METER[0].shimmed(EXPERTS):
            return x.new_empty(x.shape[0], weights[0].shape[0])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        x, *_weights = ctx.saved_tensors
        _METER[0].add_flops("grouped", 2.0 * ctx.flops)
        with _METER[0].shimmed(EXPERTS):
            into = torch.empty_like(x)
            given = []
            for weight in ctx.weights:
                weight.grad_added_to_main_grad = True
                given.append(torch.empty_like(weight))
            return into, *given


def rotated(t: torch.Tensor, freqs: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return queries or keys after their rotation."""
    out: torch.Tensor = Rotation.apply(t, freqs)
    return out


class Rotation(torch.autograd.Function):
    """What `FusedRoPEFunc` does."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(freqs)
        with _METER[0].shimmed(ROTATION):
            return t.new_empty(t.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with _METER[0].shimmed(ROTATION):
            return gradients[0].new_empty(gradients[0].shape), None


class LatentRotation(torch.autograd.Function):
    """What Megatron-Core's Triton kernel makes of the keys and values of latent attention [.., heads, key and value]
    and of the rotated part of keys (fusions/fused_mla_yarn_rope_apply.py: ApplyMLARotaryEmbKV)."""

    @staticmethod
    def forward(ctx: Any, both: torch.Tensor, part: torch.Tensor, key: int, value: int) -> Any:
        ctx.shapes = both.shape, part.shape
        with _METER[0].shimmed(ROTATION):
            outer = both.shape[:-1]
            return both.new_empty(*outer, part.shape[-1] + key), both.new_empty(*outer, value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with _METER[0].shimmed(ROTATION):
            of_both, of_part = (gradients[0].new_empty(shape) for shape in ctx.shapes)
            return of_both, of_part, None, None


def rotated_queries(queries: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the queries of latent attention, whose rotation writes in place."""
    return queries


def rotated_keys_and_values(
    both: torch.Tensor, part: torch.Tensor, cos: Any, sin: Any, width: int, key: int, value: int, *_: Any
) -> Any:
    """Return the keys and the values of latent attention."""
    return LatentRotation.apply(both, part, key, value)


class DotProductAttention(torch.nn.Module):
    """Core attention over tensors [positions, batch, heads, size]."""

    def __init__(self, *_: Any, cp_group: Any = None, cp_comm_type: str = "p2p", **__: Any) -> None:
        super().__init__()
        self.ways = 1 if cp_group is None else cp_group.size()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if not _interleaved(query, key, value):
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out: torch.Tensor = Attention.apply(query, key, value, self.ways)
        return out.reshape(*out.shape[:2], -1)


def _interleaved(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether queries, keys and values lie beside each other in one tensor, head by head."""
    parts = (query, key, value)
    if len({(part.untyped_storage()._cdata, part.shape, part.stride()) for part in parts}) > 1:
        return False
    steps = (query.shape[-1], query[0, 0].numel())
    return [part.storage_offset() for part in parts] in [[0, step, 2 * step] for step in steps]


class Attention(torch.autograd.Function):
    """What fused attention does, of one rank of `ways` that share a sequence."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ways: int) -> torch.Tensor:
        length, batch, heads, width = query.shape
        ctx.flops = batch * heads * length * key.shape[0] * ways * (width + value.shape[3])  # the half that is used
        ctx.ways = ways
        _METER[0].add_flops(ATTENTION, ctx.flops)
        with _METER[0].shimmed(ATTENTION):
            shape = (length, batch, heads, value.shape[3])
            sums = torch.empty(batch, heads, length, dtype=torch.float32, device=query.device)
            if ways > 1:  # what came of each rank's keys and values, and of the queries with these
                buffers = [torch.cat((key.flatten(2), value.flatten(2)), -1)]
                buffers += [torch.empty_like(buffers[0]) for _ in range(ways - 1)]
                steps = [query.new_empty(shape) for _ in range(ways)]
                del buffers, steps
            out = query.new_empty(shape)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, *_rest = ctx.saved_tensors
        _METER[0].add_flops(ATTENTION, FLASH_BACKWARD * ctx.flops)
        with _METER[0].shimmed(ATTENTION):
            sums = torch.empty(query.shape, dtype=torch.float32, device=query.device)  # of the queries' gradient
            if ctx.ways > 1:  # keys and values with their gradients, as they come and as they go
                buffers = [key.new_empty(2, key.numel() + value.numel()) for _ in range(2)]
                of_step = torch.empty_like(query)
                del buffers, of_step
            result = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None)
            del sums
        return result


class FusedAdam(torch.optim.Optimizer):
    """Adam whose moments appear in the first step, and which allocates nothing else."""

    def __init__(self, params: Any, lr: float = 1e-3, **rest: Any) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": rest.get("weight_decay", 0.0), "step": 0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    for name in ("exp_avg", "exp_avg_sq"):
                        self.state[parameter][name] = torch.zeros_like(parameter, dtype=torch.float32)
