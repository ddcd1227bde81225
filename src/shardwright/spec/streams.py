"""Several residual streams, of which a layer computes on one and corrects the others by it: the alternating updates of
Gemma 3n (AltUp, arXiv 2301.13310), with a low-rank branch beside attention (LAuReL, arXiv 2411.07501).

Shapes follow Hugging Face transformers 5.24 (models/gemma3n/modeling_gemma3n.py: `Gemma3nTextAltUp`).
"""

from __future__ import annotations

from shardwright.records import record


@record
class Streams:
    """`count` residual streams of the hidden width, and a branch of `rank` beside attention."""

    count: int
    rank: int

    def parameters(self, hidden: int) -> int:
        """Return the weights of a layer beside norms: both maps between streams, the router that both have of one
        stream, the branch, and a number for each channel of the corrected stream."""
        return self.count**2 + self.count**3 + self.count * hidden + 2 * self.rank * hidden + hidden

    def products(self, hidden: int) -> tuple[tuple[int, int], ...]:
        """Return inputs and outputs of the products with weights that a token goes through in a layer."""
        router = (hidden, self.count)
        return router, (self.count, self.count**2), (hidden, self.rank), (self.rank, hidden), router, (self.count,) * 2

    def flops(self, hidden: int) -> float:
        """Return the FLOPs of a token forward in a layer: of the products, and of the prediction of all streams."""
        return 2.0 * sum(i * o for i, o in self.products(hidden)) + self.mixing_flops(hidden)

    def mixing_flops(self, hidden: int) -> float:
        """Return those of the prediction, a product of a token's streams with a matrix of its own."""
        return 2.0 * hidden * self.count**2

    def moved(self, hidden: int) -> float:
        """Return the elements that a layer reads and writes forward beside products and norms: predictions, their sum
        with the streams and its copy (7 for each), innovation times its weights and the sum (6), and what is added to
        each at the end (3)."""
        return 16.0 * self.count * hidden

    def kept(self, hidden: int) -> float:
        """Return the elements that a layer keeps for its backward pass beside norms: the streams, the innovation for
        each, the inputs of both routers, the branch, and the corrected stream before its scale."""
        return 2.0 * self.count * hidden + 2.0 * hidden + self.rank + hidden

    def end_parameters(self, hidden: int) -> int:
        """Return the weights that make all streams of the embedding, or the head's input of all streams."""
        return (self.count - 1) * hidden * hidden

    def end_kept(self, hidden: int, *, first: bool) -> float:
        """Return the elements that are kept there: the products' inputs, and before and after the scale of each."""
        return (1 if first else self.count) * hidden + 2.0 * (self.count - 1) * hidden
