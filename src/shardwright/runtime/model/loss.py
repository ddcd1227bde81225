"""Cross-entropy over a vocabulary whose rows are split over the tensor-parallel ranks."""

from __future__ import annotations

from typing import Any, cast

import torch

from shardwright.runtime.model.parallel import TensorGroup, all_reduced


def summed_loss(logits: torch.Tensor, targets: torch.Tensor, vocab: int, tensor: TensorGroup) -> torch.Tensor:
    """Return the sum over tokens of the negative log-likelihood, fp32.

    `logits` [tokens, rows] are those of this rank's rows of the padded vocabulary, of which rows from `vocab` on do
    not count; `targets` [tokens] are numbers of the whole vocabulary.
    """
    function: Any = _Loss
    return cast("torch.Tensor", function.apply(logits, targets, vocab, tensor))


class _Loss(torch.autograd.Function):
    """Softmax and likelihood with three small reductions; keeps one fp32 tensor of the size of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, vocab: int, tensor: TensorGroup) -> torch.Tensor:
        rows = logits.shape[1]
        first = tensor.rank * rows
        likely = logits.float() if logits.dtype != torch.float32 else logits.clone()
        if first + rows > vocab:
            likely[:, max(vocab - first, 0) :] = -torch.inf
        highest = all_reduced(likely.amax(dim=1), tensor, maximum=True)
        likely -= highest[:, None]
        here = targets - first
        mine = (here >= 0) & (here < rows)
        here = here.clamp(0, rows - 1)
        chosen = likely.gather(1, here[:, None])[:, 0].masked_fill(~mine, 0.0)
        likely.exp_()
        total, chosen = all_reduced(torch.stack([likely.sum(dim=1), chosen]), tensor)
        likely /= total[:, None]
        ctx.save_for_backward(likely, here, mine)
        ctx.dtype = logits.dtype
        loss: torch.Tensor = (total.log() - chosen).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        likely, here, mine = ctx.saved_tensors
        likely.scatter_add_(1, here[:, None], -mine[:, None].to(likely.dtype))
        likely *= gradient
        return likely.to(ctx.dtype), None, None, None
