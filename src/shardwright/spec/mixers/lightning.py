"""Lightning attention: linear attention with a fixed decay for each head, in blocks (arXiv 2401.04658)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import ChunkProduct, Product, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning:
    """`heads` of `head_dim` in blocks of `chunk` tokens, with a norm over all heads and an output gate (MiniMax-01,
    arXiv 2501.08313 §2.2)."""

    heads: int
    head_dim: int
    chunk: int = 256

    def work(self, hidden: int) -> Work:
        """In a block scores and their product with the values; between blocks queries on the state, and its update.
        Kept are what the projections give, the activations of queries, keys and values that the kernel reads, its
        result, and what enters the output projection."""
        width = self.heads * self.head_dim
        square = {"rows": self.chunk, "heads": self.heads}
        return Work(
            products=(
                Product(inputs=hidden, outputs=3 * width),
                Product(inputs=hidden, outputs=width),
                Product(inputs=width, outputs=hidden, cut="rows"),
            ),
            vectors=width,
            convolution=0,
            chunk=self.chunk,
            scan=(
                ChunkProduct(inner=self.head_dim, columns=self.chunk, **square),
                ChunkProduct(inner=self.chunk, columns=self.head_dim, **square),
                ChunkProduct(inner=self.head_dim, columns=self.head_dim, **square),
                ChunkProduct(rows=self.head_dim, inner=self.chunk, columns=self.head_dim, heads=self.heads),
            ),
            recurrence=0.0,
            moved=(3.0 + 3.0 + 4.0 + 4.0) * width,  # activation, scan, norm and gate
            kept=(4.0 + 3.0 + 1.0 + 2.0) * width,
            kept_single=1.0,
            sent=4.0 * width,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the heads of linear attention", self.heads),)

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"lightning attention of {self.heads} heads of {self.head_dim}"
