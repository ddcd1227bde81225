"""The gated delta rule: heads whose state forgets, and is corrected by what it predicts of a key (arXiv 2412.06464);
with a decay for each channel it is Kimi delta attention (arXiv 2510.26692)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwright.spec.mixers.work import ChunkProduct, Product, Work

CHUNK = 64  # documented: fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/chunk.py


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """`key_heads` of `key_dim` for queries and keys, each shared by some of the `value_heads` of `value_dim`. `decay`
    is a number for each head, or one for each `channel` of a key (KDA), which is projected over `gate_rank`, as is the
    output gate; without a rank both are projected at once."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    width: int
    decay: Literal["head", "channel"] = "head"
    gate_rank: int | None = None

    def work(self, hidden: int) -> Work:
        """Inside a chunk k kᵀ and its inverse times v and k; then, chunk by chunk, what the state predicts, queries on
        keys and on the state, values, and the update of the state (`chunk_gated_delta_rule` of fla; the inversion, a
        third of a chunk's square for each token, is not counted: no framework counts it).

        The layer keeps what the input projection gives, the input of the convolution beside it and its output, queries
        and keys after their norms for each value head, the inverse, decays and rates, the result and what enters the
        output projection.
        """
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        mixed = 2 * keys + values
        repeated = 2 * self.value_heads * self.key_dim
        taps, heads = mixed * self.width, self.value_heads
        decays = heads if self.decay == "head" else heads * self.key_dim
        gates = _gate(hidden, values, self.gate_rank)
        if self.decay == "channel":
            gates += (*_gate(hidden, decays, self.gate_rank), Product(inputs=hidden, outputs=heads))
        else:
            gates += (Product(inputs=hidden, outputs=2 * heads),)
        projected = mixed + sum(gate.outputs for gate in gates)
        square = {"rows": CHUNK, "columns": CHUNK, "heads": heads}
        on_keys = {"rows": CHUNK, "inner": CHUNK, "columns": self.key_dim, "heads": heads}
        on_values = {"rows": CHUNK, "inner": CHUNK, "columns": self.value_dim, "heads": heads}
        on_state = {"rows": CHUNK, "inner": self.key_dim, "columns": self.value_dim, "heads": heads}
        return Work(
            products=(
                Product(inputs=hidden, outputs=mixed),
                *gates,
                Product(inputs=values, outputs=hidden, cut="rows"),
            ),
            vectors=taps + decays + heads + self.value_dim,
            convolution=taps,
            chunk=CHUNK,
            scan=(
                *(ChunkProduct(inner=self.key_dim, **square) for _ in ("keys on keys", "queries on keys")),
                ChunkProduct(**on_keys),
                *(ChunkProduct(**on_values) for _ in ("inverse on values", "scores on values")),
                *(ChunkProduct(**on_state) for _ in ("predicted", "read", "written")),
            ),
            recurrence=0.0,
            moved=2.0 * mixed + 2.0 * repeated + (repeated + 2.0 * values + 2.0 * decays) + 4.0 * values,
            kept=projected + 2.0 * mixed + repeated + heads * CHUNK + heads + 2.0 * values,
            kept_single=float(decays),
            sent=projected + values,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        return (("the key heads of the delta rule", self.key_heads), ("its value heads", self.value_heads))

    @property
    def context_heads(self) -> int | None:
        """All-to-all over heads (megatron/core/ssm/gated_delta_net.py)."""
        return self.key_heads

    @property
    def words(self) -> str:
        name = "gated delta net" if self.decay == "head" else "Kimi delta attention"
        return (
            f"{name} of {self.value_heads} heads of {self.value_dim}, {self.key_heads} of {self.key_dim} for queries "
            "and keys"
        )


def _gate(hidden: int, width: int, rank: int | None) -> tuple[Product, ...]:
    if rank is None:
        return (Product(inputs=hidden, outputs=width),)
    return Product(inputs=hidden, outputs=rank, cut="whole"), Product(inputs=rank, outputs=width)
