"""The operators that models are made of: recorded forward, and their gradients in reverse order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shardwright.synthesis.graph import Argument, Graph, Node, Ref, RepeatedBlock, Value

RMS_EPSILON = 1e-6  # Llama's and Qwen's, in `transformers`
Backward = Callable[[Ref], None]
NONE: Mapping[str, Argument] = {}


class Recorder:
    """The nodes of a step as they are recorded."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = dtype
        self.nodes: list[Node] = []
        self.leaves: dict[str, dict[str, Ref]] = {"parameter": {}, "input": {}, "buffer": {}}
        self._values: dict[Ref, Value] = {}
        self._backward: list[tuple[Ref, Backward, str]] = []
        self._gradients: dict[Ref, Ref] = {}
        self._blocks: dict[str, list[list[str]]] = {}
        self._block = ""
        self._names: dict[str, int] = {}

    def shape(self, ref: Ref) -> tuple[int, ...]:
        return self._values[ref].shape

    def record(
        self,
        op: str,
        args: tuple[Argument, ...],
        *outputs: Value,
        name: str = "",
        kwargs: Mapping[str, Argument] = NONE,
    ) -> Ref:
        """Add a node and return its first result."""
        stem = name or op.split(".")[0].strip("_")
        number = self._names.get(stem, 0)
        self._names[stem] = number + 1
        full = name or f"{stem}_{number}"
        self.nodes.append(Node(name=full, op=op, args=args, kwargs=kwargs, outputs=outputs))
        self._values.update((Ref(full, place), value) for place, value in enumerate(outputs))
        if self._block:
            kind, _, place = self._block.rpartition(".")
            self._blocks[kind][int(place)].append(full)
        return Ref(full)

    @contextmanager
    def block(self, kind: str) -> Iterator[None]:
        """Record what is inside as one more occurrence of the block `kind`; its gradients will belong to it too."""
        number = len(self._blocks.setdefault(kind, []))
        self._blocks[kind].append([])
        self._block = f"{kind}.{number}"
        yield
        self._block = ""

    def leaf(self, kind: str, name: str, shape: tuple[int, ...], dtype: str = "") -> Ref:
        """Add an input, a parameter or a buffer."""
        self.leaves[kind][name] = self.record(kind, (), Value(shape, dtype or self.dtype), name=name)
        return self.leaves[kind][name]

    def parameter(self, name: str, *shape: int) -> Ref:
        return self.leaf("parameter", name, shape)

    def op(self, op: str, args: tuple[Argument, ...], *shapes: tuple[int, ...], dtype: str = "") -> Ref:
        """Add an operator whose results have `shapes`, without a gradient."""
        return self.record(op, args, *(Value(shape, dtype or self.dtype) for shape in shapes))

    def back(self, result: Ref, rule: Backward) -> Ref:
        """Remember how the gradient of `result` goes on; return `result`."""
        self._backward.append((result, rule, self._block))
        return result

    def give(self, ref: Ref, gradient: Ref) -> None:
        if ref in self._gradients:
            gradient = self.op("add.Tensor", (self._gradients[ref], gradient), self.shape(ref))
        self._gradients[ref] = gradient

    def graph(self, loss: Ref) -> Graph:
        """Record the gradients of all parameters and return the whole step."""
        self._block = ""
        self._gradients[loss] = self.record("full", ((), 1.0), Value((), self.dtype), kwargs={"dtype": self.dtype})
        for result, rule, block in reversed(self._backward):
            if result in self._gradients:
                self._block = block
                rule(self._gradients[result])
        parameters = self.leaves["parameter"]
        return Graph(
            nodes=tuple(self.nodes),
            parameters=parameters,
            inputs=self.leaves["input"],
            buffers=self.leaves["buffer"],
            loss=loss,
            gradients={name: self._gradients[ref] for name, ref in parameters.items()},
            repeats=tuple(
                RepeatedBlock(occurrences=tuple(map(tuple, blocks)))
                for blocks in self._blocks.values()
                if len(blocks) > 1
            ),
        )


class Tape(Recorder):
    """A method records an operator and returns the tensor that it makes; `graph` adds the gradients."""

    # Views

    def view(self, x: Ref, *shape: int) -> Ref:
        if shape == self.shape(x):
            return x
        made = self.op("view", (x, shape), shape)
        return self.back(made, lambda g: self.give(x, self.op("view", (g, self.shape(x)), self.shape(x))))

    def permute(self, x: Ref, *order: int) -> Ref:
        made = self.op("permute", (x, order), tuple(self.shape(x)[dim] for dim in order))
        inverse = tuple(order.index(dim) for dim in range(len(order)))
        return self.back(made, lambda g: self.give(x, self.op("permute", (g, inverse), self.shape(x))))

    def unbind(self, x: Ref) -> list[Ref]:
        """Return the slices along dimension 0."""
        count, *rest = self.shape(x)
        made = self.op("unbind.int", (x,), *([tuple(rest)] * count))
        parts = [Ref(made.node, number) for number in range(count)]

        def rule(_: Ref) -> None:
            gradients = tuple(self._gradients[part] for part in parts)
            self.give(x, self.op("stack", (gradients,), self.shape(x)))

        self.back(parts[0], rule)
        return parts

    def expand(self, x: Ref, *shape: int) -> Ref:
        """Repeat x along its dimensions of length 1."""
        made = self.op("expand", (x, shape), shape)
        return self.back(made, lambda g: self.give(x, self._unbroadcast(g, self.shape(x))))

    def halves(self, x: Ref) -> tuple[Ref, Ref]:
        """Return the two halves of the last dimension."""
        shape = self.shape(x)
        dim, half = len(shape) - 1, shape[-1] // 2
        first, second = (
            self.op("slice.Tensor", (x, dim, start, start + half, 1), (*shape[:-1], half)) for start in (0, half)
        )

        def rule(g: Ref) -> None:
            self.give(x, self.op("cat", ((g, self._gradients[second]), dim), shape))

        return self.back(first, rule), second

    def sum(self, x: Ref, dim: int) -> Ref:
        shape = self.shape(x)
        made = self.op("sum.dim_IntList", (x, (dim,), False), shape[:dim] + shape[dim + 1 :])

        def rule(g: Ref) -> None:
            kept = (*shape[:dim], 1, *shape[dim + 1 :])
            self.give(x, self.op("expand", (self.op("view", (g, kept), kept), shape), shape))

        return self.back(made, rule)

    # Elementwise

    def add(self, x: Ref, y: Ref) -> Ref:
        made = self.op("add.Tensor", (x, y), self.shape(x))

        def rule(g: Ref) -> None:
            self.give(x, g)
            self.give(y, self._unbroadcast(g, self.shape(y)))

        return self.back(made, rule)

    def _unbroadcast(self, g: Ref, shape: tuple[int, ...]) -> Ref:
        wide = self.shape(g)
        if wide == shape:
            return g
        offset = len(wide) - len(shape)
        dims = tuple(n for n, size in enumerate(wide) if n < offset or shape[n - offset] != size)
        kept = tuple(1 if n in dims else size for n, size in enumerate(wide))
        summed = self.op("sum.dim_IntList", (g, dims, True), kept)
        return self.op("view", (summed, shape), shape)

    def multiply(self, x: Ref, y: Ref) -> Ref:
        made = self.op("mul.Tensor", (x, y), self.shape(x))

        def rule(g: Ref) -> None:
            self.give(x, self.op("mul.Tensor", (g, y), self.shape(x)))
            product = self.op("mul.Tensor", (g, x), self.shape(x))
            self.give(y, self._unbroadcast(product, self.shape(y)))

        return self.back(made, rule)

    def unary(self, op: str, x: Ref) -> Ref:
        """Add "gelu", its approximation "gelu_tanh", "silu", "relu" or "sigmoid"."""
        value, name = Value(self.shape(x), self.dtype), op.removesuffix("_tanh")
        how = {"approximate": "tanh"} if name != op else {}
        made = self.record(name, (x,), value, kwargs=how)
        if op == "relu":
            return self.back(made, lambda g: self.give(x, self.record("threshold_backward", (g, made, 0.0), value)))
        kept = made if op == "sigmoid" else x
        return self.back(made, lambda g: self.give(x, self.record(f"{name}_backward", (g, kept), value, kwargs=how)))

    def dropout(self, x: Ref, probability: float = 0.1) -> Ref:
        shape = self.shape(x)
        key = len(self.nodes)
        made = self.op("dropout", (x, probability, key), shape)
        return self.back(made, lambda g: self.give(x, self.op("dropout", (g, probability, key), shape)))

    # Layers

    def linear(self, x: Ref, name: str, width: int, *, bias: bool = True, weight: Ref | None = None) -> Ref:
        """Add x · wᵀ + b on the last dimension of x; `weight` is one that is there already."""
        *rows, depth = self.shape(x)
        flat = self.view(x, math.prod(rows), depth)
        w = weight or self.parameter(f"{name}.weight", width, depth)
        turned = self.op("t", (w,), (depth, width))
        shape = (math.prod(rows), width)
        needed = x not in self.leaves["input"].values()
        if bias:
            b = self.parameter(f"{name}.bias", width)
            made = self.op("addmm", (b, flat, turned), shape)
        else:
            made = self.op("mm", (flat, turned), shape)

        def rule(g: Ref) -> None:
            if needed:
                self.give(flat, self.op("mm", (g, w), (math.prod(rows), depth)))
            across = self.op("t", (g,), shape[::-1])
            self.give(w, self.op("mm", (across, flat), (width, depth)))
            if bias:
                summed = self.op("sum.dim_IntList", (g, (0,), True), (1, width))
                self.give(b, self.op("view", (summed, (width,)), (width,)))

        self.back(made, rule)
        return self.view(made, *rows, width)

    def norm(self, x: Ref, name: str, *, rms: bool = False) -> Ref:
        """Add a layer norm or an RMS norm over the last dimension."""
        return self._rms_norm(x, name) if rms else self._layer_norm(x, name)

    def _layer_norm(self, x: Ref, name: str) -> Ref:
        shape = self.shape(x)
        rows, width = (*shape[:-1], 1), shape[-1]
        w, b = self.parameter(f"{name}.weight", width), self.parameter(f"{name}.bias", width)
        made = self.op("native_layer_norm", (x, (width,), w, b, 1e-5), shape, rows, rows)
        stats = [Ref(made.node, number) for number in (1, 2)]

        def rule(g: Ref) -> None:
            args: tuple[Argument, ...] = (g, x, (width,), *stats, w, b, (True, True, True))
            dx = self.op("native_layer_norm_backward", args, shape, (width,), (width,))
            for number, ref in enumerate((x, w, b)):
                self.give(ref, Ref(dx.node, number))

        return self.back(made, rule)

    def _rms_norm(self, x: Ref, name: str) -> Ref:
        """Add y = w x r, r = (mean x² + ε)^-½, as models spell it out; dx = h r - x r³ mean(h x), h = w dy."""
        shape = self.shape(x)
        rows, width, last = (*shape[:-1], 1), shape[-1], len(shape) - 1
        w = self.parameter(f"{name}.weight", width)
        squares = self.op("sum.dim_IntList", (self.op("pow.Tensor_Scalar", (x, 2), shape), (last,), True), rows)
        mean = self.op("add.Tensor", (self.op("div.Tensor", (squares, width), rows), RMS_EPSILON), rows)
        r = self.op("rsqrt", (mean,), rows)
        normed = self.op("mul.Tensor", (x, r), shape)
        made = self.op("mul.Tensor", (w, normed), shape)

        def rule(g: Ref) -> None:
            self.give(w, self._unbroadcast(self.op("mul.Tensor", (g, normed), shape), (width,)))
            h = self.op("mul.Tensor", (g, w), shape)
            total = self.op("sum.dim_IntList", (self.op("mul.Tensor", (h, x), shape), (last,), True), rows)
            cubed = self.op("mul.Tensor", (self.op("pow.Tensor_Scalar", (r, 3), rows), -1 / width), rows)
            along = self.op("mul.Tensor", (x, self.op("mul.Tensor", (total, cubed), rows)), shape)
            self.give(x, self.op("add.Tensor", (self.op("mul.Tensor", (h, r), shape), along), shape))

        return self.back(made, rule)

    def attention(self, q: Ref, k: Ref, v: Ref, *, causal: bool) -> Ref:
        shape = self.shape(q)
        how: tuple[Argument, ...] = (0.0, causal, shape[-1] ** -0.5, len(self.nodes))
        made = self.record("attention", (q, k, v, None, *how), Value(shape, self.dtype), Value(shape[:3]))
        stat = Ref(made.node, 1)

        def rule(g: Ref) -> None:
            args = (g, q, k, v, None, made, stat, *how)
            dq = self.op("attention_backward", args, shape, self.shape(k), self.shape(v))
            for number, ref in enumerate((q, k, v)):
                self.give(ref, Ref(dq.node, number))

        return self.back(made, rule)

    def rotated(self, x: Ref, cos: Ref, sin: Ref) -> Ref:
        """Turn the two halves of the last dimension of x by their angles (Su et al., arXiv 2104.09864)."""
        straight = self.op("mul.Tensor", (x, cos), self.shape(x))
        across = self.op("mul.Tensor", (self._quarter_turn(x), sin), self.shape(x))
        made = self.op("add.Tensor", (straight, across), self.shape(x))

        def rule(g: Ref) -> None:
            self.give(x, self.op("mul.Tensor", (g, cos), self.shape(x)))
            back = self._quarter_turn(self.op("mul.Tensor", (g, sin), self.shape(x)), back=True)
            self.give(x, back)

        return self.back(made, rule)

    def _quarter_turn(self, x: Ref, *, back: bool = False) -> Ref:
        """Return the halves (a, b) of the last dimension as (-b, a), or `back` as (b, -a)."""
        shape = self.shape(x)
        dim, half = len(shape) - 1, (*shape[:-1], shape[-1] // 2)
        a = self.op("slice.Tensor", (x, dim, 0, half[-1], 1), half)
        b = self.op("slice.Tensor", (x, dim, half[-1], shape[-1], 1), half)
        turned = (b, self.op("neg", (a,), half)) if back else (self.op("neg", (b,), half), a)
        return self.op("cat", (turned, dim), shape)

    def embedding(self, indices: Ref, w: Ref) -> Ref:
        made = self.op("embedding", (w, indices), (*self.shape(indices), self.shape(w)[1]))

        def rule(g: Ref) -> None:
            args = (g, indices, self.shape(w)[0], -1, False)
            self.give(w, self.op("embedding_dense_backward", args, self.shape(w)))

        return self.back(made, rule)

    def cross_entropy(self, logits: Ref, target: Ref) -> Ref:
        """Add the mean over rows."""
        rows = self.shape(logits)[0]
        made = self.op("cross_entropy", (logits, target, -100), (rows,), (rows,))
        total = self.op("sum.dim_IntList", (made, (0,), False), ())
        mean = self.op("mul.Tensor", (total, 1 / rows), ())

        def rule(g: Ref) -> None:
            shared = self.op("expand", (self.op("mul.Tensor", (g, 1 / rows), ()), (rows,)), (rows,))
            args: tuple[Argument, ...] = (shared, logits, target, Ref(made.node, 1), -100)
            self.give(logits, self.op("cross_entropy_backward", args, self.shape(logits)))

        return self.back(mean, rule)

    def softmax(self, x: Ref) -> Ref:
        made = self.op("_softmax", (x, -1, False), self.shape(x))
        name = "_softmax_backward_data"
        return self.back(made, lambda g: self.give(x, self.op(name, (g, made, -1, self.dtype), self.shape(x))))
