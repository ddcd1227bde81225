"""Records operators forward, and then their gradients in reverse order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shardwright.synthesis.graph import Argument, Graph, Node, Ref, RepeatedBlock, Value

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
        node = Node(name=full, op=op, args=args, kwargs=kwargs, outputs=outputs)
        self.nodes.append(node)
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
        """Add `gradient` to that of `ref`."""
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
