"""Stands in for the parts of PyTorch 2.13 that ask a GPU: `torch.cuda`, and what fake tensors cannot do on `cuda`.

`install` is for a process that does nothing else. What it replaces is private or has to answer without a device; none
of it changes shapes, types or what autograd keeps.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses import fake_tensor

from shardwright.rehearsal.inside.meter import Meter

DEVICES = 8
TYPES = {
    "FloatTensor": torch.float32, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "DoubleTensor": torch.float64, "IntTensor": torch.int32, "LongTensor": torch.int64, "ByteTensor": torch.uint8,
}  # fmt: skip


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

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def _nothing(self, *_: Any, **__: Any) -> None:
        return None

    wait_event = wait_stream = synchronize = _nothing


class Event:
    """A moment on such a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 0.0

    def _nothing(self, *_: Any, **__: Any) -> None:
        return None

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
        "StreamContext": lambda given=None: given or stream, "device": lambda *_, **__: contextlib.nullcontext(),
        "default_generators": [generator] * DEVICES, "memory_stats": lambda *_, **__: defaultdict(int),
    }  # fmt: skip
    for holder in (torch.cuda, torch.cuda.random, torch.cuda.memory):
        for name, value in replaced.items():
            if holder is torch.cuda or hasattr(holder, name):
                setattr(holder, name, value)
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
    _install_groups()


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _answering(value: Any) -> Any:
    return lambda *_, **__: value


def _install_tensors() -> None:
    """Replace methods of tensors that look at memory."""
    tensor: Any = torch.Tensor
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


def _install_groups() -> None:
    """Make every process group a fake one, and have its objects be this rank's own."""
    distributed: Any = dist
    make = distributed.new_group

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **(kwargs | {"backend": "fake"}))

    def all_gather_object(out: list[Any], value: Any, group: Any = None) -> None:
        out[:] = [value] * len(out)

    distributed.new_group = distributed.distributed_c10d.new_group = new_group
    distributed.all_gather_object = all_gather_object
    distributed.broadcast_object_list = distributed.barrier = _nothing


def even_lists(total: int) -> None:
    """Have lists of whole numbers read from fake tensors add up to `total` along their last dimension, as even as can
    be: how many rows go to each expert or rank."""
    fake: Any = fake_tensor.FakeTensor
    read = fake.tolist

    def tolist(self: Any) -> Any:
        if self.dtype not in (torch.int32, torch.int64) or not self.dim():
            return [1.0] * self.numel() if self.dim() == 1 and self.dtype.is_floating_point else read(self)
        *outer, length = self.shape
        share, more = divmod(total, length)
        row = [share + 1] * more + [share] * (length - more)
        for size in reversed(outer):
            row = [list(row) for _ in range(size)] if outer else row
        return row if math.prod(outer) else []

    def as_array(self: Any, *, force: bool = False) -> Any:
        import numpy as np

        return np.array(self.tolist())

    fake.tolist, fake.numpy = tolist, as_array
