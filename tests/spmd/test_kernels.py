"""What our own operators compute, held against PyTorch's autograd on whole tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shardwright.spmd import kernels
from shardwright.spmd.kernels import Draw


def inputs(heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, heads, 5, 4), torch.randn(2, groups, 7, 4), torch.randn(2, groups, 7, 4)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, keep: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * 0.5 + (0.0 if mask is None else mask)
    return (scores.softmax(-1) * keep) @ v


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", ["kernel", "dropped", "fused"])
def test_attention_and_its_gradients(way: str, masked: bool, groups: int) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(4, groups))
    allowed = torch.rand(2, 1, 5, 7) > 0.3
    allowed[..., 0] = True
    added = torch.zeros(2, 1, 5, 7).masked_fill(~allowed, -torch.inf) if masked else None
    mask, chance, draw = (allowed if masked else None), (0.4 if way == "dropped" else 0.0), Draw(number=2, seed=9)
    keep = kernels.dropout(torch.ones(2, 4, 5, 7), chance, draw)
    expected = plain(q, k, v, added, keep)
    gradient = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (q, k, v), gradient)
    with torch.no_grad():
        if way == "fused":
            out = kernels.fused(q, k, v, mask, False, 0.5)
            wide = [x.repeat_interleave(4 // groups, 1) for x in (k, v)]
            to_q, *rest = kernels.fused_backward(gradient, q, *wide, mask, False, 0.5)
            found = (to_q, *(x.unflatten(1, (groups, -1)).sum(2) for x in rest))
        else:
            out, logsumexp = kernels.attention(q, k, v, mask, chance, False, 0.5, draw=draw)
            found = kernels.attention_backward(gradient, q, k, v, mask, out, logsumexp, chance, False, 0.5, draw=draw)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 1 << 40), st.integers(0, 5), st.sampled_from([0.1, 0.5, 0.9]))
def test_a_shard_of_a_mask_is_the_mask_of_the_shard(seed: int, first: int, chance: float) -> None:
    whole = kernels.kept((6, 8), chance, Draw(number=3, seed=seed), torch.device("cpu"))
    rows, columns = torch.tensor([first, 5]), torch.tensor([1, 2, 7])
    shard = Draw(number=3, seed=seed, shape=(6, 8), indices=(rows, columns))
    assert torch.equal(kernels.kept((2, 3), chance, shard, torch.device("cpu")), whole[rows][:, columns])


def test_masks_keep_their_part_and_differ_by_seed_and_operator() -> None:
    def mask(seed: int, number: int) -> Tensor:
        return kernels.kept((200, 500), 0.3, Draw(number=number, seed=seed), torch.device("cpu"))

    masks = [mask(0, 0), mask(1, 0), mask(0, 1)]
    for one in masks:
        assert abs(one.double().mean().item() - 0.7) < 0.005
    for one, other in ((masks[0], masks[1]), (masks[0], masks[2]), (masks[1], masks[2])):
        assert abs((one == other).double().mean().item() - 0.58) < 0.01
    by_column = masks[0].double().mean(0)
    assert abs(by_column.std().item() - (0.21 / 200) ** 0.5) < 0.005


def test_grouped_products_take_rows_in_any_order() -> None:
    torch.manual_seed(0)
    x, weight, expert = torch.randn(9, 3), torch.randn(4, 3, 2), torch.tensor([2, 0, 2, 3, 0, 2, 3, 3, 0])
    expected = torch.stack([row @ weight[index] for row, index in zip(x, expert, strict=True)])
    torch.testing.assert_close(kernels.grouped_mm(x, weight, expert), expected)
    some = kernels.grouped_mm(x, weight[2:3], expert, first=2)
    torch.testing.assert_close(some, expected * (expert == 2).unsqueeze(1))
    gradient = torch.randn(9, 2)
    by_expert = torch.stack([x[expert == index].T @ gradient[expert == index] for index in range(4)])
    torch.testing.assert_close(kernels.grouped_mm_weight(x, gradient, expert, 4), by_expert)


def test_cross_entropy_by_rows() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(5, 7, requires_grad=True), torch.tensor([1, -100, 6, 0, 3])
    rows = nn.functional.cross_entropy(logits, target, reduction="none")
    gradient = torch.randn(5)
    (expected,) = torch.autograd.grad(rows, logits, gradient)
    with torch.no_grad():
        found, logsumexp = kernels.cross_entropy(logits, target, -100)
        torch.testing.assert_close(found, rows)
        pieces = [
            kernels.cross_entropy_backward(gradient, part, target, logsumexp, -100, first=first)
            for part, first in ((logits[:, :3], 0), (logits[:, 3:], 3))
        ]
    torch.testing.assert_close(torch.cat(pieces, 1), expected)
