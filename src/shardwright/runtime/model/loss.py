"""The ends of the model, over a vocabulary whose rows are split over the tensor-parallel ranks: rows of the embedding,
and the output projection with its cross-entropy.

The gradient of the logits takes their place as soon as they are there, some tokens at a time (as Liger's kernels do,
arXiv 2410.10989 §3.2): one tensor of the size of the logits, in the precision of the products, is all that is kept.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.nn import functional

from shardwright.runtime.model.parallel import TensorGroup, all_reduced, applied, enter, gathered, scattered

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}  # logits in fp32 at a time: what stays in a core's cache; 256 MiB
GRADIENT_ELEMENTS = 1 << 25  # of a weight's gradient at a time, where it is added to a buffer: 64 MiB in 16 bits


def summed_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    vocab: int,
    tensor: TensorGroup,
    *,
    bias: torch.Tensor | None = None,
    cap: float | None = None,
    partly: bool = False,
) -> torch.Tensor:
    """Return the sum over tokens of the negative log-likelihood, fp32. Logits are products plus `bias`, capped by
    c tanh(x / c). Where tokens have a target `partly`, -1 stands for none, and the sum is that over all tokens if the
    others were like those that have one.

    `x` [micro_batch, positions, hidden] is what the projection takes in, of this rank's positions; `weight` has this
    rank's rows of the padded vocabulary, of which rows from `vocab` on do not count; `targets` [micro_batch, sequence]
    are numbers of the whole vocabulary.
    """
    x = x if tensor.sharded else enter(x, tensor)
    return applied(_Loss, x, weight, bias, targets.reshape(-1), vocab, tensor, cap, partly)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        vocab: int,
        tensor: TensorGroup,
        cap: float | None,
        partly: bool,
    ) -> torch.Tensor:
        whole = gathered(x, tensor) if tensor.sharded else x
        logits = functional.linear(whole.flatten(0, 1), weight, bias)
        ctx.tensor, ctx.shape = tensor, x.shape
        rows = max(CHUNK_ELEMENTS.get(x.device.type, CHUNK_ELEMENTS["cuda"]) // logits.shape[1], 1)
        parts = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        loss = torch.stack([_loss_and_gradient(part, to, vocab, tensor, cap, partly) for part, to in parts]).sum()
        ctx.share = (targets >= 0).float().mean() if partly else 1.0
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight, logits)
        return cast("torch.Tensor", loss / ctx.share)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of the loss multiplies the smaller factors of the products, in which `logits` are theirs."""
        x, weight, logits = ctx.saved_tensors
        scale = gradients[0] / ctx.share / _lift(logits)
        entering = ((logits @ weight) * scale).view(ctx.shape[0], -1, ctx.shape[2])
        into_weight = None
        if x is not None:
            whole = (gathered(x, ctx.tensor) if ctx.tensor.sharded else x).flatten(0, 1)
            into_weight = _into_weight(weight, logits, whole * scale)
        into_bias = logits.float().sum(dim=0) * scale if ctx.needs_input_grad[2] else None
        into_x = scattered(entering, ctx.tensor) if ctx.tensor.sharded else entering
        return into_x, into_weight, into_bias, None, None, None, None, None


def _into_weight(weight: torch.Tensor, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of the projection, None where the weight has one to which it is added, some rows at a time:
    it is as large as all logits of many tokens, and autograd would make it twice, in 16 and in 32 bits."""
    if weight.grad is None:
        return rows.t() @ x
    many = max(GRADIENT_ELEMENTS // x.shape[1], 1)
    for gradient, part in zip(torch.split(weight.grad, many), torch.split(rows, many, dim=1), strict=True):
        gradient.add_(part.t() @ x)
    return None


def _loss_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, vocab: int, tensor: TensorGroup, cap: float | None, partly: bool
) -> torch.Tensor:
    """Return the summed loss of some tokens, and replace their logits [tokens, rows] by its gradient."""
    rows = logits.shape[1]
    first = tensor.rank * rows
    likely = logits.float() if logits.dtype != torch.float32 else logits
    capped = None if cap is None else torch.tanh(likely / cap)
    if cap is not None and capped is not None:
        likely.copy_(capped).mul_(cap)
    if first + rows > vocab:
        likely[:, max(vocab - first, 0) :] = -torch.inf
    highest = all_reduced(likely.amax(dim=1), tensor, maximum=True)
    likely -= highest[:, None]
    here = targets - first
    mine = (here >= 0) & (here < rows)
    here = here.clamp(0, rows - 1)[:, None]
    chosen = likely.gather(1, here)[:, 0].masked_fill(~mine, 0.0)
    likely.exp_()
    total, chosen = all_reduced(torch.stack([likely.sum(dim=1), chosen]), tensor)
    likely /= total[:, None]
    likely.scatter_add_(1, here, -mine[:, None].to(likely.dtype))
    if capped is not None:
        likely *= 1.0 - capped.square()
    losses: torch.Tensor = total.log() - chosen
    if partly:
        losses = losses.where(targets >= 0, 0.0)
        likely *= (targets >= 0)[:, None]
    if likely is not logits:
        logits.copy_(likely.mul_(_lift(logits)))
    return losses.sum()


def _lift(logits: torch.Tensor) -> float:
    """Return by what their gradients are multiplied while they are kept: in fp16, small ones would lose digits."""
    return 1024.0 if logits.dtype == torch.float16 else 1.0


def looked_up(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Return the rows of a table [rows, width] for tokens [..., ]: [..., width].

    Autograd would make a gradient of the table twice, in its own type and in that of its buffer: for 128,256 rows of
    4,096 numbers 3 GiB, more than all that a rank of a deep pipeline keeps of short sequences.
    """
    return applied(_LookUp, tokens, table)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens, table if ctx.needs_input_grad[1] else None)
        return functional.embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor | None]:
        tokens, table = ctx.saved_tensors
        if table is None:
            return None, None
        if table.grad is None:
            return None, _summed(gradients[0], tokens, len(table))
        many = max(GRADIENT_ELEMENTS // len(table), 1)
        for total, part in zip(
            torch.split(table.grad, many, dim=1), torch.split(gradients[0], many, dim=-1), strict=True
        ):
            total.add_(_summed(part, tokens, len(table)))
        return None, None


def _summed(gradient: torch.Tensor, tokens: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the gradients [..., width] of all tokens of a row, added up, for each of them: [rows, width]."""
    operator: Any = torch.ops.aten.embedding_dense_backward
    out: torch.Tensor = operator(gradient, tokens, rows, -1, False)
    return out
