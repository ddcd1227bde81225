"""Rows for operators that work element by element, with broadcasting, and for those that make tensors from nothing."""

from __future__ import annotations

from shardwright.synthesis.graph import Node, Value, words
from shardwright.synthesis.rules.signature import Dims, Signature

# In which operands each operator is linear: "all" of them together, "each" alone, or those of the numbers given. The
# numbers count tensors, not arguments.
LINEAR = {
    "add.Tensor": "all", "sub.Tensor": "all", "add_.Tensor": "all", "neg": "all", "clone": "all", "detach": "all",
    "alias": "all", "_to_copy": "all", "mul.Tensor": "each", "mul_.Tensor": "each", "div.Tensor": "0",
    "mul.Scalar": "0", "div.Scalar": "0", "dropout_backward": "0", "native_dropout_backward": "0",
    "threshold_backward": "0", "gelu_backward": "0", "silu_backward": "0", "tanh_backward": "0",
    "sigmoid_backward": "0", "dropout": "0", "where.self": "12", "lift_fresh_copy": "all", "contiguous": "all",
}  # fmt: skip
PLAIN = words(
    "relu relu_ gelu silu tanh tanh_ sigmoid sigmoid_ exp log sqrt rsqrt reciprocal abs sin cos erf "
    "pow.Tensor_Scalar pow.Tensor_Tensor square add.Scalar sub.Scalar rsub.Scalar div_.Scalar mul_.Scalar clamp "
    "clamp_min clamp_max eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor "
    "gt.Scalar ge.Tensor ge.Scalar bitwise_and.Tensor bitwise_or.Tensor bitwise_not logical_and logical_or "
    "logical_not minimum maximum masked_fill.Scalar masked_fill.Tensor remainder.Scalar remainder.Tensor floor "
    "floor_divide floor_divide.Scalar isnan isinf softplus hardtanh leaky_relu elu mish log1p expm1 sign "
    "where.ScalarOther where.ScalarSelf where.Scalar dropout native_dropout addcmul addcdiv lerp.Scalar to.dtype "
    "zeros_like ones_like full_like empty_like rand_like hardswish hardsigmoid log_sigmoid_forward "
    "softplus_backward hardtanh_backward elu_backward leaky_relu_backward mish_backward hardswish_backward copy"
)
ELEMENTWISE = PLAIN | LINEAR.keys()
# A mask is made from the global index of each element, so a tensor made from nothing may be cut at will.
MADE = words("zeros ones full empty.memory_format arange arange.start scalar_tensor new_zeros new_ones new_full")


def elementwise(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature with an axis for each dimension of the result; shorter operands align at its end."""
    shape = node.outputs[0].shape
    names = [str(number) for number in range(len(shape))]

    def dims(value: Value) -> Dims:
        offset = len(shape) - len(value.shape)
        return tuple(
            (names[offset + number],) if size == shape[offset + number] and size > 1 else ()
            for number, size in enumerate(value.shape)
        )

    kind = LINEAR.get(node.op, "")
    every = range(len(operands))
    groups = {
        "": (),
        "all": (frozenset(every),),
        "each": tuple(frozenset({number}) for number in every),
    }.get(kind, (frozenset(int(number) for number in kind if kind.isdigit()),))
    return Signature(
        inputs=tuple(dims(value) for value in operands),
        outputs=tuple(dims(value) for value in node.outputs),
        sizes={name: size for name, size in zip(names, shape, strict=True) if size > 1},
        linear=groups if _sums(node, operands) else (),
    )


def _sums(node: Node, operands: tuple[Value, ...]) -> bool:
    """Return whether the operator is linear and not affine: x + 1 is not."""
    if node.op in ("add.Tensor", "sub.Tensor", "add_.Tensor"):
        return len(operands) == 2
    return all(value.dtype.startswith(("float", "bfloat")) for value in node.outputs)


def made(node: Node, operands: tuple[Value, ...]) -> Signature:
    """Return the signature of a tensor that is made from its shape; operands lend only their type."""
    shape = node.outputs[0].shape
    return Signature(
        inputs=tuple(((),) * len(value.shape) for value in operands),
        outputs=(tuple((str(number),) if size > 1 else () for number, size in enumerate(shape)),),
        sizes={str(number): size for number, size in enumerate(shape) if size > 1},
    )
