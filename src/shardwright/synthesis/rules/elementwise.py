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
# Every operator that PyTorch tags as pointwise and that draws nothing at random, and those that act like one.
PLAIN = words(
    "__lshift__.Scalar __lshift__.Tensor __rshift__.Scalar __rshift__.Tensor abs acos acosh add.Scalar addcdiv "
    "addcmul angle asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Scalar_Tensor bitwise_and.Tensor "
    "bitwise_left_shift.Scalar_Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_not "
    "bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_or.Tensor bitwise_right_shift.Scalar_Tensor "
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Scalar_Tensor "
    "bitwise_xor.Tensor ceil celu clamp clamp.Tensor clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor copy "
    "copysign.Scalar copysign.Tensor cos cosh deg2rad digamma div.Scalar_mode div.Tensor_mode div_.Scalar "
    "dropout elu elu_backward empty_like eq.Scalar eq.Tensor erf erfc erfinv exp exp2 expm1 floor floor_divide "
    "floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac frexp.Tensor full_like gcd ge.Scalar ge.Tensor "
    "gelu gt.Scalar gt.Tensor hardshrink hardsigmoid hardswish hardswish_backward hardtanh hardtanh_backward "
    "heaviside hypot i0 igamma igammac isinf isnan isneginf isposinf lcm ldexp.Tensor le.Scalar le.Tensor "
    "leaky_relu leaky_relu_backward lerp.Scalar lerp.Tensor lgamma log log10 log1p log2 log_sigmoid_forward "
    "logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt.Scalar "
    "lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum minimum mish mish_backward mul_.Scalar mvlgamma "
    "nan_to_num native_dropout ne.Scalar ne.Tensor nextafter ones_like polygamma pow.Scalar pow.Tensor_Scalar "
    "pow.Tensor_Tensor rad2deg rand_like reciprocal relu relu_ remainder.Scalar remainder.Scalar_Tensor "
    "remainder.Tensor round round.decimals rsqrt rsub.Scalar sgn sigmoid sigmoid_ sign signbit silu sin sinc "
    "sinh softplus softplus_backward softshrink special_airy_ai special_bessel_j0 special_bessel_j1 "
    "special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_t.n_scalar "
    "special_chebyshev_polynomial_t.x_scalar special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_u.n_scalar special_chebyshev_polynomial_u.x_scalar "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_v.n_scalar "
    "special_chebyshev_polynomial_v.x_scalar special_chebyshev_polynomial_w "
    "special_chebyshev_polynomial_w.n_scalar special_chebyshev_polynomial_w.x_scalar special_entr special_erfcx "
    "special_hermite_polynomial_h special_hermite_polynomial_h.n_scalar special_hermite_polynomial_h.x_scalar "
    "special_hermite_polynomial_he special_hermite_polynomial_he.n_scalar special_hermite_polynomial_he.x_scalar "
    "special_i0e special_i1 special_i1e special_laguerre_polynomial_l special_laguerre_polynomial_l.n_scalar "
    "special_laguerre_polynomial_l.x_scalar special_legendre_polynomial_p special_legendre_polynomial_p.n_scalar "
    "special_legendre_polynomial_p.x_scalar special_log_ndtr special_modified_bessel_i0 "
    "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t "
    "special_shifted_chebyshev_polynomial_t.n_scalar special_shifted_chebyshev_polynomial_t.x_scalar "
    "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_u.n_scalar "
    "special_shifted_chebyshev_polynomial_u.x_scalar special_shifted_chebyshev_polynomial_v "
    "special_shifted_chebyshev_polynomial_v.n_scalar special_shifted_chebyshev_polynomial_v.x_scalar "
    "special_shifted_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_w.n_scalar "
    "special_shifted_chebyshev_polynomial_w.x_scalar special_spherical_bessel_j0 special_xlog1py "
    "special_xlog1py.other_scalar special_xlog1py.self_scalar special_zeta special_zeta.other_scalar "
    "special_zeta.self_scalar sqrt square sub.Scalar tan tanh tanh_ threshold to.dtype trunc where.Scalar "
    "where.ScalarOther where.ScalarSelf xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor zeros_like"
)
ELEMENTWISE = PLAIN | LINEAR.keys()
# A mask is made from the global index of each element, so a tensor made from nothing may be cut at will.
MADE = words(
    "constant zeros ones full empty.memory_format arange arange.start scalar_tensor new_zeros new_ones new_full"
)


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
