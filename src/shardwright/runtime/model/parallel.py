"""Communication inside a stage, with its gradient: into and out of what tensor parallelism splits.

`enter` stands before column-split matrices: every rank gets all positions, and the gradient is a sum over the ranks.
`leave` stands after row-split ones: the result is a sum over the ranks. With sequence parallelism (arXiv 2205.05198
§4.2.2) what is outside is cut along the sequence, so that entering gathers and leaving reduces and scatters.
Activations have the shape [micro_batch, sequence, hidden]. `gathering`, `collecting` and `summing` only begin, and
return what ends them: products stand in between, as Megatron-LM does it in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist

from shardwright.records import record

gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_into = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
collectives = torch.ops._c10d_functional  # their end is an operator too, which torch.compile leaves in place
Arrival: TypeAlias = Callable[[], torch.Tensor]


@record
class TensorGroup:
    """The tensor-parallel ranks of a stage: this rank's number, their count, the process group (None for one rank)."""

    rank: int = 0
    size: int = 1
    group: Any = None
    sequence: bool = False

    @property
    def sharded(self) -> bool:
        """Whether activations between layers are cut along the sequence."""
        return self.sequence and self.size > 1


@record
class ExpertGroup:
    """The ranks that share the experts of a layer: `size` of them, of which this one has `rank`-th equal part.

    `local`: an expert is whole on its rank, which sends the tokens of its own positions alone; else the experts are cut
    as other matrices are, and every rank of a stage sends all tokens to the rank with the same part."""

    rank: int = 0
    size: int = 1
    group: Any = None
    local: bool = False


ALONE = ExpertGroup()


def exchange(x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
    """Return the rows that the ranks of an expert group sent here, `received` of each; to each went `sent` rows."""
    return applied(_Exchange, x, sent, received, experts)


def enter(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return all positions of `x` for a part of the computation."""
    return x if tensor.size == 1 else applied(_Enter, x, tensor)


def leave(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over the ranks of their parts `x`, of all positions or of this rank's."""
    return x if tensor.size == 1 else applied(_Leave, x, tensor)


def mean_over(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the mean over the ranks; its gradient is one over them too."""
    return x if tensor.size == 1 else applied(_Mean, x, tensor)


def applied(function: Any, *arguments: Any) -> torch.Tensor:
    """Return the one result of an autograd function, of whose `apply` PyTorch says no type."""
    return cast("torch.Tensor", function.apply(*arguments))


def own_positions(length: int, tensor: TensorGroup) -> tuple[int, int]:
    """Return [start, stop) of the positions that this rank holds between layers."""
    if not tensor.sharded:
        return 0, length
    length_here = length // tensor.size
    return tensor.rank * length_here, (tensor.rank + 1) * length_here


def all_reduced(x: torch.Tensor, tensor: TensorGroup, *, maximum: bool = False) -> torch.Tensor:
    """Return the sum or maximum over the ranks; `x` itself is overwritten. It has no gradient."""
    if tensor.size > 1:
        dist.all_reduce(x, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=tensor.group)
    return x


def gathered(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sequence parts of all ranks side by side."""
    return gathering(x, tensor)()


def gathering(x: torch.Tensor, tensor: TensorGroup, after: torch.Tensor | None = None) -> Arrival:
    """Begin to gather the sequence parts of all ranks; what is returned waits for them. A gather `after` a gradient
    stays in the backward pass: torch.compile would take a second one of `x` for the first, and keep its result.

    There it gathers a copy of this rank's part. (An operator of ours that gathers itself would not do: of PyTorch's own
    alone the compiler knows that they read while others compute, `_WaitKernel.get_volatile_reads`.)
    """
    own = x.contiguous() if after is None or not torch.compiler.is_compiling() else _copy_after(after, x)
    parts = collectives.all_gather_into_tensor(own, tensor.size, tensor.group.group_name)

    def arrived() -> torch.Tensor:
        found = collectives.wait_tensor(parts).view(tensor.size, *x.shape)
        return cast("torch.Tensor", found.transpose(0, 1).reshape(x.shape[0], -1, *x.shape[2:]))

    return arrived


@torch.library.custom_op("shardwright::copy_after", mutates_args=())
def _copy_after(after: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


@_copy_after.register_fake
def _(after: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def scattered(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return this rank's sequence part of the sum over the ranks."""
    return scattering(x, tensor)()


def scattering(x: torch.Tensor, tensor: TensorGroup) -> Arrival:
    """Begin to sum over the ranks and to scatter the sum along the sequence."""
    batch, length = x.shape[:2]
    parts = x.view(batch, tensor.size, length // tensor.size, *x.shape[2:]).transpose(0, 1)
    sent = parts.reshape(tensor.size * batch, *parts.shape[2:])
    found = collectives.reduce_scatter_tensor(sent, "sum", tensor.size, tensor.group.group_name)
    return lambda: cast("torch.Tensor", collectives.wait_tensor(found))


def collecting(x: torch.Tensor, tensor: TensorGroup, after: torch.Tensor | None = None) -> Arrival:
    """Begin to gather all positions of `x`, in the backward pass `after` a gradient."""
    return gathering(x, tensor, after) if tensor.sharded else lambda: x


def summing(x: torch.Tensor, tensor: TensorGroup) -> Arrival:
    """Begin to sum over the ranks, all positions or this rank's."""
    if tensor.sharded:
        return scattering(x.contiguous(), tensor)
    if tensor.size == 1:
        return lambda: x
    found = collectives.all_reduce(x.contiguous(), "sum", tensor.group.group_name)
    return lambda: cast("torch.Tensor", collectives.wait_tensor(found))


def collected(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return all positions of `x`. It has no gradient."""
    return collecting(x, tensor)()


def summed(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over the ranks, of all positions or of this rank's. It has no gradient."""
    return summing(x, tensor)()


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        return collected(x, tensor) if tensor.sharded else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return summed(gradients[0], ctx.tensor), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        return summed(x, tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return collected(gradients[0], ctx.tensor), None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
        ctx.tensor = tensor
        return _mean(x, tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _mean(gradients[0], ctx.tensor), None


def _mean(x: torch.Tensor, tensor: TensorGroup) -> torch.Tensor:
    total = collectives.all_reduce(x.contiguous(), "sum", tensor.group.group_name)
    return cast("torch.Tensor", collectives.wait_tensor(total)) / tensor.size


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.experts = sent, received, experts
        return _exchanged(x, sent, received, experts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        return _exchanged(gradient, ctx.received, ctx.sent, ctx.experts), None, None, None


def _exchanged(x: torch.Tensor, sent: list[int], received: list[int], experts: ExpertGroup) -> torch.Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=experts.group)
    return out
