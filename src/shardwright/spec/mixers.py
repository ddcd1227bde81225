"""Mixers of tokens that are no softmax attention: a class a kind, with everything that follows from its shape.

`Work` is what one token costs in a mixer, as plain numbers: weights, products, traffic, and what the kernels keep.
`cost.compute.operators` prices it; nothing else of the package knows a kind of mixer.

"""

from __future__ import annotations

from typing import Literal

from shardwright.records import record

DELTA_CHUNK = 64  # documented: fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/chunk.py
RWKV_CHUNK = 64  # documented: fla/ops/rwkv7/chunk.py


@record
class Product:
    """A matrix of `inputs` × `outputs` weights that every token is multiplied by. Tensor parallelism cuts its `columns`
    (outputs), its `rows` (inputs), or with `whole` every rank has all of it."""

    inputs: int
    outputs: int
    cut: Literal["columns", "rows", "whole"] = "columns"
    bias: bool = False

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


@record
class ChunkProduct:
    """A product (rows × inner)(inner × columns) of the chunked scan, `heads` of them for every chunk of tokens."""

    rows: float
    inner: float
    columns: float
    heads: int


@record
class Work:
    """One token's work in a mixer.

    `products` have the matrices; `vectors` counts all other weights (biases of products are counted by them), the
    `convolution` taps among these: channels times width, which each token multiplies. The scan goes over chunks of
    `chunk` tokens by the products `scan`; one without a chunk has none and is bound by memory: of it count the
    `recurrence` multiply-adds that sum over the state, as PyTorch's own counter does. `moved` counts elements
    of 16 bits that convolution, scan, gates and norms read and write forward. For the backward pass the kernels keep
    `kept` elements of 16 bits and `kept_single` of 32, all of them cut by tensor parallelism; and, on every rank, the
    input of the mixer, what is `low`, and what is `summed` over the ranks before a further product. `sent` elements
    travel between ranks of context parallelism, each way.
    """

    products: tuple[Product, ...]
    vectors: int
    convolution: int
    chunk: int
    scan: tuple[ChunkProduct, ...]
    recurrence: float
    moved: float
    kept: float
    kept_single: float
    sent: float
    summed: int = 0

    @property
    def matrix_weights(self) -> int:
        """Elements of the matrices."""
        return sum(product.weights for product in self.products)

    @property
    def low(self) -> int:
        """Elements of a token that products give whole on every rank of tensor parallelism, for a further product."""
        return sum(product.outputs for product in self.products if product.cut == "whole")

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.matrix_weights + sum(p.outputs for p in self.products if p.bias) + self.vectors

    @property
    def scan_flops(self) -> float:
        """FLOPs of the chunked scan for a token forward."""
        return sum(2.0 * p.rows * p.inner * p.columns * p.heads for p in self.scan) / max(self.chunk, 1)

    @property
    def flops(self) -> float:
        """FLOPs of a token forward: products, convolution and scan."""
        return 2.0 * (self.matrix_weights + self.convolution + self.recurrence) + self.scan_flops


@record
class Mamba:
    """Mamba-1: a selective state space for each channel (arXiv 2312.00752 §3; state-spaces/mamba: mamba_simple.py).

    `inner` channels with `state` numbers each, time steps of rank `rank`, a convolution of `width` tokens. With
    `normed` time step, B and C have norms (Jamba, arXiv 2403.19887 §6.4); with a `norm_epsilon` of their own these are
    there in any case, without weights unless `normed` (Falcon Mamba, arXiv 2410.05355 §3). Where there are several
    `heads`, each has time steps, B and C of its own channels (Zamba, arXiv 2405.16712 §2).
    """

    inner: int
    state: int
    rank: int
    width: int
    bias: bool = False
    convolution_bias: bool = True
    normed: bool = False
    norm_epsilon: float | None = None
    heads: int | None = None

    def work(self, hidden: int) -> Work:
        """The scan is one kernel without matrix products (`selective_scan_fn`): it reads u, z, dt, B and C, writes the
        result, and keeps its inputs; `mamba_inner_fn` keeps what in_proj and x_proj give and runs the convolution and
        the time step again. Heads are scanned one by one without it (`ZambaMambaMixer` of transformers 5.24): kept are
        a copy of the convolution's input, what that gives, time steps, and results before and after they are joined."""
        inner, small, heads = self.inner, self.rank + 2 * self.state, self.heads or 1
        taps = inner * self.width
        selecting = Product(inputs=inner, outputs=small, cut="rows")
        if heads > 1:  # block by block, and no sum over ranks
            selecting = Product(inputs=inner // heads, outputs=heads * small)
        return Work(
            products=(
                Product(inputs=hidden, outputs=2 * inner, bias=self.bias),
                selecting,
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
            moved=2.0 * inner + 5.0 * inner + 2.0 * heads * small,
            # in_proj's, x_proj's input, out_proj's input; what is summed is kept by every rank
            kept=4.0 * inner if heads == 1 else 7.0 * inner + heads * small,
            kept_single=0.0,
            sent=0.0,
            summed=small if heads == 1 else 0,
        )

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        channels = (("the channels of Mamba", self.inner),)
        return channels if self.heads is None else (*channels, ("the heads of Mamba", self.heads))

    @property
    def context_heads(self) -> int | None:
        return None

    @property
    def words(self) -> str:
        return f"Mamba of {self.inner:,} channels, state {self.state}"


@record
class Mamba2:
    """Mamba-2, the state-space dual: heads with a scalar decay, computed in chunks (arXiv 2405.21060 §6).

    `heads` of `head_dim` channels with `state` numbers for each channel; heads of one of the `groups` share B and C.
    `gated_norm` stands before the output projection, its epsilon may be its own. Time steps are at least the
    `least_step` (Nemotron-H).
    """

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
    least_step: float | None = None
    norm_epsilon: float | None = None

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


@record
class GatedDelta:
    """The gated delta rule: heads whose state forgets and is corrected by what it predicts of a key (arXiv 2412.06464);
    with a decay for each channel it is Kimi delta attention (arXiv 2510.26692).

    `key_heads` of `key_dim` for queries and keys, each shared by some of the `value_heads` of `value_dim`. `decay`
    is a number for each head, or one for each `channel` of a key (KDA), which is projected over `gate_rank`, as is the
    output gate; without a rank both are projected at once. Where eigenvalues may be `negative`, rates of correction go
    up to two (arXiv 2411.12537). The norm has an epsilon of its own where `norm_epsilon` is set. The logarithm of a
    decay may fall to minus `most_decay`, by a sigmoid (Ling 3: BailingHybridForgetGate of transformers 5.24).
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    width: int
    decay: Literal["head", "channel"] = "head"
    gate_rank: int | None = None
    negative: bool | None = None
    norm_epsilon: float | None = None
    most_decay: float | None = None

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
        projected = mixed + sum(gate.outputs for gate in gates if gate.cut == "columns")
        square = {"rows": DELTA_CHUNK, "columns": DELTA_CHUNK, "heads": heads}
        on_keys = {"rows": DELTA_CHUNK, "inner": DELTA_CHUNK, "columns": self.key_dim, "heads": heads}
        on_values = {"rows": DELTA_CHUNK, "inner": DELTA_CHUNK, "columns": self.value_dim, "heads": heads}
        on_state = {"rows": DELTA_CHUNK, "inner": self.key_dim, "columns": self.value_dim, "heads": heads}
        return Work(
            products=(
                Product(inputs=hidden, outputs=mixed),
                *gates,
                Product(inputs=values, outputs=hidden, cut="rows"),
            ),
            vectors=taps + decays + heads + self.value_dim,
            convolution=taps,
            chunk=DELTA_CHUNK,
            scan=(
                *(ChunkProduct(inner=self.key_dim, **square) for _ in ("keys on keys", "queries on keys")),
                ChunkProduct(**on_keys),
                *(ChunkProduct(**on_values) for _ in ("inverse on values", "scores on values")),
                *(ChunkProduct(**on_state) for _ in ("predicted", "read", "written")),
            ),
            recurrence=0.0,
            moved=2.0 * mixed + 2.0 * repeated + (repeated + 2.0 * values + 2.0 * decays) + 4.0 * values,
            kept=projected + 2.0 * mixed + repeated + heads * DELTA_CHUNK + heads + 2.0 * values,
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


@record
class Lightning:
    """Lightning attention: linear attention with a fixed decay for each head, in blocks (arXiv 2401.04658).

    `heads` of `head_dim` in blocks of `chunk` tokens, with a norm over all heads, whose epsilon may be its own, and an
    output gate (MiniMax-01, arXiv 2501.08313 §2.2).
    """

    heads: int
    head_dim: int
    chunk: int = 256
    norm_epsilon: float | None = None

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


@record
class Rwkv7:
    """RWKV-7: a generalised delta rule with decays, rates and removal keys for each channel (arXiv 2503.14456 §4).

    `heads` of `head_dim`; low-rank projections of decay, in-context rate, output gate and, but in the first layer,
    of the value's residual. `channel_mix` says that the feed-forward block mixes with the token before it.
    """

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
        square = {"rows": RWKV_CHUNK, "columns": RWKV_CHUNK, "heads": self.heads}
        wide = {"rows": RWKV_CHUNK, "inner": RWKV_CHUNK, "columns": self.head_dim, "heads": self.heads}
        state = {"rows": RWKV_CHUNK, "inner": self.head_dim, "columns": self.head_dim, "heads": self.heads}
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
            chunk=RWKV_CHUNK,
            scan=(
                *(ChunkProduct(inner=self.head_dim, **square) for _ in range(4)),
                *(ChunkProduct(**wide) for _ in range(4)),
                *(ChunkProduct(**state) for _ in range(4)),
            ),
            recurrence=0.0,
            moved=12.0 * hidden + 7.0 * width + 14.0 * width,
            kept=6.0 * hidden + 13.0 * width + 2.0 * self.heads * RWKV_CHUNK,
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


@record
class ShortConvolution:
    """A short convolution between two gates, the operator of LFM2 (arXiv 2511.23404 §2).

    A depthwise convolution of `width` tokens over `channels`, gated before and after.
    """

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


@record
class GatedRecurrence:
    """The real-gated linear recurrence of Griffin and RecurrentGemma (arXiv 2402.19427 §2.4).

    `channels` in `blocks`, whose two gates are block-diagonal products; a convolution of `width` tokens before, a
    branch with a GeLU beside.
    """

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


Mixer = Mamba | Mamba2 | GatedDelta | Lightning | Rwkv7 | ShortConvolution | GatedRecurrence
"""The closed list of kinds. Plan files name a kind by its class."""
