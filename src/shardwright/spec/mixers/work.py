"""`Work`: what one token costs in a mixer, as plain numbers that follow from its shape: weights, products, traffic, and
what the kernels keep. `cost.compute.operators` prices it; nothing else of the package knows a kind of mixer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkProduct:
    """A product (rows × inner)(inner × columns) of the chunked scan, `heads` of them for every chunk of tokens."""

    rows: float
    inner: float
    columns: float
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One token's work in a mixer.

    `products` have the matrices; `vectors` counts all other weights (biases of products are counted by them), the
    `convolution` taps among these: channels times width, which each token multiplies. The scan goes over chunks of
    `chunk` tokens by the products `scan`; one without a chunk has none and is bound by memory: of it count the
    `recurrence` multiply-adds that sum over the state, as PyTorch's own counter does. `moved` counts elements
    of 16 bits that convolution, scan, gates and norms read and write forward. For the backward pass the kernels keep
    `kept` elements of 16 bits and `kept_single` of 32, beside the input of the mixer, all of them cut by tensor
    parallelism. `sent` elements travel between ranks of context parallelism, each way.
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

    @property
    def matrix_weights(self) -> int:
        """Elements of the matrices."""
        return sum(product.weights for product in self.products)

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


class MixerShape(Protocol):
    """What every kind of mixer tells of itself."""

    def work(self, hidden: int) -> Work:
        """Return one token's work at a hidden width."""
        ...

    @property
    def splits(self) -> tuple[tuple[str, int], ...]:
        """The sizes that tensor parallelism has to divide, with their names."""
        ...

    @property
    def context_heads(self) -> int | None:
        """Heads that context parallelism deals out over its ranks; None where no trainer splits the sequence."""
        ...

    @property
    def words(self) -> str:
        """The mixer in words."""
        ...
