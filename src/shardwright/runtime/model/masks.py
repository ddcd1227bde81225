"""Attention to a part of the positions before: to the last ones, or to those of the same document. On GPUs by
FlexAttention (arXiv 2412.05496), whose kernels skip what a mask leaves out. Elsewhere a mask does.

FlexAttention is imported where it is used: with it comes the tracer of torch.compile, which takes two seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

KEPT_MASKS = 64  # as many shapes of attention as a model may have


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Documents:
    """The document of each position of a micro-batch, `numbers` [micro_batch, sequence], and the block masks that all
    its layers share."""

    numbers: torch.Tensor
    masks: dict[tuple[int, int, int], BlockMask] = field(default_factory=dict)


def documents_of(tokens: torch.Tensor, end: int | None) -> Documents | None:
    """Return the documents in tokens [micro_batch, sequence], each up to and with its token `end`; None without one."""
    if end is None:
        return None
    ends = tokens == end
    return Documents(numbers=ends.cumsum(1) - ends.long())


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    documents: Documents | None,
    kernel: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Return attention of queries, which are of the last positions of the keys, to the last `window` positions, of
    their own documents. Keys are the first positions of these. `kernel` is FlexAttention compiled, or as it is; None:
    the device decides."""
    grouped = query.shape[1] != key.shape[1]
    queries, keys, device = query.shape[2], key.shape[2], query.device
    reach = keys if window is None else window
    if kernel is None and device.type == "cpu":
        mask = _seen(queries, keys, reach, documents, device)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=grouped)
    if documents is None:
        blocks = _blocks(queries, keys, reach, str(device))
    else:
        known = documents.masks
        blocks = known.get((queries, keys, reach)) or _document_blocks(queries, keys, reach, documents)
        known[queries, keys, reach] = blocks
    return cast("torch.Tensor", (kernel or _compiled())(query, key, value, block_mask=blocks, enable_gqa=grouped))


def _seen(queries: int, keys: int, reach: int, documents: Documents | None, device: torch.device) -> torch.Tensor:
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    near = (distance >= 0) & (distance < reach)
    if documents is None:
        return near
    numbers = documents.numbers[:, :keys]
    return near & (numbers[:, None, keys - queries :, None] == numbers[:, None, None, :])


@lru_cache(maxsize=KEPT_MASKS)
def _blocks(queries: int, keys: int, reach: int, device: str) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
        distance = query + (keys - queries) - key
        return (distance >= 0) & (distance < reach)

    return create_block_mask(seen, None, None, queries, keys, device=device)


def _document_blocks(queries: int, keys: int, reach: int, documents: Documents) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    numbers = documents.numbers

    def seen(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        place = query + (keys - queries)
        near = (place >= key) & (place - key < reach)
        return near & (numbers[batch, place] == numbers[batch, key])

    return create_block_mask(seen, len(numbers), None, queries, keys, device=str(numbers.device))


@cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    kernel: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return kernel
