"""Each rule of the table held against numbers: the operator run on the parts of three ranks, of random shapes and
ratios, makes the parts of what it makes of whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.spmd.draws import shared
from torch import Tensor

from shardwright.spmd import kernels
from shardwright.spmd.check import ThreadFabric, on_ranks
from shardwright.spmd.execute import SPECIAL, Call, Site, run
from shardwright.spmd.shards import RankPlace, cut
from shardwright.synthesis.graph import Argument, Node, Partial, Property, Ref, Sharded, Sizes, Value
from shardwright.synthesis.program import Step
from shardwright.synthesis.rules.signature import Cut, OperatorRule, cut_rule, linear_rules, replicated
from shardwright.synthesis.rules.table import RESIZED, ROWS, signature

RANKS = 3
WHOLE: Sizes = {("compute", 1): (1,)}


class Draw:
    """Sizes and tensors at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        torch.manual_seed(seed)

    def size(self, *of: int) -> int:
        return self.random.choice(of or (2, 3, 4, 6))

    def sizes(self, count: int) -> list[int]:
        return [self.size() for _ in range(count)]

    def x(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    def above(self, *shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64) + 0.5

    def index(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape)


Sample = Callable[[Draw], tuple[Any, ...]]


def same(d: Draw, count: int) -> list[Tensor]:
    shape = d.sizes(3)
    return [d.above(*shape) for _ in range(count)]


def broadcast(d: Draw) -> tuple[Tensor, Tensor]:
    shape = d.sizes(3)
    narrow = [size if d.random.random() < 0.6 else 1 for size in shape][d.random.randrange(3) :]
    return d.above(*shape), d.above(*narrow)


def added(d: Draw) -> tuple[Any, ...]:
    """Of two tensors the parts of a sum may be added, not of a tensor and a number."""
    return broadcast(d) if d.random.random() < 0.5 else (*same(d, 1), 1.5)


def product(d: Draw) -> tuple[Tensor, Tensor]:
    m, n, k = d.sizes(3)
    return d.x(m, k), d.x(k, n)


def batched(d: Draw) -> tuple[Tensor, Tensor]:
    b, m, n, k = d.sizes(4)
    return d.x(b, m, k), d.x(b, k, n)


def with_bias(d: Draw) -> tuple[Tensor, ...]:
    x, w = product(d)
    return d.x(w.shape[1]), x, w


def images(d: Draw) -> tuple[Any, ...]:
    """Return image, weight, groups."""
    groups = d.size(1, 2)
    n, i, o = d.sizes(3)
    return d.x(n, groups * i, 5, 4), d.x(groups * o, i, 3, 3), groups


def convolution(d: Draw) -> tuple[Any, ...]:
    """Return arguments of a convolution, or of a transposed one, which takes the weights of the other way."""
    x, w, groups = images(d)
    transposed = d.random.random() < 0.5
    if transposed:
        x = d.x(x.shape[0], w.shape[0], 5, 4)
    bias = d.x(w.shape[1] * groups if transposed else w.shape[0])
    return x, w, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups


def convolution_backward(d: Draw) -> tuple[Any, ...]:
    x, w, bias, *settings = convolution(d)
    g = d.x(x.shape[0], len(bias), 5, 4)
    return g, x, w, [len(bias)], *settings, [True, True, True]


def queries(d: Draw) -> tuple[Any, ...]:
    """Return q, k, v and a mask, in the precision that kernels keep statistics in: the heads of queries are a multiple
    of those of keys."""
    b, h, size = d.sizes(3)
    q = d.x(b, h * d.size(1, 2), 5, size).float()
    k, v = d.x(b, h, 4, size).float(), d.x(b, h, 4, size).float()
    mask = d.random.choice([None, d.x(b, 1, 5, 4), d.x(1, 1, 5, 4), d.x(b, q.shape[1], 5, 4)])
    return q, k, v, None if mask is None else mask.float()


def attention(d: Draw) -> tuple[Any, ...]:
    return *queries(d), d.random.choice([0.0, 0.3]), False, 0.5, 3


def attention_backward(d: Draw) -> tuple[Any, ...]:
    q, k, v, mask, *rest = attention(d)
    drawn = kernels.Draw(number=3, shape=(*q.shape[:3], k.shape[2]), indices=[None] * 4)
    out, logsumexp = kernels.attention(q, k, v, mask, *rest[:-1], draw=drawn)
    return d.x(*q.shape).float(), q, k, v, mask, out, logsumexp, *rest


def rows(d: Draw) -> tuple[Tensor, Tensor]:
    n, v = d.sizes(2)
    return d.x(n, v), d.index(v, n)


def cross_entropy_backward(d: Draw) -> tuple[Any, ...]:
    logits, target = rows(d)
    target[0] = -100
    return d.x(len(target)), logits, target, logits.logsumexp(1), -100


def layer_norm(d: Draw) -> tuple[Any, ...]:
    x = d.x(*d.sizes(3))
    width = x.shape[2]
    return x, [width], d.x(width), d.x(width), 1e-5


def layer_norm_backward(d: Draw) -> tuple[Any, ...]:
    x, width, w, b, _ = layer_norm(d)
    _, mean, rstd = torch.native_layer_norm(x, width, w, b, 1e-5)
    return d.x(*x.shape), x, width, mean, rstd, w, b, [True, True, True]


def pooled(d: Draw) -> tuple[Any, ...]:
    return d.x(*d.sizes(2), 4, 4), [2, 2], [2, 2]


def max_pool_backward(d: Draw) -> tuple[Any, ...]:
    x, *window = pooled(d)
    out, where = torch.ops.aten.max_pool2d_with_indices(x, *window)
    return d.x(*out.shape), x, *window, [0, 0], [1, 1], False, where


def grouped(d: Draw) -> tuple[Any, ...]:
    """Return arguments of a group norm of images."""
    n, groups, channels = d.sizes(3)
    x = d.x(n, groups * channels, 3, 2)
    return x, d.x(x.shape[1]), d.x(x.shape[1]), n, x.shape[1], 6, groups, 1e-5


def grouped_backward(d: Draw) -> tuple[Any, ...]:
    x, w, b, *sizes, eps = grouped(d)
    _, mean, rstd = torch.native_group_norm(x, w, b, *sizes, eps)
    return d.x(*x.shape), x, mean, rstd, w, *sizes, [True, True, True]


def resized(d: Draw, kind: str) -> tuple[Any, ...]:
    """Return arguments of an interpolation to lengths 5."""
    dims = int(kind[-2])
    corners = [] if "nearest" in kind else [d.random.random() < 0.5]
    return d.x(*d.sizes(2), *[3] * dims), [5] * dims, *corners, *[None] * dims


def resized_backward(d: Draw, kind: str) -> tuple[Any, ...]:
    x, size, *rest = resized(d, kind)
    return d.x(*x.shape[:2], *size), size, list(x.shape), *rest


def padded_backward(d: Draw) -> tuple[Any, ...]:
    x = d.x(*d.sizes(2), 4, 4)
    return d.x(*x.shape[:2], 6, 5), x, [1, 0, 1, 1]


def scatter_added(d: Draw) -> tuple[Any, ...]:
    x = d.x(*d.sizes(2))
    count = d.size()
    return x, 1, d.index(x.shape[1], x.shape[0], count), d.x(x.shape[0], count)


def experts(d: Draw) -> tuple[Tensor, Tensor, Tensor]:
    t, k, n, e = d.sizes(4)
    return d.x(t, k), d.x(e, k, n), d.index(e, t)


def experts_weight(d: Draw) -> tuple[Any, ...]:
    x, w, expert = experts(d)
    return x, d.x(len(x), w.shape[2]), expert, w.shape[0]


def viewed(d: Draw) -> tuple[Any, ...]:
    a, b, c = d.sizes(3)
    return d.random.choice([(d.x(a, b, c), [a * b, c]), (d.x(a * b, c), [a, b, c]), (d.x(a, b * c), [a * b, c])])


def sliced(d: Draw) -> tuple[Any, ...]:
    a, b = d.sizes(2)
    part = d.size()
    start = d.random.randrange(a) * part
    return d.x(a * part, b), 0, start, start + part, 1


def slice_backward(d: Draw) -> tuple[Any, ...]:
    x, dim, start, stop, step = sliced(d)
    return d.x(stop - start, x.shape[1]), list(x.shape), dim, start, stop, step


def alike(d: Draw) -> tuple[Any, ...]:
    shape = d.sizes(2)
    return [d.x(*shape) for _ in range(3)], d.size(0, 1)


def scattered(d: Draw) -> tuple[Any, ...]:
    x = d.x(*d.sizes(2))
    return x, 1, d.index(x.shape[1], x.shape[0], 2).sort(1).values, 2.0


def tall(d: Draw) -> tuple[Tensor]:
    return (d.x(*d.sizes(3)),)


def looked_up(d: Draw) -> tuple[Any, ...]:
    x = d.x(*d.sizes(3))
    return x, [d.index(x.shape[0], d.size())]


def put(d: Draw) -> tuple[Any, ...]:
    x, where = looked_up(d)
    return x, where, d.x(where[0].shape[0], *x.shape[1:]), True


UNARY = (
    "relu gelu silu tanh sigmoid exp log sqrt rsqrt reciprocal abs sin cos erf neg clone square bitwise_not logical_not"
)
BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum minimum lt.Tensor ge.Tensor eq.Tensor ne.Tensor le.Tensor"
GRADIENTS = "gelu_backward silu_backward tanh_backward sigmoid_backward"
SAMPLES: dict[str, Sample] = {
    **{op: lambda d: tuple(same(d, 1)) for op in UNARY.split() if op not in ("bitwise_not", "logical_not")},
    **{op: lambda d: (d.index(2, *d.sizes(2)).bool(),) for op in ("bitwise_not", "logical_not")},
    **dict.fromkeys(BINARY.split(), broadcast), "add.Tensor": added, "sub.Tensor": added,
    **{op: lambda d: tuple(same(d, 2)) for op in GRADIENTS.split()},
    "threshold_backward": lambda d: (*same(d, 2), 0),
    "pow.Tensor_Scalar": lambda d: (*same(d, 1), 3.0),
    "where.self": lambda d: (d.index(2, *(s := d.sizes(2))).bool(), d.x(*s), d.x(*s)),
    "dropout": lambda d: (d.x(*d.sizes(3)), 0.4, 2),
    "mm": product, "bmm": batched, "addmm": with_bias,
    "mv": lambda d: (d.x(*(s := d.sizes(2))), d.x(s[1])),
    "dot": lambda d: (d.x(n := d.size()), d.x(n)),
    "embedding": lambda d: (d.x(v := d.size(), d.size()), d.index(v, *d.sizes(2))),
    "embedding_dense_backward": lambda d: (d.x(*(s := d.sizes(3))), d.index(6, *s[:2]), 6, -1, False),
    "convolution": convolution, "convolution_backward": convolution_backward,
    "attention": attention, "attention_backward": attention_backward,
    "cross_entropy": lambda d: (*rows(d), -100), "cross_entropy_backward": cross_entropy_backward,
    "native_layer_norm": layer_norm, "native_layer_norm_backward": layer_norm_backward,
    "max_pool2d_with_indices": pooled, "max_pool2d_with_indices_backward": max_pool_backward,
    "avg_pool2d": pooled,
    "avg_pool2d_backward": lambda d: (
        d.x(*(s := d.sizes(2)), 2, 2), d.x(*s, 4, 4), [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "_adaptive_avg_pool2d": lambda d: (d.x(*d.sizes(2), 4, 4), [2, 2]),
    "_adaptive_avg_pool2d_backward": lambda d: (d.x(*(s := d.sizes(2)), 2, 2), d.x(*s, 4, 4)),
    "native_group_norm": grouped, "native_group_norm_backward": grouped_backward,
    **{f"upsample_{kind}": partial(resized, kind=kind) for kind in RESIZED},
    **{f"upsample_{kind}_backward": partial(resized_backward, kind=kind) for kind in RESIZED},
    "flip": lambda d: (*tall(d), d.random.choice([[0], [1, 2]])),
    "roll": lambda d: (*tall(d), [1], [d.random.randrange(3)]),
    "triu": lambda d: (*tall(d), 1), "scatter_add": scatter_added,
    "reflection_pad2d": lambda d: (d.x(*d.sizes(2), 4, 4), [1, 0, 1, 1]),
    "reflection_pad2d_backward": padded_backward, "replication_pad2d_backward": padded_backward,
    "linalg_vector_norm": lambda d: (*tall(d), 2.0, [1], True), "logsumexp": lambda d: (*tall(d), [0, 2]),
    "grouped_mm": experts, "grouped_mm_weight": experts_weight,
    "view": viewed, "permute": lambda d: (*tall(d), [2, 0, 1]), "t": lambda d: (d.x(*d.sizes(2)),),
    "transpose.int": lambda d: (*tall(d), 0, 2),
    "expand": lambda d: (d.x(1, *(s := d.sizes(2))), [d.size(), *s]),
    "sum.dim_IntList": lambda d: (*tall(d), d.random.choice([[0], [1], [0, 2]]), d.random.choice([True, False])),
    "amax": lambda d: (*tall(d), [1], False), "argmax": lambda d: (*tall(d), 1, False),
    "_softmax": lambda d: (*tall(d), -1, False), "_log_softmax": lambda d: (*tall(d), 1, False),
    "_softmax_backward_data": lambda d: (*same(d, 2), -1, torch.float64),
    "cumsum": lambda d: (*tall(d), 1), "topk": lambda d: (*tall(d), 2, 1), "sort": lambda d: (*tall(d), 1),
    "slice.Tensor": sliced, "slice_backward": slice_backward,
    "select.int": lambda d: (*tall(d), 1, 1), "unbind.int": lambda d: (*tall(d), 0),
    "stack": alike, "cat": alike, "split.Tensor": lambda d: (d.x(6, *d.sizes(2)), 2, 0),
    "split_with_sizes": lambda d: (d.x(6, *d.sizes(2)), [2, 2, 2], 0),
    "constant_pad_nd": lambda d: (*tall(d), [1, 1]),
    "gather": lambda d: (x := d.x(*d.sizes(2)), 1, d.index(x.shape[1], x.shape[0], d.size())),
    "scatter.value": scattered,
    "index_select": lambda d: (x := d.x(*d.sizes(3)), 1, d.index(x.shape[1], d.size())),
    "index_add": lambda d: (x := d.x(*d.sizes(2)), 0, d.index(x.shape[0], 4), d.x(4, x.shape[1])),
    "index.Tensor": looked_up, "index_put": put,
}  # fmt: skip


def test_every_row_of_the_readable_table_has_a_sample() -> None:
    assert ROWS.keys() | SPECIAL.keys() <= SAMPLES.keys() | {"full", "arange", "constant"}


@pytest.mark.parametrize("op", SAMPLES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=4)
def test_every_rule_gives_the_parts_of_the_whole(op: str, seed: int) -> None:
    draw = Draw(seed)
    node, tensors = noded(op, SAMPLES[op](draw))
    values = tuple(value_of(x) for x in tensors)
    expected = alone(node, replicated(node), tensors, values)
    node = replace(node, outputs=tuple(value_of(x) for x in expected))
    for rule in rules_of(node, values, draw.random):
        held = [one for one in (*rule.inputs, *rule.outputs) if isinstance(one, Sharded)]
        sizes = {(one.ratio, one.units): shared(one.units, RANKS, draw.random) for one in held}
        found = together(node, rule, tensors, values, sizes or {("compute", 1): (1, 0, 0)})
        for number, (whole, kept) in enumerate(zip(expected, rule.outputs, strict=True)):
            parts = [results[number] for results in found]
            note(f"{op} by {rule.name}, result {number}, {kept}")
            if isinstance(kept, Partial):
                parts, wanted = [sum(parts, torch.zeros_like(whole))], [whole]
            else:
                wanted = [cut(whole, kept, RankPlace(rank=rank, sizes=sizes)) for rank in range(RANKS)]
            torch.testing.assert_close(parts, wanted, rtol=1e-4, atol=1e-5)


def rules_of(node: Node, values: tuple[Value, ...], random: Random) -> list[OperatorRule]:
    """Return every rule of `node`; each axis is cut into all of its units, and into fewer."""
    one = signature(node, values)
    assert one is not None, f"{node.op} has no row"
    cuts = [
        Cut(axis, size // part)
        for axis, size in one.sizes.items()
        if any(axis in axes for dims in (*one.inputs, *one.outputs) for axes in dims)
        for part in {1, random.choice([p for p in range(1, size + 1) if size % p == 0])}
    ]
    cuts += [Cut(cut.axis, cut.units // 2, 2) for cut in cuts if cut.units % 2 == 0 and cut.units > 2]
    return [*(cut_rule(one, cut) for cut in cuts if one.allows(cut)), *linear_rules(one)]


def noded(op: str, arguments: tuple[Any, ...]) -> tuple[Node, list[Tensor]]:
    tensors: list[Tensor] = []

    def argument(given: Any) -> Argument:
        if isinstance(given, Tensor):
            tensors.append(given)
            return Ref(f"input{len(tensors) - 1}")
        if isinstance(given, list | tuple):
            return tuple(argument(part) for part in given)
        return str(given).removeprefix("torch.") if isinstance(given, torch.dtype) else given  # type: ignore[no-any-return]

    return Node(name="node", op=op, args=tuple(argument(given) for given in arguments)), tensors


def value_of(x: Tensor) -> Value:
    return Value(tuple(x.shape), str(x.dtype).removeprefix("torch."))


def alone(node: Node, rule: OperatorRule, tensors: list[Tensor], values: tuple[Value, ...]) -> list[Tensor]:
    """Return what the operator makes of whole tensors: its shapes are those of the sample."""
    if node.op.startswith("split"):
        return list(tensors[0].split(2))
    guess = {"view": node.args[-1], "expand": node.args[-1], "slice_backward": node.args[1:2] and node.args[1]}
    shape = guess.get(node.op, values[0].shape)
    if node.op == "convolution":
        *_, transposed, _, groups = node.args
        weight = values[1].shape
        shape = (values[0].shape[0], weight[1] * groups if transposed else weight[0])  # type: ignore[operator]
    if node.op.startswith("upsample") and node.op.endswith("backward"):
        shape = node.args[2]
    if node.op in ("embedding_dense_backward", "grouped_mm_weight"):
        last = tensors[0].shape[-1] if node.op.startswith("emb") else (tensors[0].shape[1], tensors[1].shape[1])
        count = node.args[2] if node.op.startswith("emb") else node.args[3]
        shape = (count, last) if isinstance(last, int) else (count, *last)
    assert isinstance(shape, tuple)
    whole = replace(node, outputs=(Value(shape, "float64"),))
    return on_ranks(1, lambda fabric: _run(whole, rule, tensors, values, fabric, WHOLE))[0]


def together(
    node: Node, rule: OperatorRule, tensors: list[Tensor], values: tuple[Value, ...], sizes: Sizes
) -> list[list[Tensor]]:
    """Return what each rank makes of its parts."""
    terms = {
        number: [torch.randn_like(x) for _ in range(RANKS - 1)]
        for number, (x, held) in enumerate(zip(tensors, rule.inputs, strict=True))
        if isinstance(held, Partial)
    }

    def one(fabric: ThreadFabric) -> list[Tensor]:
        place = RankPlace(rank=fabric.rank, sizes=sizes)
        parts = [
            _part(x, held, terms.get(n, []), place)
            for n, (x, held) in enumerate(zip(tensors, rule.inputs, strict=True))
        ]
        return _run(node, rule, parts, values, fabric, sizes)

    return on_ranks(RANKS, one)


def _part(x: Tensor, held: Property, terms: list[Tensor], place: RankPlace) -> Tensor:
    if isinstance(held, Partial):
        return terms[place.rank - 1] if place.rank else x - sum(terms, torch.zeros_like(x))
    return cut(x, held, place)


def _run(
    node: Node, rule: OperatorRule, parts: list[Tensor], values: tuple[Value, ...], fabric: ThreadFabric, sizes: Sizes
) -> list[Tensor]:
    outputs = rule.outputs or (replicated(node).inputs[:1] * max(1, len(node.outputs)))
    step = Step(rule=rule.name, inputs=rule.inputs, outputs=outputs)
    site = Site(place=RankPlace(rank=fabric.rank, sizes=sizes), fabric=fabric, device=torch.device("cpu"), seed=1)
    return list(run(Call(node=node, step=step, inputs=values, site=site), parts))
