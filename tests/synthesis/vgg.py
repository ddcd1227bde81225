"""VGG-19, and stacks of fully connected layers."""

from __future__ import annotations

from tests.synthesis.models import convolution

from shardwright.synthesis.graph import Graph, Ref, Value
from shardwright.synthesis.models.tape import Tape

CHANNELS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
"""Channels of the convolutions; 0 is a pooling."""


class PoolingTape(Tape):
    """A tape with the pools of a VGG."""

    def max_pool(self, x: Ref) -> Ref:
        batch, channels, *image = self.shape(x)
        out = (batch, channels, *(size // 2 for size in image))
        made = self.record("max_pool2d_with_indices", (x, (2, 2), (2, 2)), Value(out, self.dtype), Value(out, "int64"))
        args = (x, (2, 2), (2, 2), (0, 0), (1, 1), False, Ref(made.node, 1))
        name = "max_pool2d_with_indices_backward"
        return self.back(made, lambda g: self.give(x, self.op(name, (g, *args), self.shape(x))))

    def adaptive_pool(self, x: Ref, size: int) -> Ref:
        made = self.op("_adaptive_avg_pool2d", (x, (size, size)), (*self.shape(x)[:2], size, size))
        name = "_adaptive_avg_pool2d_backward"
        return self.back(made, lambda g: self.give(x, self.op(name, (g, x), self.shape(x))))


def vgg19(*, batch: int, image: int, classes: int = 1000, dropout: float = 0.5) -> Graph:
    """Return a step of VGG-19, torchvision's: whatever the image, the first fully connected layer reads 7 × 7."""
    tape = PoolingTape()
    x = tape.leaf("input", "images", (batch, 3, image, image))
    labels = tape.leaf("input", "labels", (batch,), "int64")
    for number, channels in enumerate(CHANNELS):
        if channels:
            x = tape.unary("relu", convolution(tape, x, f"features.{number}", channels, 3, padding=1))
        else:
            x = tape.max_pool(x)
    x = tape.view(tape.adaptive_pool(x, 7), batch, 512 * 49)
    for number in range(2):
        x = tape.dropout(tape.unary("relu", tape.linear(x, f"classifier.{number}", 4096)), dropout)
    return tape.graph(tape.cross_entropy(tape.linear(x, "classifier.2", classes), labels))


def fully_connected(*, batch: int, widths: tuple[int, ...]) -> Graph:
    """Return a step of a stack of fully connected layers: `widths` from the input to the classes."""
    tape = Tape()
    x = tape.leaf("input", "rows", (batch, widths[0]))
    labels = tape.leaf("input", "labels", (batch,), "int64")
    for number, width in enumerate(widths[1:-1]):
        x = tape.unary("relu", tape.linear(x, f"layers.{number}", width))
    return tape.graph(tape.cross_entropy(tape.linear(x, "head", widths[-1]), labels))
