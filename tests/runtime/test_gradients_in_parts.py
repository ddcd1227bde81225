"""Gradients of the embedding and the output projection that are added to their buffers part by part are autograd's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from shardwright.runtime.model import loss
from shardwright.runtime.model.parallel import TensorGroup

ROWS, WIDTH, BATCH, LENGTH = 37, 24, 2, 9
TOKENS = torch.randint(ROWS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def embedded(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (loss.looked_up(TOKENS, table) * x).sum(dtype=torch.float32)


def loss_of(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return loss.summed_loss(x, table, TOKENS, ROWS - 2, TensorGroup())


def gradients(
    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype, *, buffer: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the table, which has a buffer with one of two passes or gets its own, and of `x`."""
    source = torch.Generator().manual_seed(1)
    table = torch.nn.Parameter(torch.randn(ROWS, WIDTH, generator=source).to(dtype))
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=source).to(dtype).requires_grad_()
    if not buffer:
        into_table, into_x = torch.autograd.grad(of(table, x), (table, x))
        return into_table.float() + into_table.float(), into_x
    table.grad_dtype = torch.float32
    table.grad = torch.zeros(ROWS, WIDTH)
    for _ in range(2):
        x.grad = None
        of(table, x).backward()
    assert x.grad is not None
    return table.grad, x.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of", [embedded, loss_of])
@pytest.mark.parametrize("most", [1, 5 * WIDTH, 1 << 25])
def test_parts_are_the_whole(
    of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss, "GRADIENT_ELEMENTS", most)
    for added, alone in zip(gradients(of, dtype, buffer=True), gradients(of, dtype, buffer=False), strict=True):
        torch.testing.assert_close(added, alone, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_the_embedding_is_autograds() -> None:
    table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2), requires_grad=True)
    weights = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(3))
    expected = torch.autograd.grad((functional.embedding(TOKENS, table) * weights).sum(), table)[0]
    assert torch.equal(torch.autograd.grad(embedded(table, weights), table)[0], expected)


def test_a_frozen_table_has_no_gradient() -> None:
    table, x = torch.nn.Parameter(torch.ones(ROWS, WIDTH), requires_grad=False), torch.ones(BATCH, LENGTH, WIDTH)
    assert embedded(table, x.requires_grad_()).requires_grad and table.grad is None
