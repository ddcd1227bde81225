"""The trainer's model under PyTorch's DDP and FSDP2, with even rows, on processes of unequal speed. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise SystemExit(0) from None  # nothing to run without PyTorch

from runtime_workers import batch_of
from throttled import Throttle
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.model.chunk import Chunk, loss_of, table_of, unit_forward
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import initial_values
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.spec.model import Model


class Unit(torch.nn.Module):
    """One unit of the model for PyTorch's own wrappers; what it computes is the trainer's."""

    def __init__(self, model: Model, seq_len: int, unit: int, throttle: Throttle) -> None:
        super().__init__()
        self.model, self.unit, self.throttle = model, unit, throttle
        parameters = unit_parameters(model, unit, model.vocab)
        self.names = [parameter.name for parameter in parameters]
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(initial_values(each, 0)) for each in parameters])
        self.positions = torch.arange(seq_len)
        self.table = table_of(model, Details(), self.positions)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        chunk = Chunk(
            units=(self.unit,), weights=dict(zip(self.names, self.weights, strict=True)), model=self.model,
            details=Details(), tensor=TensorGroup(), recompute=Recompute(), positions=self.positions,
            table=self.table,
        )  # fmt: skip
        self.throttle.start()
        out = unit_forward(chunk, self.unit, x) if targets is None else loss_of(chunk, x, targets)
        self.throttle.pay()
        if targets is None:
            out.register_hook(lambda _: self.throttle.pay())  # type: ignore[no-untyped-call]
        else:
            out.register_hook(lambda _: self.throttle.start())  # type: ignore[no-untyped-call]
        return out


class Units(torch.nn.Module):
    """The units one after the other, to the summed loss."""

    def __init__(self, plan: Plan, throttle: Throttle) -> None:
        super().__init__()
        count = len(plan.model.layers) + 2
        units = [Unit(plan.model, plan.job.seq_len, unit, throttle) for unit in range(count)]
        self.units = torch.nn.ModuleList(units)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = tokens
        for unit in self.units[:-1]:
            x = unit(x)
        loss: torch.Tensor = self.units[-1](x, targets)
        return loss


def stepper(rank: int, plan: Plan, throttle: Throttle, *, sharded: bool, at_once: bool) -> Callable[[int], None]:
    """Return a step with an equal part of the plan's rows: one row at a time, or all `at_once`."""
    model, rows = Units(plan, throttle), plan.job.global_batch // dist.get_world_size()
    wrapper: Any
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in model.units:
            fully_shard(unit, mesh=mesh)
        wrapper = fully_shard(model, mesh=mesh)
    else:
        wrapper = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=1e-3)
    each = [batch_of(plan, rank * rows)(row) for row in range(rows)]
    batches = [tuple(map(torch.cat, zip(*each, strict=True)))] if at_once else each

    def step(_: int) -> None:
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            if sharded:
                wrapper.set_requires_gradient_sync(last)
            else:
                wrapper.require_backward_grad_sync = last
            loss = wrapper(*batch)
            (loss / plan.job.tokens_per_iteration).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
