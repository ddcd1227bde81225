"""Attention to the last positions alone, on GPUs by FlexAttention (arXiv 2412.05496), whose kernels skip what a window
leaves out. Elsewhere a mask does.

FlexAttention is imported where it is used: with it comes the tracer of torch.compile, which takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

KEPT_MASKS = 64  # as many shapes of attention as a model may have


def window_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, kernel: Callable[..., Any] | None = None
) -> torch.Tensor:
    """Return attention of queries, which are of the last positions of the keys, to the last `window` positions.
    `kernel` is FlexAttention compiled, or as it is; None: the device decides."""
    grouped = query.shape[1] != key.shape[1]
    if kernel is None and query.device.type == "cpu":
        mask = _seen(query.shape[2], key.shape[2], window, query.device)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
    blocks = _blocks(query.shape[2], key.shape[2], window, str(query.device))
    return cast("torch.Tensor", (kernel or _compiled())(query, key, value, block_mask=blocks, enable_gqa=grouped))


def _seen(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (distance >= 0) & (distance < window)


@lru_cache(maxsize=KEPT_MASKS)
def _blocks(queries: int, keys: int, window: int, device: str) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        distance = query + (keys - queries) - key
        return (distance >= 0) & (distance < window)

    return create_block_mask(seen, None, None, queries, keys, device=device)


@cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return kernel
