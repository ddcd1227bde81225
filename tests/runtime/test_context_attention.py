"""What travels between ranks for attention to all positions is what the cost model prices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.runtime.model import context
from shardwright.runtime.model.context import ContextGroup, attention_in_parts, recomputed_attention_in_parts

RANKS, SHAPE = 4, (2, 3, 8, 16)


@pytest.fixture
def group() -> Iterator[ContextGroup]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    yield ContextGroup(part=1, parts=tuple(range(RANKS)), group=dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("attend", [attention_in_parts, recomputed_attention_in_parts])
def test_keys_and_values_travel_once_forward_and_twice_backward(
    attend: Any, group: ContextGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward they are gathered; backward again, and their gradients are summed: one ring and two (`cost.layers`)."""
    sent: list[tuple[str, int]] = []

    def gather(out: torch.Tensor, part: torch.Tensor, **_: Any) -> None:
        sent.append(("gathered", out.numel()))
        out.copy_(part.repeat(RANKS))

    def scatter(out: torch.Tensor, whole: torch.Tensor, **_: Any) -> None:
        sent.append(("summed", whole.numel()))
        out.copy_(whole.view(RANKS, -1).sum(dim=0))

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value)

    monkeypatch.setattr(context, "gather_into", gather)
    monkeypatch.setattr(context, "reduce_scatter_into", scatter)
    whole = RANKS * torch.Size(SHAPE).numel()
    query, key, value = (torch.randn(SHAPE, requires_grad=True) for _ in range(3))
    out = attend(attention, query, key, value, group)
    assert sent == [("gathered", whole)] * 2
    out.sum().backward()
    assert sorted(sent[2:]) == [("gathered", whole)] * 2 + [("summed", whole)] * 2
    found = [x.grad for x in (query, key, value)]
    keys, values = (context.gathered(x, group) for x in (key, value))
    blocks, ends = query.chunk(2, dim=2), ((group.part + 1) * 4, (2 * RANKS - group.part) * 4)
    parts = [attention(block, keys[:, :, :end], values[:, :, :end]) for block, end in zip(blocks, ends, strict=True)]
    torch.testing.assert_close(torch.cat(parts, dim=2), out)
    expected = torch.autograd.grad(torch.cat(parts, dim=2).sum(), (query, key, value))
    torch.testing.assert_close(found, list(expected))
