"""A short convolution between two gates, the operator of LFM2 (arXiv 2511.23404 §2)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import Product, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution:
    """A depthwise convolution of `width` tokens over `channels`, gated before and after."""

    channels: int
    width: int
    bias: bool = False

    def work(self, hidden: int) -> Work:
        """Kept are both gates and the value that in_proj gives, the convolution's input and output, and what enters the
        output projection."""
        channels, taps = self.channels, self.channels * self.width
        return Work(
            products=(
                Product(inputs=hidden, outputs=3 * channels, bias=self.bias),
                Product(inputs=channels, outputs=hidden, cut="rows", bias=self.bias),
            ),
            vectors=taps + channels * self.bias,
            convolution=taps,
            chunk=0,
            scan=(),
            recurrence=0.0,
            moved=(3.0 + 2.0 + 3.0) * channels,
            kept=(3.0 + 1.0 + 1.0 + 1.0) * channels,
            kept_single=0.0,
            sent=0.0,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the channels of the convolution", self.channels),)

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"short convolution of width {self.width}"
