"""Turns the joint graph that AOTAutograd traces, forward and backward, into the graph that programs are made of."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as kinds
from torch._subclasses.fake_tensor import FakeTensor

from shardwright.errors import bad
from shardwright.spmd.normalise import EFFECTS, NAMESPACES, normalised, value_of
from shardwright.spmd.operators import NAMESPACE
from shardwright.synthesis.graph import Argument, Graph, Node, Ref, Value

_TABLES = ("parameters", "buffers", "inputs", "gradients", "buffer_updates")
_TOKENS = (kinds.ForwardTokenAOTInput, kinds.BackwardTokenAOTInput)
_CONSTANT_ELEMENTS = 4096
# Of our own operators, where the number stands that tells one that draws at random from another.
_NUMBERS = {"dropout": 2, "attention": 7, "attention_backward": 10}


def graph_of(joint: fx.GraphModule, names: Mapping[str, str], inputs: Sequence[str]) -> Graph:
    """Return the graph of a step.

    `names` leads from each parameter and buffer of the trace to its name in the graph, one name where parameters are
    tied; `inputs` are the names of the step's inputs. Raises `SpecError` for an operator that no shard can compute.
    """
    walk = _Walk(names, inputs)
    for node in joint.graph.nodes:
        if node.op == "get_attr":
            walk.add_constant(node, getattr(joint, node.target))
        else:
            walk.add(node)
    return walk.graph()


class _Walk:
    """The graph so far, and the references that stand for the results of FX nodes."""

    def __init__(self, names: Mapping[str, str], inputs: Sequence[str]) -> None:
        self.names, self.input_names = names, inputs
        self.nodes: list[Node] = []
        self.makers: dict[str, Node] = {}
        self.values: dict[Ref, Value] = {}
        self.found: dict[fx.Node, Any] = {}
        self.tables: dict[str, dict[str, Ref]] = {name: {} for name in _TABLES}
        self.loss: Ref | None = None
        self.counts: dict[str, itertools.count[int]] = {}
        self.draws: dict[int, int] = {}

    def value(self, ref: Ref) -> Value:
        return self.values[ref]

    def origin(self, ref: Ref) -> Node:
        return self.makers[ref.node]

    def make(self, op: str, args: tuple[Argument, ...], *outputs: Value, **kwargs: Argument) -> Ref:
        """Append a node and return its first result."""
        stem = op.split(".")[0].strip("_")
        name = f"{stem}_{next(self.counts.setdefault(stem, itertools.count()))}"
        self.makers[name] = Node(name=name, op=op, args=args, kwargs=kwargs, outputs=outputs)
        self.nodes.append(self.makers[name])
        self.values.update({Ref(name, number): value for number, value in enumerate(outputs)})
        return Ref(name)

    def add(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self._add_leaf(node)
        elif node.op == "output":
            self._add_results(node)
        elif node.target is operator.getitem:
            self.found[node] = self.found[node.args[0]][node.args[1]]  # type: ignore[index]
        else:
            self._add_operator(node)

    def add_constant(self, node: fx.Node, tensor: Any) -> None:
        """Add a tensor that the module's code makes of numbers, or holds without having registered it."""
        values = tensor.constant if isinstance(tensor, FakeTensor) else tensor
        if not isinstance(values, torch.Tensor) or values.is_meta or values.numel() > _CONSTANT_ELEMENTS:
            shape = tuple(getattr(tensor, "shape", ()))
            raise bad("the module", f"holds a constant tensor of shape {shape}", "register it as a buffer")
        numbers = tuple(values.detach().flatten().tolist())
        value = value_of(values)
        self.found[node] = self.make("constant", (numbers,), value, dtype=value.dtype)

    def graph(self) -> Graph:
        assert self.loss is not None
        ends = [self.loss, *(ref for name in ("gradients", "buffer_updates") for ref in self.tables[name].values())]
        leaves = [ref for name in ("parameters", "buffers", "inputs") for ref in self.tables[name].values()]
        needed = {ref.node for ref in (*ends, *leaves)}
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(ref.node for ref in node.inputs)
        kept = tuple(node for node in self.nodes if node.name in needed)
        tables: dict[str, Any] = {name: dict(table) for name, table in self.tables.items()}
        return Graph(nodes=kept, loss=self.loss, **tables)

    def _add_leaf(self, node: fx.Node) -> None:
        kind = node.meta["desc"]
        if isinstance(kind, _TOKENS):
            return
        value = value_of(node.meta["val"])
        if isinstance(kind, kinds.TangentAOTInput):
            self.found[node] = self.make("full", (value.shape, 1.0), value, dtype=value.dtype)
            return
        if isinstance(kind, kinds.PlainAOTInput):
            table, name = "inputs", self.input_names[kind.idx]
        elif isinstance(kind, kinds.ParamAOTInput | kinds.BufferAOTInput):
            table = "parameters" if isinstance(kind, kinds.ParamAOTInput) else "buffers"
            name = self.names[kind.target]
        else:
            raise bad("the module", f"has tensors that share memory ({kind})", "clone one of them")
        if name not in self.tables[table]:
            self.tables[table][name] = self.make(table.removesuffix("s"), (name,), value)
        self.found[node] = self.tables[table][name]

    def _add_results(self, node: fx.Node) -> None:
        (results,) = node.args
        for result, kind in zip(results, node.meta["desc"], strict=True):  # type: ignore[arg-type]
            if result is None:
                continue
            ref: Any = self.found.get(result)
            if isinstance(kind, kinds.PlainAOTOutput):
                self.loss = ref
            elif isinstance(kind, kinds.InputMutationAOTOutput):
                self._add_mutation(kind.mutated_input, ref)
            elif isinstance(kind, kinds.MetadataMutationAOTOutput):
                raise bad("the module", f"changes the shape of a parameter or input in place ({kind})", "clone it")
            elif isinstance(kind, kinds.GradAOTOutput) and isinstance(kind.grad_of, kinds.ParamAOTInput):
                table, name = self.tables["gradients"], self.names[kind.grad_of.target]
                table[name] = self.make("add.Tensor", (table[name], ref), self.value(ref)) if name in table else ref

    def _add_mutation(self, changed: Any, ref: Ref) -> None:
        if not isinstance(changed, kinds.BufferAOTInput):
            hint = "without max_norm" if self.makers[ref.node].op.startswith("embedding_renorm") else "clone it before"
            raise bad("the module", f"changes {self._name(changed)} in place, in the forward", hint)
        self.tables["buffer_updates"][self.names[changed.target]] = ref

    def _name(self, changed: Any) -> str:
        if isinstance(changed, kinds.PlainAOTInput):
            return f"the batch's {self.input_names[changed.idx]}"
        return (
            f"the parameter {self.names[changed.target]}" if isinstance(changed, kinds.ParamAOTInput) else str(changed)
        )

    def _add_operator(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is torch.ops.higher_order.with_effects:
            if node.args[1] in EFFECTS:
                self.found[node] = (None, None)
                return
            raise bad("the module", f"calls {node.args[1]}, which has effects beside its result", "write it without")
        if not isinstance(target, torch._ops.OpOverload):
            raise bad("the module", f"calls {target}, of which programs know nothing", "write it without")
        if target.namespace not in NAMESPACES:
            raise bad("the module", f"calls {target}, which is no operator of PyTorch's own", "write it in PyTorch")
        name = target._schema.name.split("::")[1]
        if torch.Tag.nondeterministic_seeded in target.tags and target.namespace != NAMESPACE:
            # It draws by local shape, and on each rank by itself: a shard would draw other numbers than the whole.
            hint = "put what is drawn into the batch, or use dropout, which draws by position"
            raise bad("the module", f"draws random numbers by {target}", hint)
        args = tuple(self._argument(part) for part in node.args)
        if (
            target.namespace == NAMESPACE
            and name in _NUMBERS
            and args[_NUMBERS[name] - (1 if name == "dropout" else 3)]
        ):
            place = _NUMBERS[name]
            args = (*args[:place], self.draws.setdefault(args[place], len(self.draws)), *args[place + 1 :])
        kwargs = {key: self._argument(part) for key, part in node.kwargs.items()}
        outputs = node.meta.get("val")
        listed = tuple(outputs) if isinstance(outputs, list | tuple) else (outputs,)
        values = tuple(value_of(value) if isinstance(value, torch.Tensor) else Value((0,)) for value in listed)
        self.found[node] = normalised(self, target, args, kwargs, values)

    def _argument(self, part: Any) -> Any:
        if isinstance(part, fx.Node):
            return self.found[part]
        if isinstance(part, list | tuple):
            return tuple(self._argument(item) for item in part)
        if isinstance(part, torch.dtype):
            return str(part).removeprefix("torch.")
        return part if isinstance(part, int | float | complex | bool | str | None) else str(part)
