"""Mamba-1: a selective state space for each channel (arXiv 2312.00752 §3; state-spaces/mamba: mamba_simple.py)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import Product, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """`inner` channels with `state` numbers each, time steps of rank `rank`, a convolution of `width` tokens. With
    `normed` time step, B and C have norms (Jamba, arXiv 2403.19887 §6.4)."""

    inner: int
    state: int
    rank: int
    width: int
    bias: bool = False
    convolution_bias: bool = True
    normed: bool = False

    def work(self, hidden: int) -> Work:
        """The scan is one kernel without matrix products (`selective_scan_fn`): it reads u, z, dt, B and C, writes the
        result, and keeps its inputs; `mamba_inner_fn` keeps what in_proj and x_proj give and runs the convolution and
        the time step again."""
        inner, small = self.inner, self.rank + 2 * self.state
        taps = inner * self.width
        return Work(
            products=(
                Product(inputs=hidden, outputs=2 * inner, bias=self.bias),
                Product(inputs=inner, outputs=small, cut="rows"),
                Product(inputs=self.rank, outputs=inner, bias=True),
                Product(inputs=inner, outputs=hidden, cut="rows", bias=self.bias),
            ),
            vectors=taps
            + inner * (self.state + 1 + self.convolution_bias)
            + (self.rank + 2 * self.state if self.normed else 0),
            convolution=taps,
            chunk=0,
            scan=(),
            recurrence=float(inner * self.state),
            moved=2.0 * inner + 5.0 * inner + 2.0 * small,
            kept=2.0 * inner + inner + small + inner,  # in_proj's, x_proj's input and output, out_proj's input
            kept_single=0.0,
            sent=0.0,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the channels of Mamba", self.inner),)

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"Mamba of {self.inner:,} channels, state {self.state}"
