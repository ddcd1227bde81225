"""RWKV-7: a generalised delta rule with decays, rates and removal keys for each channel (arXiv 2503.14456 §4)."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.spec.mixers.work import ChunkProduct, Product, Work

CHUNK = 64  # documented: fla/ops/rwkv7/chunk.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7:
    """`heads` of `head_dim`; low-rank projections of decay, in-context rate, output gate and, but in the first layer,
    of the value's residual. `channel_mix` says that the feed-forward block mixes with the token before it."""

    heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    gate_rank: int
    value_rank: int | None
    channel_mix: bool = True

    def work(self, hidden: int) -> Work:
        """The chunked rule has queries and removal keys on keys and on themselves, their inverse on both, and reads,
        removes from and writes to the state (`chunk_dplr_delta_rule` of fla). Kept are what each projection takes and
        gives, since every one has an input of its own, and the inverse."""
        width, ranks = self.heads * self.head_dim, (self.decay_rank, self.rate_rank, self.gate_rank)
        low = (*ranks, self.value_rank) if self.value_rank else ranks
        biased = (True, True, False, True)
        square = {"rows": CHUNK, "columns": CHUNK, "heads": self.heads}
        wide = {"rows": CHUNK, "inner": CHUNK, "columns": self.head_dim, "heads": self.heads}
        state = {"rows": CHUNK, "inner": self.head_dim, "columns": self.head_dim, "heads": self.heads}
        return Work(
            products=(
                *(Product(inputs=hidden, outputs=width) for _ in ("receptance", "key", "value")),
                *(Product(inputs=hidden, outputs=rank, cut="whole") for rank in low),
                *(Product(inputs=rank, outputs=width, bias=there) for rank, there in zip(low, biased, strict=False)),
                Product(inputs=width, outputs=hidden, cut="rows"),
            ),
            # Six mixes of a token with the one before, three vectors of keys, a norm of two; one mix in the channels.
            vectors=6 * hidden + 3 * width + 2 * width + hidden * self.channel_mix,
            convolution=0,
            chunk=CHUNK,
            scan=(
                *(ChunkProduct(inner=self.head_dim, **square) for _ in range(4)),
                *(ChunkProduct(**wide) for _ in range(4)),
                *(ChunkProduct(**state) for _ in range(4)),
            ),
            recurrence=0.0,
            moved=12.0 * hidden + 7.0 * width + 14.0 * width,
            kept=6.0 * hidden + 13.0 * width + sum(low) + 2.0 * self.heads * CHUNK,
            kept_single=2.0 * width,
            sent=0.0,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the heads of RWKV-7", self.heads),)

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"RWKV-7 of {self.heads} heads of {self.head_dim}"
