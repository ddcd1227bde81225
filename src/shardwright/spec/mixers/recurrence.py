"""The real-gated linear recurrence of Griffin and RecurrentGemma (arXiv 2402.19427 §2.4)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import Product, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRecurrence:
    """`channels` in `blocks`, whose two gates are block-diagonal products; a convolution of `width` tokens before, a
    branch with a GeLU beside."""

    channels: int
    blocks: int
    width: int

    def work(self, hidden: int) -> Work:
        """The recurrence is linear and runs over fp32. Kept are both branches before and after the non-linearity, the
        convolution's input and output, both gates, and the states."""
        channels, taps = self.channels, self.channels * self.width
        block = channels // self.blocks
        return Work(
            products=(
                Product(inputs=hidden, outputs=2 * channels, bias=True),
                Product(inputs=block, outputs=2 * channels, bias=True),
                Product(inputs=channels, outputs=hidden, cut="rows", bias=True),
            ),
            vectors=taps + 2 * channels,
            convolution=taps,
            chunk=0,
            scan=(),
            recurrence=0.0,
            moved=2.0 * channels + 2.0 * channels + 2.0 * 6.0 * channels + 3.0 * channels,
            kept=(2.0 + 1.0 + 1.0 + 2.0 + 1.0) * channels,
            kept_single=3.0 * channels,
            sent=0.0,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the blocks of the recurrence", self.blocks),)

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"gated linear recurrence of {self.channels:,} channels"
