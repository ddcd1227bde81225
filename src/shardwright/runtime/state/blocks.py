"""Optimizer state in 8 bits: blocks of 256 values, each with a scale, quantised dynamically (Dettmers et al., arXiv
2110.02861 §2).

A code stands for a number from -0.993 to 1, dense around zero; a value is that times the scale of its block. The scale
is the largest value of the block with its sign, so that this one is kept exactly, and quantising again what was
quantised changes nothing: state may go through fp32, as in checkpoints, without loss.
"""

from __future__ import annotations

from functools import cache

import torch

from shardwright.records import record

BLOCK = 256
SMALLEST = 1e-30  # scale; blocks of less are zero


@record
class Blocks:
    """A flat row of values in 8 bits: `codes` [n] in uint8 with n a multiple of `BLOCK`, `scales` [n / BLOCK] in fp32;
    the first `elements` values count. `signed` says whether they may be below zero."""

    codes: torch.Tensor
    scales: torch.Tensor
    elements: int
    signed: bool

    def part(self, own: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes and scales of the blocks that have the values `own`, which begin with one."""
        first, last = own.start // BLOCK, -(-own.stop // BLOCK)
        return self.codes[first * BLOCK : last * BLOCK], self.scales[first:last]

    def values(self, start: int, stop: int) -> torch.Tensor:
        begin = start // BLOCK * BLOCK
        whole = dequantised(*self.part(slice(begin, stop)), code_book(self.codes.device, signed=self.signed))
        return whole[start - begin : stop - begin]

    def put(self, start: int, values: torch.Tensor) -> None:
        """Set the values from `start`, a multiple of `BLOCK`, on; those left of the last block become zero."""
        codes, scales = self.part(slice(start, start + values.numel()))
        padded = torch.nn.functional.pad(values.to(codes.device), (0, codes.numel() - values.numel()))
        new_codes, new_scales = quantised(padded, code_book(codes.device, signed=self.signed))
        codes.copy_(new_codes)
        scales.copy_(new_scales)


def zeros(elements: int, device: torch.device, *, signed: bool) -> Blocks:
    count = -(-elements // BLOCK)
    code_book(device, signed=signed)  # else the first step would wait for it
    zero = int((code_book(torch.device("cpu"), signed=signed) == 0.0).nonzero())
    codes = torch.full((count * BLOCK,), zero, dtype=torch.uint8, device=device)
    return Blocks(codes=codes, scales=torch.zeros(count, device=device), elements=elements, signed=signed)


def quantised(values: torch.Tensor, book: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of whole blocks of values: the nearest numbers of the book."""
    blocks = values.view(-1, BLOCK)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scales = torch.where(largest.abs() < SMALLEST, SMALLEST, largest)
    codes = torch.bucketize(blocks / scales, (book[1:] + book[:-1]) / 2.0, out_int32=True)
    return codes.to(torch.uint8).view(-1), scales.view(-1)


def dequantised(codes: torch.Tensor, scales: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    """Return the values of whole blocks, in fp32."""
    return (book[codes.int()].view(-1, BLOCK) * scales[:, None]).view(-1)


@cache
def code_book(device: torch.device, *, signed: bool) -> torch.Tensor:
    """Return the 256 numbers that codes stand for, rising: seven decades, each with twice as many as the one below;
    without a sign twice as many in each."""
    numbers = [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade + (0 if signed else 1))
        edges = torch.linspace(0.1, 1.0, count + 1, dtype=torch.float64)
        means = (edges[1:] + edges[:-1]) / 2.0 * 10.0 ** (decade - 6)
        numbers += [*means.tolist(), *([-x for x in means.tolist()] if signed else [])]
    return torch.tensor(sorted(numbers), dtype=torch.float32, device=device)
