"""Sets the stage of a rehearsal: fake devices, a fake process group, fake tensors and the meter, around a runner.

`install` stands in for the parts of PyTorch 2.13 that ask a GPU: `torch.cuda`, and what fake tensors cannot do on
`cuda`. It is for a process that does nothing else. What it replaces is private or has to answer without a device; none
of it changes shapes, types or what autograd keeps.

`choose_kernels` has the operators that PyTorch would choose on a GPU, where fake tensors would be taken apart into
others. On a GPU `scaled_dot_product_attention` takes a flash kernel and `rms_norm` a fused one (PyTorch 2.13:
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and aten/src/ATen/native/layer_norm.cpp), as the backward pass of
SiLU does; on fake tensors all would be formulas. The operator of attention is PyTorch's own, with its own record of
what the backward pass needs: a choice. The fused norm cannot record it on fake tensors, so that is a shim.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.rehearsal.inside.meter import Meter, blocks_at_peak, measured

Runner = Callable[[dict[str, Any], Meter], dict[str, Any]]
DEVICES = 8
TYPES = {
    "FloatTensor": torch.float32, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "DoubleTensor": torch.float64, "IntTensor": torch.int32, "LongTensor": torch.int64, "ByteTensor": torch.uint8,
}  # fmt: skip
CHOICES = ("attention: PyTorch's flash kernel (aten::_scaled_dot_product_flash_attention)",)
NORM = "RMSNorm"
SHIMS = {
    NORM: "keeps its input, its weight and an fp32 number a row, as _fused_rms_norm of PyTorch 2.13 does "
    "(derivatives.yaml)",
}
LOWER_RIGHT = object()
FUSED_BACKWARD = ("silu_backward", "mish_backward")  # with kernels and formulas (PyTorch 2.13: native_functions.yaml)
LIBRARY = torch.library.Library("aten", "IMPL")
HEAD_MULTIPLE = 8  # sdp_utils.cpp pads heads of other sizes for the flash kernel


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


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Stream:
    """A stream of a device that is not there: all work is done at once."""

    cuda_stream = stream_id = device_index = 0
    device_type = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    wait_event = wait_stream = synchronize = _nothing


class Event:
    """A moment on such a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 0.0

    record = wait = synchronize = _nothing


class _TypeOf(type):
    """A legacy type such as `torch.cuda.FloatTensor`."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.dtype == cls.dtype and instance.is_cuda

    def __call__(cls, values: Any = ()) -> Any:
        return torch.tensor(values, dtype=cls.dtype, device="cuda")


def install(meter: Meter, gpu: dict[str, Any]) -> None:
    """Have this process see eight GPUs with the `name`, `memory_bytes` and `capability` of one. Their allocator tells
    what the meter counts."""
    stream, state = Stream(), torch.Generator().get_state()
    capability = tuple(gpu["capability"])
    total = int(gpu["memory_bytes"])
    properties = types.SimpleNamespace(
        name=gpu["name"], total_memory=total, major=capability[0], minor=capability[1], multi_processor_count=132,
        warp_size=32, max_threads_per_multi_processor=2048, L2_cache_size=50 << 20, regs_per_multiprocessor=65536,
        uuid="",
    )  # fmt: skip
    generator: Any = types.SimpleNamespace(
        get_state=lambda: state, set_state=_nothing, clone_state=lambda: generator, manual_seed=_nothing,
        graphsafe_get_state=lambda: generator, graphsafe_set_state=_nothing, initial_seed=lambda: 0,
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": DEVICES, "current_device": 0,
        "current_stream": stream, "default_stream": stream, "get_rng_state": state, "initial_seed": 0,
        "get_device_properties": properties, "get_device_capability": capability, "get_device_name": gpu["name"],
        "mem_get_info": (total, total), "is_bf16_supported": True, "is_current_stream_capturing": False,
    }  # fmt: skip
    silent = (
        "set_device", "synchronize", "init", "_lazy_init", "set_stream", "set_rng_state", "manual_seed",
        "manual_seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "empty_cache", "ipc_collect",
    )  # fmt: skip
    replaced: dict[str, Any] = {name: _answering(value) for name, value in answers.items()}
    replaced |= {name: _answering(None) for name in silent}
    replaced |= {
        name: lambda *_, **__: meter.live_bytes
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    }
    replaced |= {name: _TypeOf(name, (), {"dtype": dtype}) for name, dtype in TYPES.items()}
    replaced |= {
        "Stream": Stream, "ExternalStream": Stream, "Event": Event, "stream": lambda given=None: given or stream,
        "StreamContext": Stream, "device": lambda *_, **__: contextlib.nullcontext(),
        "default_generators": [generator] * DEVICES, "memory_stats": lambda *_, **__: defaultdict(int),
    }  # fmt: skip
    for holder in (torch.cuda, torch.cuda.random, torch.cuda.memory):
        for name, value in replaced.items():
            if holder is torch.cuda or hasattr(holder, name):
                setattr(holder, name, value)
    accelerator: Any = torch.accelerator
    accelerator.current_stream = _answering(stream)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(torch.cuda.nvtx, name, _answering(0))
    internal: Any = torch._C
    internal._cuda_getDevice, internal._cuda_setDevice = _answering(0), _nothing
    internal._cuda_isCurrentStreamCapturing = _answering(False)
    internal._ensureCUDADeviceGuardSet = _nothing
    fake: Any = fake_tensor
    fake.init_gpu_context = _nothing
    fake.FakeTensorMode.avoid_device_init = True
    version: Any = torch.version
    version.cuda = version.cuda or "12.8"
    _install_tensors()
    _install_modules()
    install_groups()


def _answering(value: Any) -> Any:
    return lambda *_, **__: value


def _install_tensors() -> None:
    """Replace what of tensors looks at memory."""
    tensor: Any = torch.Tensor
    whole: Any = torch
    make = torch.tensor
    whole.tensor = lambda *args, **kwargs: make(*args, **(kwargs | {"pin_memory": False}))
    tensor.pin_memory = lambda self, *_, **__: self
    address, kind = tensor.data_ptr, tensor.type
    tensor.record_stream = _nothing

    def data_ptr(self: Any) -> int:
        if isinstance(self, fake_tensor.FakeTensor):
            return int(self.untyped_storage()._cdata + self.storage_offset() * self.element_size())
        return int(address(self))

    def type_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return kind(self, *args, **kwargs)
        name = kind(self)
        return name.replace("torch.", "torch.cuda.") if self.is_cuda and ".cuda." not in name else name

    tensor.data_ptr, tensor.type = data_ptr, type_of


def _install_modules() -> None:
    """Have modules of fake tensors get new parameters where others swap the memory of those that they have."""
    module: Any = torch.nn.Module
    apply = module._apply

    def apply_fake(self: Any, function: Any, recurse: bool = True) -> Any:
        """Replace the parameters of fake tensors, whose memory cannot be swapped."""
        if not any(isinstance(value, fake_tensor.FakeTensor) for value in (*self.parameters(), *self.buffers())):
            return apply(self, function, recurse)
        for child in self.children() if recurse else ():
            child._apply(function)
        for name, parameter in self._parameters.items():
            if parameter is not None and (new := function(parameter)) is not parameter:
                made = torch.nn.Parameter(new.detach(), requires_grad=parameter.requires_grad)
                for attribute, value in vars(parameter).items():
                    if attribute not in vars(made):
                        setattr(made, attribute, value)
                self._parameters[name] = made
        for name, buffer in self._buffers.items():
            self._buffers[name] = buffer if buffer is None else function(buffer)
        return self

    module._apply = apply_fake


def install_groups() -> None:
    """Make every process group a fake one, and have its objects be this rank's own."""
    distributed: Any = dist
    make = distributed.new_group

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **(kwargs | {"backend": "fake"}))

    def all_gather_object(out: list[Any], value: Any, group: Any = None) -> None:
        out[:] = [value] * len(out)

    work: Any = torch._C._distributed_c10d.Work
    work.is_completed = _answering(True)
    distributed.new_group = distributed.distributed_c10d.new_group = new_group
    distributed.all_gather_object = all_gather_object
    distributed.broadcast_object_list = distributed.barrier = _nothing


def even_lists(total: Callable[[], int]) -> None:
    """Have lists of whole numbers read from fake tensors add up to `total` along their last dimension, as even as can
    be: how many rows go to each expert or rank; and masks select as many."""
    fake: Any = fake_tensor.FakeTensor
    read = fake.tolist

    def tolist(self: Any) -> Any:
        if self.dtype not in (torch.int32, torch.int64) or not self.dim():
            return [1.0] * self.numel() if self.dim() == 1 and self.dtype.is_floating_point else read(self)
        *outer, length = self.shape
        share, more = divmod(total(), length)
        row = [share + 1] * more + [share] * (length - more)
        for size in reversed(outer):
            row = [list(row) for _ in range(size)] if outer else row
        return row if math.prod(outer) else []

    def as_array(self: Any, *, force: bool = False) -> Any:
        import numpy as np

        return np.array(self.tolist())

    def masked_select(self: Any, _: Any) -> Any:
        return self.reshape(-1)[: total()].clone()

    fake.tolist, fake.numpy, fake.masked_select = tolist, as_array, masked_select


def choose_kernels(meter: Meter) -> None:
    """Have attention and RMSNorm take the operators that a GPU takes."""

    def norm(
        input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        if torch.compiler.is_compiling():  # where it is taken apart and fused anew
            return plain(input, shape, weight, eps)
        function: Any = FusedRmsNorm
        out: torch.Tensor = function.apply(input, weight, shape, eps, meter)
        return out

    holder: Any = functional
    plain: Callable[..., torch.Tensor] = torch.rms_norm
    holder.scaled_dot_product_attention, holder.rms_norm = flash_attention, norm
    whole: Any = torch
    whole.rms_norm = norm
    for name in FUSED_BACKWARD:
        LIBRARY.impl(name, partial(_below_autograd, getattr(torch.ops.aten, name).default), "AutogradCUDA")


def _below_autograd(operator: Any, *args: Any) -> Any:
    """Call an operator for which autograd has its formula on a build without kernels for `cuda`."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def choose_lower_right() -> None:
    """Have masks that begin at the last keys be marks of a causal kernel: tensors of their kind cannot be fake ones."""
    from torch.nn.attention import bias

    holder: Any = bias
    holder.causal_lower_right = lambda *_: LOWER_RIGHT


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return attention by the flash kernel, which takes grouped heads as they are, or by the memory-efficient one,
    which takes values of another size. A mask is taken for a causal one."""
    width = query.shape[-1]
    if value.shape[-1] != width:
        efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention
        given: torch.Tensor = efficient(
            query, key, value, None, True, dropout_p, is_causal or attn_mask is not None, scale=scale
        )[0]
        return given
    padding = -width % HEAD_MULTIPLE
    if padding:
        query, key, value = (functional.pad(part, [0, padding]) for part in (query, key, value))
    causal = is_causal or attn_mask is not None
    scale = width**-0.5 if scale is None else scale
    operator: Any = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = operator(query, key, value, dropout_p, causal, False, scale=scale)[0]
    return out[..., :width] if padding else out


class FusedRmsNorm(torch.autograd.Function):
    """RMSNorm by the fused kernel, and what its backward pass keeps and returns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: Any, epsilon: Any, meter: Meter) -> Any:
        ctx.meter = meter
        with meter.shimmed(NORM):
            out, inverse = torch.ops.aten._fused_rms_norm(x, shape, weight, epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        with ctx.meter.shimmed(NORM):
            into_weight = None if weight is None else torch.empty_like(weight)
            return torch.empty_like(x), into_weight, None, None, None
