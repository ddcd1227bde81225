"""Training steps of one model three ways, for `gpu.py`: `shardwright train`'s runtime, and plain PyTorch eager and
compiled, all with fused AdamW on fp32 master weights; and what the cost model predicts of the first. Needs PyTorch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from device_steps import LLAMA_1B, TINY, Size, Step, best, model_of, step_seconds, trainer

from shardwright import Cluster, Plan
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.measure.device import MeasuredDevice, require_torch, torch_device

WAYS = ("train", "eager", "compiled")
WAYS_IN_FP8 = WAYS[:1]  # which plain PyTorch has not
LLAMA_8B_WIDTH = Size(
    hidden=4096, layers=4, heads=32, kv_heads=8, ffn=14336, vocab=32000, seq_len=4096, micro_batches=(1, 2)
)
SIZES = {
    "cuda": {"llama-1b": replace(LLAMA_1B, micro_batches=(1, 4, 8)), "llama-8b, 4 layers": LLAMA_8B_WIDTH},
    "cpu": {"tiny": replace(TINY, micro_batches=(1,))},
}
PRECISIONS = {"cuda": ("bf16", "fp8"), "cpu": ("fp32", "bf16")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration run one way. Predictions are of `train` alone, without the machine's profile and with it; None
    stands for what does not fit, was not measured or is not known."""

    model: str
    precision: str
    micro_batch: int
    recompute: str
    way: str
    default_seconds: float | None = None
    profiled_seconds: float | None = None
    predicted_bytes: float | None = None
    seconds: float | None = None
    allocated_bytes: float | None = None


def configurations(backend: str) -> Iterator[tuple[str, Size, str, int, str]]:
    """Yield name and size of a model, precision, micro-batch and recomputation."""
    kind = "cuda" if backend == "cuda" else "cpu"
    for name, size in SIZES[kind].items():
        for precision, micro_batch, recompute in product(PRECISIONS[kind], size.micro_batches, ("none", "full")):
            yield name, size, precision, micro_batch, recompute


def planned(
    size: Size,
    cluster: Cluster,
    efficiencies: tuple[Efficiency, Efficiency],
    precision: str,
    micro_batch: int,
    how: str,
) -> tuple[Plan | None, Row]:
    """Return the plan of a configuration on one device, None where it does not fit, and its row with predictions by
    the model that ships and by one with the machine's profile."""
    plans = [
        best(model_of(size), cluster, each, micro_batch, size.seq_len, how, precision, "train") for each in efficiencies
    ]
    row = Row(model="", precision=precision, micro_batch=micro_batch, recompute=how, way="train")
    if plans[1] is None or plans[1].prediction is None:
        return plans[1], row
    stage = plans[1].prediction.memory[0][0]
    default = plans[0].prediction if plans[0] is not None else None
    return plans[1], replace(
        row,
        default_seconds=default and default.iteration_seconds,
        profiled_seconds=plans[1].prediction.iteration_seconds,
        predicted_bytes=stage.total_bytes - stage.context_bytes,
    )


def measured(row: Row, step: Callable[[], Callable[[], Any]], device: MeasuredDevice) -> Row:
    """Return a row with what a step took; `step` makes it. What does not fit in memory stays None."""
    torch = require_torch()
    _clean(device)
    try:
        seconds = step_seconds(step(), device)
    except torch.OutOfMemoryError:
        return row
    allocated = float(torch.cuda.max_memory_allocated()) if device.backend == "cuda" else None
    return replace(row, seconds=seconds, allocated_bytes=allocated)


def own_step(plan: Plan, precision: str, device: MeasuredDevice) -> Callable[[], Any]:
    """Return a step of the runtime under a plan of one rank."""
    import torch

    from shardwright.runtime.layout.groups import layout_of
    from shardwright.runtime.layout.process_groups import make_process_groups
    from shardwright.runtime.model.blocks import compiled, layer_forward
    from shardwright.runtime.model.details import Details
    from shardwright.runtime.state.recipe import Recipe
    from shardwright.runtime.step.engine import make_engine, train_step

    layout, where = layout_of(plan), torch.device(torch_device(device))
    engine = make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), recipe=Recipe(learning_rate=1e-4),
        initial=lambda parameter: _values(parameter, where), precision=precision, device=where,
        layer=compiled() if device.backend == "cuda" else layer_forward,
    )  # fmt: skip
    rows = torch.randint(plan.model.vocab, (plan.micro_batch, plan.job.seq_len + 1), device=where)
    done = [0]

    def step() -> None:
        train_step(engine, lambda _: (rows[:, :-1], rows[:, 1:]), done[0])
        done[0] += 1

    return step


def plain_step(row: Row, size: Size, device: MeasuredDevice) -> Callable[[], Any]:
    """Return a step of plain PyTorch, eager or compiled."""
    config = Step(
        micro_batch=row.micro_batch, recompute=row.recompute, default_seconds=None, profiled_seconds=None,
        predicted_bytes=None,
    )  # fmt: skip
    return trainer(config, device, size, row.precision, compiled=row.way == "compiled")


def kept_bytes(plan: Plan, precision: str) -> float:
    """Return what the forward pass of a micro-batch keeps for its backward pass, beyond parameters and targets, counted
    under fake tensors: no device is needed, whatever the size."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from shardwright.runtime.layout.groups import layout_of
    from shardwright.runtime.layout.process_groups import make_process_groups
    from shardwright.runtime.model.chunk import forward
    from shardwright.runtime.model.details import Details
    from shardwright.runtime.state.recipe import Recipe
    from shardwright.runtime.step.engine import make_engine

    layout, found = layout_of(plan), {}
    with FakeTensorMode():
        engine = make_engine(
            layout, 0, make_process_groups(layout, 0), details=Details(), recipe=Recipe(), initial=None,
            precision=precision, device=torch.device("cpu"),
        )  # fmt: skip
        own = {buffer.weights.whole.untyped_storage()._cdata for buffer in engine.store.buffers}
        rows = torch.zeros((plan.micro_batch, plan.job.seq_len), dtype=torch.int64)

        def pack(value: torch.Tensor) -> torch.Tensor:
            if value.is_floating_point() and value.untyped_storage()._cdata not in own:
                found[value.untyped_storage()._cdata] = value
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            forward(engine.pipeline.chunks[0], rows, rows)
        return float(sum(value.untyped_storage().nbytes() for value in found.values()))


def _values(parameter: Any, where: Any) -> Any:
    """Return random values of a parameter, made on the device: on the host those of 8B would take a minute."""
    torch = require_torch()
    if parameter.start in ("zeros", "ones"):
        return torch.full(parameter.shape, float(parameter.start == "ones"), device=where)
    return torch.randn(parameter.shape, device=where).mul_(parameter.deviation)


def _clean(device: MeasuredDevice) -> None:
    torch = require_torch()
    gc.collect()
    torch.manual_seed(0)
    if device.threads is not None:
        with suppress(RuntimeError):
            torch.set_num_threads(device.threads)
    if device.backend == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
