"""The table of rules: a row for each operator, those that work element by element or make tensors from nothing too.

The notation is that of `signature`. `RuleRow.text` is enough where the dimensions of an operator are the same whatever
its arguments; other rows name the function that makes the signature from the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import TypeAlias

from shardwright.records import record
from shardwright.synthesis.graph import REPLICATED, Node, Ref, Value, words
from shardwright.synthesis.rules import selections
from shardwright.synthesis.rules.signature import Dims, Signature, parse

Shapes: TypeAlias = tuple[Value, ...]
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


@record
class RuleRow:
    """What the table says of an operator. `anchors` are axes along which work is done; `linear` the operands (by
    number) in which it is linear together; `unlike` the results that are whole rather than a partial sum when an axis
    is cut; `sends` the results, by number, whose bytes are all-reduced inside when an axis is cut; axes `within` are
    never cut, `straight` ones in one stretch only."""

    text: str
    anchors: str = ""
    linear: tuple[tuple[int, ...], ...] = ()
    unlike: tuple[tuple[str, int], ...] = ()
    sends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    within: str = ""
    straight: str = ""


RESIZED = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
ROWS: dict[str, RuleRow] = {
    # Matrix products: m rows, n columns, k what is summed over, b a batch of products.
    "mm": RuleRow(text="mk, kn -> mn", anchors="mkn"),
    "addmm": RuleRow(text="+n, mk, kn -> mn", anchors="mkn"),
    "bmm": RuleRow(text="bmk, bkn -> bmn", anchors="bmkn"),
    "mv": RuleRow(text="mk, k -> m", anchors="mk"),
    "dot": RuleRow(text="k, k -> ", anchors="k"),
    # Embeddings: v classes, d features.
    "embedding": RuleRow(text="vd, * -> *d", anchors="vd", linear=((0,),), straight="v"),
    "embedding_dense_backward": RuleRow(text="*d, * -> vd", anchors="vd", linear=((0,),), straight="v"),
    # Cross-entropy by row n and by class v.
    "cross_entropy": RuleRow(
        text="nv, n -> n, n", anchors="nv", unlike=(("v", 0), ("v", 1)), sends={"v": (1, 1, 1)}, straight="v",
    ),
    "cross_entropy_backward": RuleRow(text="n, nv, n, n -> nv", anchors="nv", linear=((0,),), straight="v"),
    # Convolutions: n images, i channels in, o channels out.
    "convolution": RuleRow(text="ni@, oi@, +o -> no@", anchors="nio"),
    "convolution_backward": RuleRow(text="no@, ni@, oi@ -> ni@, oi@, o", anchors="nio", unlike=(("i", 2),)),
    # Pooling works on each channel of each image.
    "max_pool2d_with_indices": RuleRow(text="nc@ -> nc@, nc@"),
    "max_pool2d_with_indices_backward": RuleRow(text="nc@, nc@, nc@ -> nc@", linear=((0,),)),
    "avg_pool2d": RuleRow(text="nc@ -> nc@", linear=((0,),)),
    "avg_pool2d_backward": RuleRow(text="nc@, nc@ -> nc@", linear=((0,),)),
    "_adaptive_avg_pool2d": RuleRow(text="nc@ -> nc@", linear=((0,),)),
    "_adaptive_avg_pool2d_backward": RuleRow(text="nc@, nc@ -> nc@", linear=((0,),)),
    # Interpolation works on each channel of each image.
    **dict.fromkeys((f"upsample_{kind}" for kind in RESIZED), RuleRow(text="nc@ -> nc@", linear=((0,),))),
    **dict.fromkeys((f"upsample_{kind}_backward" for kind in RESIZED), RuleRow(text="nc@ -> nc@", linear=((0,),))),
    # Group norm: c channels in each of g groups of an image.
    "native_group_norm": RuleRow(text="n(gc)@, (gc), (gc) -> n(gc)@, ng, ng", within="c"),
    "native_group_norm_backward": RuleRow(
        text="n(gc)@, n(gc)@, ng, ng, (gc) -> n(gc)@, (gc), (gc)", within="c",
    ),
    # Products of each row t with the matrix of its expert e; cut by expert, other rows give zeros.
    "grouped_mm": RuleRow(text="tk, ekn, t -> tn", anchors="tekn", straight="e"),
    "grouped_mm_weight": RuleRow(text="tk, tn, t -> ekn", anchors="tekn", straight="e"),
}  # fmt: skip


def _attention(node: Node, operands: Shapes) -> Signature:
    """b and h are cut; where h heads of queries share a head of keys, by heads of keys."""
    back = node.op.endswith("backward")
    q, k = (operands[1], operands[2]) if back else (operands[0], operands[1])
    heads, shared = q.shape[1], k.shape[1]
    many = "(hg)" if heads != shared else "h"
    query, key, stat = f"b{many}..", "bh..", f"b{many}."
    masks = [value for kind, value in zip(_tensors(node), operands, strict=True) if kind == "mask"]
    letters = ("b", many, ".", ".")
    mask = "".join(
        letter if size > 1 else "."
        for value in masks
        for letter, size in zip(letters[4 - len(value.shape) :], value.shape, strict=True)
    )
    words = [query, query, key, key] if back else [query, key, key]
    words += [mask for _ in masks]
    words += [query, stat] if back else []
    results = [query, key, key] if back else [query, stat]
    return parse(f"{','.join(words)}->{','.join(results)}", node, operands, anchors="bh")


def _tensors(node: Node) -> list[str]:
    """Return what each tensor among the arguments is: "mask" or ""."""
    slot = 4 if node.op.endswith("backward") else 3
    return ["mask" if number == slot else "" for number, argument in enumerate(node.args) if isinstance(argument, Ref)]


def _norm(node: Node, operands: Shapes) -> Signature:
    """Layer and RMS norm: the trailing dimensions that are normed stay whole, rows are cut; gradients of weight and
    bias are partial sums over rows."""
    normed = node.args[2] if node.op.endswith("backward") else node.args[1]
    width = len(normed) if isinstance(normed, tuple) else 1
    shape = operands[0].shape
    rows = [f"r{number}" for number in range(len(shape) - width)]

    def dims(value: Value) -> tuple[tuple[str, ...], ...]:
        if len(value.shape) != len(shape):
            return ((),) * len(value.shape)
        return (*((row,) for row in rows), *(((),) * width))

    return Signature(
        inputs=tuple(map(dims, operands)),
        outputs=tuple(map(dims, node.outputs)),
        sizes=dict(zip(rows, shape, strict=False)),
        linear=(),
    )


def _embedding_backward(node: Node, operands: Shapes) -> Signature:
    """The gradient of an embedding, unless it is scaled by how often each row is read."""
    if node.args[4]:
        raise ValueError("the frequencies of rows are those of the whole index")
    return _row(ROWS[node.op], node, operands)


def _convolution(node: Node, operands: Shapes) -> Signature:
    """Convolutions in groups g have i channels in and o channels out in each."""
    row = ROWS[node.op]
    back = node.op.endswith("backward")
    transposed, _, groups = node.args[-4:-1] if back else node.args[-3:]
    if transposed:
        row = replace(row, text=row.text.replace("oi@", "io@"))
    if groups == 1:
        return _row(row, node, operands)
    grouped = (
        row.text.replace("ni", "n(gi)")
        .replace("no", "n(go)")
        .replace("oi@", "(go)i@")
        .replace("io@", "(gi)o@")
        .replace("+o", "+(go)")
    )
    if back:
        grouped = re.sub(", o$", ", (go)", grouped)
    return _row(replace(row, text=grouped, anchors="ng"), node, operands)


def _pooling(node: Node, operands: Shapes) -> Signature:
    """Pooling of images, or of the channels of one."""
    row = ROWS[node.op]
    single = len(operands[0].shape) == 3
    return _row(replace(row, text=row.text.replace("nc@", "c@")) if single else row, node, operands)


def _row(row: RuleRow, node: Node, operands: Shapes) -> Signature:
    """Return the signature of a row: `@` stands for dimensions that stay whole, absent results are dropped."""
    results = node.outputs
    return parse(
        _without(row.text.replace(" ", ""), node, operands),
        node,
        operands,
        anchors=row.anchors,
        linear=tuple(frozenset(group) for group in row.linear if max(group) < len(operands)),
        unlike=dict.fromkeys(row.unlike, REPLICATED),
        sends={axis: tuple(results[number].size_bytes for number in some) for axis, some in row.sends.items()},
        within=frozenset(row.within),
        straight=frozenset(row.straight),
    )


def _without(text: str, node: Node, operands: Shapes) -> str:
    """Return `text` with a word for each tensor that is there, and `@` as the dimensions that it stands for."""
    left, right = text.split("->")
    words = left.split(",")[: len(operands)]
    inputs = [_whole(word, len(operand.shape)) for word, operand in zip(words, operands, strict=True)]
    results = [
        _whole(word, len(operand.shape)) if operand.elements and operand.shape else "." * len(operand.shape)
        for word, operand in zip(right.split(","), node.outputs, strict=False)
    ]
    return f"{','.join(inputs)}->{','.join(results)}"


def _whole(word: str, rank: int) -> str:
    named = len(re.sub(r"\(.*?\)", "x", word.strip("+@")))
    return word.replace("@", "." * (rank - named))


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


Make: TypeAlias = Callable[[Node, Shapes], Signature]
PADS = [f"{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (1, 2, 3)]
_softmaxed = partial(selections.along, position=1)
_second = partial(selections.along, position=2)
MAKERS: dict[str, Make] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(MADE, made),
    **{op: partial(_row, row) for op, row in ROWS.items()},
    **dict.fromkeys((op for op in ROWS if "pool" in op), _pooling),
    **dict.fromkeys(words("attention attention_backward"), _attention),
    **dict.fromkeys(words("native_layer_norm native_layer_norm_backward"), _norm),
    **dict.fromkeys(words("_fused_rms_norm _fused_rms_norm_backward"), _norm),
    **dict.fromkeys(words("convolution convolution_backward"), _convolution),
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(words("view _unsafe_view reshape unsqueeze squeeze squeeze.dim squeeze.dims"), selections.view),
    **dict.fromkeys(words("t transpose.int permute"), selections.moved),
    "expand": selections.expand,
    **dict.fromkeys(words("sum sum.dim_IntList mean mean.dim"), selections.reduction),
    **dict.fromkeys(words("argmax argmin amax amin max.dim min.dim all all.dim any any.dim"), selections.extreme),
    **dict.fromkeys(words("logsumexp prod.dim_int median.dim mode"), selections.extreme),
    "linalg_vector_norm": partial(selections.extreme, position=2),
    **dict.fromkeys(words("_softmax _log_softmax _safe_softmax cumsum cumprod sort"), _softmaxed),
    **dict.fromkeys(words("_softmax_backward_data _log_softmax_backward_data topk sort.stable"), _second),
    **dict.fromkeys(words("slice.Tensor slice_backward"), selections.sliced),
    **dict.fromkeys(words("select.int select_backward unbind.int"), selections.selected),
    "stack": selections.stacked,
    "cat": selections.joined,
    **dict.fromkeys(words("split.Tensor unsafe_split.Tensor chunk split_with_sizes"), selections.split),
    "constant_pad_nd": selections.padded,
    **dict.fromkeys(words("flip roll"), partial(selections.moved_along, linear=True)),
    **dict.fromkeys(words("triu tril"), selections.triangle),
    **dict.fromkeys(PADS, partial(selections.padded, linear=True)),
    **dict.fromkeys((f"{pad}_backward" for pad in PADS), selections.padded_backward),
    "scatter_add": selections.rows_scattered,
    **dict.fromkeys(words("gather scatter.src scatter.value"), selections.gathered),
    "index_select": selections.rows_selected,
    "index_add": selections.rows_added,
    **dict.fromkeys(words("index.Tensor index_put"), selections.indexed),
}

LEAVES = frozenset(("parameter", "buffer", "input"))


def _whole_only(value: Value) -> bool:
    """Return whether a tensor is never cut: nothing is won where there are no elements, and not every collective sends
    complex numbers. A result that was not asked for, of shape (0,), hinders nothing."""
    return (not value.elements and value.shape != (0,)) or value.dtype.startswith("complex")


def signature(node: Node, operands: Shapes) -> Signature | None:
    """Return how the dimensions of `node` hang together, None if the table has no row for it."""
    if any(_whole_only(value) for value in (*operands, *node.outputs)):
        return None
    if node.op in LEAVES:
        return made(node, ())
    make = MAKERS.get(node.op)
    if make is None or not node.outputs:
        return None
    try:
        return make(node, operands)
    except (ValueError, IndexError):
        return None  # an unusual form of the operator, such as an absent operand in its middle
