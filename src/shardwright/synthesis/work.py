"""Floating-point operations and bytes of an operator on whole tensors."""

from __future__ import annotations

import math

from shardwright.synthesis.graph import Node, Value, words

FREE = words(
    "view _unsafe_view reshape t transpose.int permute expand unsqueeze squeeze squeeze.dim squeeze.dims detach "
    "alias select.int slice.Tensor unbind.int split.Tensor unsafe_split.Tensor chunk split_with_sizes parameter "
    "buffer input flatten.using_ints empty_like empty.memory_format"
)
"""Operators that move nothing: views, and what is there before the step."""


def flops(node: Node, operands: tuple[Value, ...]) -> float:
    """Return the operations of `node`: two for each multiplication and addition of a product, one for each element of
    anything else that computes.

    Attention forward has two products of queries × keys × size, backward five (the scores are computed again).
    """
    shapes = [value.shape for value in operands]
    op = node.op
    if op in FREE:
        return 0.0
    if op in ("mm", "bmm", "mv", "dot"):
        return 2.0 * math.prod(shapes[0]) * (shapes[1][-1] if len(shapes[1]) > 1 else 1)
    if op == "addmm":
        return 2.0 * math.prod(shapes[1]) * shapes[2][-1]
    if op in ("grouped_mm", "grouped_mm_weight"):
        rows, depth = shapes[0]
        return 2.0 * rows * depth * shapes[1][-1]
    if op in ("attention", "attention_backward"):
        back = op.endswith("backward")
        query, key = (shapes[1], shapes[2]) if back else (shapes[0], shapes[1])
        return (10.0 if back else 4.0) * math.prod(query) * key[2]
    if op == "convolution":
        return 2.0 * math.prod(node.outputs[0].shape) * math.prod(shapes[1][1:])
    if op == "convolution_backward":
        wanted = sum(1 for value in node.outputs[:2] if value.elements)
        return 2.0 * wanted * math.prod(shapes[0]) * math.prod(shapes[2][1:])
    return float(max((value.elements for value in (*operands, *node.outputs)), default=0))


def product(node: Node) -> bool:
    """Return whether `node` is a product, whose operations are those that a GPU's FLOP/s are stated for."""
    return node.op in PRODUCTS


PRODUCTS = words(
    "mm bmm mv dot addmm grouped_mm grouped_mm_weight attention attention_backward convolution convolution_backward"
)


def traffic_bytes(node: Node, operands: tuple[Value, ...]) -> float:
    """Return the bytes that `node` reads and writes."""
    if node.op in FREE:
        return 0.0
    return float(sum(value.size_bytes for value in (*operands, *node.outputs)))
