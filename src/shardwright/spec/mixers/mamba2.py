"""Mamba-2, the state-space dual: heads with a scalar decay, computed in chunks (arXiv 2405.21060 §6)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import ChunkProduct, Product, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """`heads` of `head_dim` channels with `state` numbers for each channel; heads of one of the `groups` share B and C.
    `gated_norm` stands before the output projection."""

    heads: int
    head_dim: int
    groups: int
    state: int
    width: int
    chunk: int = 256
    bias: bool = False
    out_bias: bool = False
    convolution_bias: bool = True
    gated_norm: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def work(self, hidden: int) -> Work:
        """Inside a chunk, C Bᵀ for each group and its product with x for each head, both of which skip what is not
        causal; then the state of each chunk, and what it adds to the next (mamba_ssm/ops/triton/ssd_*.py, v2.2).

        `mamba_split_conv1d_scan_combined` keeps what in_proj gives and the result before the gated norm, and runs
        convolution and states again; the output projection keeps its input.
        """
        inner, pair = self.inner, 2 * self.groups * self.state
        channels, projected = inner + pair, 2 * inner + pair + self.heads
        taps, half = channels * self.width, self.chunk / 2.0
        head = {"heads": self.heads}
        return Work(
            products=(
                Product(inputs=hidden, outputs=projected, bias=self.bias),
                Product(inputs=inner, outputs=hidden, cut="rows", bias=self.out_bias),
            ),
            vectors=taps + channels * self.convolution_bias + 3 * self.heads + inner * self.gated_norm,
            convolution=taps,
            chunk=self.chunk,
            scan=(
                ChunkProduct(rows=self.chunk, inner=self.state, columns=half, heads=self.groups),
                ChunkProduct(rows=self.chunk, inner=half, columns=self.head_dim, **head),
                ChunkProduct(rows=self.state, inner=self.chunk, columns=self.head_dim, **head),
                ChunkProduct(rows=self.chunk, inner=self.state, columns=self.head_dim, **head),
            ),
            recurrence=0.0,
            moved=2.0 * channels + (channels + self.heads + inner) + 3.0 * inner,  # convolution, scan, gated norm
            kept=projected + inner + inner,
            kept_single=float(self.groups if self.gated_norm else 0),  # a norm's reciprocal for each group
            sent=projected + inner,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the heads of Mamba-2", self.heads), ("the groups of Mamba-2", self.groups))

    @property
    def context_heads(self) -> int | None:
        """All-to-all over heads; groups are repeated where there are fewer (megatron/core/ssm:
        mamba_context_parallel.py)."""
        return self.heads

    @property
    def words(self) -> str:
        return f"Mamba-2 of {self.heads} heads of {self.head_dim}, state {self.state}, {self.groups} groups"
