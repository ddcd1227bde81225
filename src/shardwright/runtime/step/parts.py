"""Gathers and scatters of a bucket over its holders, whose parts may be unequal.

Unequal parts go through a buffer of as many parts as there are holders, each as long as the longest: gloo has no gather
of unequal parts, and a ring takes as long for the longest anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from shardwright.records import record
from shardwright.runtime.model.parallel import gather_into, reduce_scatter_into
from shardwright.runtime.state.buckets import Bucket


@record
class Gather:
    """Parts on their way into `whole`: through `padded`, where they are unequal."""

    bucket: Bucket
    whole: torch.Tensor
    padded: torch.Tensor | None
    sent: torch.Tensor
    work: Any

    def wait(self) -> None:
        self.work.wait()
        if self.padded is not None:
            for part, (start, stop) in _padded_parts(self.bucket, self.padded):
                self.whole[start:stop].copy_(part)


@record
class Scatter:
    """A sum over the holders on its way; `wait` returns this rank's part of it."""

    out: torch.Tensor
    elements: int
    sent: torch.Tensor
    work: Any

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.out[: self.elements]


def start_gather(bucket: Bucket, whole: torch.Tensor, kept: torch.Tensor, group: Any) -> Gather:
    """Begin to collect the parts `kept` of all holders. Each must begin the same gathers in the same order."""
    longest = _longest(bucket)
    if longest * len(bucket.ranks) == bucket.elements:
        work = gather_into(whole, kept, group=group, async_op=True)
        return Gather(bucket=bucket, whole=whole, padded=None, sent=kept, work=work)
    sent = kept.new_zeros(longest)
    sent[: kept.numel()].copy_(kept)
    padded = kept.new_empty(longest * len(bucket.ranks))
    work = gather_into(padded, sent, group=group, async_op=True)
    return Gather(bucket=bucket, whole=whole, padded=padded, sent=sent, work=work)


def start_scatter(bucket: Bucket, whole: torch.Tensor, rank: int, group: Any) -> Scatter:
    """Begin to sum `whole` over the holders, of which `rank` gets its part."""
    longest = _longest(bucket)
    start, stop = bucket.own(rank, sharded=True)
    sent = whole
    if longest * len(bucket.ranks) != bucket.elements:
        sent = whole.new_zeros(longest * len(bucket.ranks))
        for part, (begin, end) in _padded_parts(bucket, sent):
            part.copy_(whole[begin:end])
    out = whole.new_empty(longest)
    work = reduce_scatter_into(out, sent, group=group, async_op=True)
    return Scatter(out=out, elements=stop - start, sent=sent, work=work)


def _longest(bucket: Bucket) -> int:
    return max(stop - start for start, stop in bucket.parts)


def _padded_parts(bucket: Bucket, padded: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, int]]]:
    longest = _longest(bucket)
    for index, (start, stop) in enumerate(bucket.parts):
        yield padded[index * longest : index * longest + stop - start], (start, stop)
