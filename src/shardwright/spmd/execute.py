"""Runs a program on one rank: computes on shards, sends, forgets.

Most operators run on shards as they run on whole tensors. The others have rows in `SPECIAL`: sizes among the arguments
become those of the shard, indices into a sharded dimension are shifted, and what is drawn at random is drawn by
position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardwright.errors import bad
from shardwright.records import record
from shardwright.spmd import kernels
from shardwright.spmd.fabric import RankFabric
from shardwright.spmd.shards import RankPlace, convert_all, cut, positions
from shardwright.synthesis.graph import ITEM_BYTES, Graph, Node, Partial, Property, Ref, Sharded, Value
from shardwright.synthesis.program import Communication, Program, Step
from shardwright.synthesis.rules.table import RESIZED
from shardwright.synthesis.schedule import Action, ComputeNode, Forget, Key, Leave, Send, Wait, ends, schedule

aten = torch.ops.aten
Results = tuple[Tensor, ...]


@record
class Executable:
    """A program with its schedule: what does not change from step to step."""

    graph: Graph
    program: Program
    actions: tuple[Action, ...]
    ends: Mapping[str, Key]
    values: Mapping[Ref, Value]


def compiled(graph: Graph, program: Program) -> Executable:
    return Executable(
        graph=graph,
        program=program,
        actions=schedule(graph, program),
        ends=ends(graph, program),
        values=graph.values(),
    )


def execute(code: Executable, leaves: Mapping[str, Tensor], site: Site, leave: Callable[[str, Tensor], None]) -> None:
    """Run one training step on one rank; `leave` is given this rank's part of what `schedule.ends` names, each as soon
    as it is done.

    `leaves` holds this rank's part of each parameter, buffer and input by the name of its node.
    """
    held: dict[Key, Tensor] = {}
    # What the forward and the backward gather may travel twice at once: the first that was sent is done first.
    finishes: dict[tuple[Communication, ...], list[Callable[[], list[Tensor]]]] = defaultdict(list)
    for action in code.actions:
        match action:
            case ComputeNode(node, step):
                if node.name in leaves:
                    held[Ref(node.name), step.outputs[0]] = leaves[node.name]
                    continue
                call = Call(node=node, step=step, inputs=tuple(code.values[ref] for ref in node.inputs), site=site)
                results = run(call, [held[key] for key in zip(node.inputs, step.inputs, strict=True)])
                for number, (result, made) in enumerate(zip(results, step.outputs, strict=True)):
                    held[Ref(node.name, number), made] = result
            case Send(several):
                shapes = [code.values[message.tensor].shape for message in several]
                parts = [held[sent.tensor, sent.source] for sent in several]
                finishes[several].append(convert_all(parts, several, shapes, site.place, site.fabric))
            case Wait(several):
                keys = [(message.tensor, message.target) for message in several]
                held.update(zip(keys, finishes[several].pop(0)(), strict=True))
            case Leave(names, key):
                for name in names:
                    leave(name, held[key])
            case Forget(keys):
                for key in keys:
                    del held[key]


@record
class Site:
    """Where an operator runs: the rank's place, its device, and the seed of the training step."""

    place: RankPlace
    fabric: RankFabric
    device: torch.device
    seed: int


@record
class Call:
    """One operator on one rank: the node, its step, the global values of its inputs, and where it runs."""

    node: Node
    step: Step
    inputs: tuple[Value, ...]
    site: Site

    @property
    def output(self) -> Property:
        return self.step.outputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result on this rank."""
        return self.site.place.shape(self.node.outputs[0].shape, self.output)

    def first(self, held: Property, size: int, dim: int) -> int:
        """Return the first element that this rank holds of a dimension of length `size`, 0 if it holds all."""
        return self.site.place.first(held, size) if isinstance(held, Sharded) and held.dim == dim else 0

    def draw(self, number: int, shape: tuple[int, ...], held: Property) -> kernels.Draw:
        """Return what a dropout of operator `number` draws for the part `held` of a tensor of `shape`."""
        indices: list[Tensor | None] = [None] * len(shape)
        if isinstance(held, Sharded):
            indices[held.dim] = positions(held, shape[held.dim], self.site.place)
        return kernels.Draw(number=number, seed=self.site.seed, shape=shape, indices=indices)


def run(call: Call, inputs: Sequence[Tensor]) -> Results:
    """Return the parts of the results of `call.node` that the rank holds, from its parts of the inputs."""
    if (empty := _empty(call)) is not None:
        return empty
    given = iter(inputs)
    args = tuple(_filled(argument, given) for argument in call.node.args)
    kwargs = {name: _filled(argument, given) for name, argument in call.node.kwargs.items()}
    results = _computed(call, args, kwargs)
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _empty(call: Call) -> Results | None:
    """Return the results where the rank has no element of any, which not every operator of PyTorch can make."""
    place, site = call.site.place, call.site
    outputs = list(zip(call.node.outputs, call.step.outputs, strict=True))
    shapes = [place.shape(value.shape, held) for value, held in outputs]
    if not shapes or not all(0 in shape for shape in shapes):
        return None
    types = [getattr(torch, value.dtype) for value, _ in outputs]
    return tuple(torch.empty(shape, dtype=kind, device=site.device) for shape, kind in zip(shapes, types, strict=True))


def _filled(argument: Any, given: Any) -> Any:
    if isinstance(argument, Ref):
        return next(given)
    if isinstance(argument, tuple):
        return [_filled(part, given) for part in argument]
    return getattr(torch, argument) if isinstance(argument, str) and argument in ITEM_BYTES else argument


@cache
def _overload(op: str) -> Callable[..., Any]:
    """Return what computes `op`. Where an operand may be a tensor or a number, PyTorch chooses the overload."""
    space, _, rest = op.rpartition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space or "aten"), name)
    return packet if overload == "Tensor" else getattr(packet, overload or "default")


@cache
def _takes_device(op: str) -> bool:
    """Return whether an operator is told on which device its result is to lie."""
    schema = getattr(_overload(op), "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def _computed(call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run the operator. Raises `SpecError` with its name and shapes where PyTorch cannot."""
    node = call.node
    try:
        if special := SPECIAL.get(node.op):
            return special(call, *args, **kwargs)
        if _takes_device(node.op):
            kwargs["device"] = call.site.device
        return _overload(node.op)(*args, **kwargs)
    except dist.DistError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError) as error:
        read = ", ".join(
            f"{x.dtype} {tuple(x.shape)}".removeprefix("torch.") for x in _tensors((*args, kwargs.values()))
        )
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        place = f"the operator {node.op} ({node.name}), rule {call.step.rule}, on rank {call.site.place.rank}"
        raise bad(
            place, f"failed on {read or 'no tensors'}: {said}", "`debug=True` shows PyTorch's traceback"
        ) from error


def _tensors(parts: Iterable[Any]) -> Iterator[Tensor]:
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, Iterable) and not isinstance(part, str):
            yield from _tensors(part)


def _view(call: Call, x: Tensor, shape: Any) -> Tensor:
    return x.reshape(call.shape)


def _expand(call: Call, x: Tensor, shape: Any) -> Tensor:
    return x.expand(call.shape)


def _full(call: Call, shape: Any, value: float, dtype: torch.dtype) -> Tensor:
    if isinstance(call.output, Partial) and call.site.place.rank:
        value = 0
    return torch.full(call.shape, value, dtype=dtype, device=call.site.device)


def _arange(call: Call, start: float, end: float, step: float, dtype: torch.dtype) -> Tensor:
    whole = torch.arange(start, end, step, dtype=dtype, device=call.site.device)
    return cut(whole, call.output, call.site.place)


def _constant(call: Call, values: Any, dtype: torch.dtype) -> Tensor:
    whole = torch.tensor(values, dtype=dtype, device=call.site.device).view(call.node.outputs[0].shape)
    return cut(whole, call.output, call.site.place)


def _slice(call: Call, x: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
    start, end = _scaled(start, end, call.inputs[0].shape[dim], x.shape[dim])
    return aten.slice.Tensor(x, dim, start, end, step)


def _split(call: Call, x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> Results:
    place = call.site.place
    pairs = zip(call.node.outputs, call.step.outputs, strict=True)
    return x.split([place.shape(value.shape, held)[dim] for value, held in pairs], dim)


def _slice_backward(call: Call, x: Tensor, sizes: Any, dim: int, start: int, end: int, step: int) -> Tensor:
    start, end = _scaled(start, end, sizes[dim], call.shape[dim])
    return aten.slice_backward.default(x, call.shape, dim, start, end, step)


def _scaled(start: int, end: int, size: int, held: int) -> tuple[int, int]:
    """Return bounds in a dimension of which the rank holds as much of every stretch between them."""
    return start * held // size, end * held // size


def _embedding(call: Call, weight: Tensor, index: Tensor, *rest: Any) -> Tensor:
    held = call.step.inputs[0]
    if not (isinstance(held, Sharded) and held.dim == 0):
        return aten.embedding.default(weight, index)
    index = index - call.first(held, call.inputs[0].shape[0], 0)
    inside = (index >= 0) & (index < weight.shape[0])
    if weight.shape[0] == 0:
        return weight.new_zeros(call.shape)
    return aten.embedding.default(weight, torch.where(inside, index, 0)) * inside.unsqueeze(-1).to(weight.dtype)


def _embedding_backward(call: Call, gradient: Tensor, index: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    if scale:  # by how often each row is read, which one part of the index does not know
        return aten.embedding_dense_backward.default(gradient, index, rows, padding, scale)
    first, held = call.first(call.output, rows, 0), call.shape[0]
    local = index.flatten() - first
    inside = (local >= 0) & (local < held) & (index.flatten() != padding)
    result = gradient.new_zeros(held, gradient.shape[-1])
    return result.index_add_(0, local[inside], gradient.reshape(-1, gradient.shape[-1])[inside])


def _convolution(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    *rest, transposed, padding, _groups = settings
    if 0 in (*x.shape, *weight.shape):
        empty = x.new_zeros(call.shape)
        return empty if bias is None else empty + bias.view(-1, *[1] * (empty.ndim - 2))
    channels = call.shape[1] if transposed else x.shape[1]
    return aten.convolution.default(x, weight, bias, *rest, transposed, padding, channels // weight.shape[1])


def _convolution_backward(call: Call, gradient: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> Results:
    _sizes, *rest, transposed, padding, _groups, wanted = settings
    shapes = (x.shape, weight.shape, gradient.shape[1:2])
    if 0 in (*x.shape, *weight.shape, *gradient.shape):
        zeros = [x.new_zeros(shape) for shape in shapes]
        return (*zeros[:2], gradient.sum([0, *range(2, gradient.ndim)]))
    groups = (gradient if transposed else x).shape[1] // weight.shape[1]
    settings = (*rest, transposed, padding, groups, wanted)
    return _present(x, aten.convolution_backward.default(gradient, x, weight, list(shapes[2]), *settings))


def _group_norm(call: Call, x: Tensor, weight: Any, bias: Any, *sizes: Any) -> Results:
    return aten.native_group_norm.default(x.contiguous(), weight, bias, *_groups_here(call, x, sizes[:4]), sizes[4])


def _group_norm_backward(call: Call, gradient: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, *rest: Any) -> Results:
    weight, *sizes, wanted = rest
    here = _groups_here(call, x, sizes)
    x, gradient = x.contiguous(), gradient.contiguous()
    return _present(x, aten.native_group_norm_backward.default(gradient, x, mean, rstd, weight, *here, wanted))


def _present(x: Tensor, results: Iterable[Tensor | None]) -> Results:
    """Return the results, empty tensors for those that were not asked for."""
    return tuple(x.new_zeros(0) if result is None else result for result in results)


def _groups_here(call: Call, x: Tensor, sizes: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the images, channels, elements of a channel, and groups that this rank has."""
    _, channels, elements, groups = sizes
    return x.shape[0], x.shape[1], elements, groups * x.shape[1] // channels


def _resized_backward(call: Call, gradient: Tensor, size: Any, _: Any, *rest: Any) -> Tensor:
    return _overload(call.node.op)(gradient, size, call.shape, *rest)


def _dropout(call: Call, x: Tensor, chance: float, number: int) -> Tensor:
    return kernels.dropout(x, chance, call.draw(number, call.inputs[0].shape, call.step.inputs[0]))


def _attention(call: Call, *args: Any) -> Results:
    return kernels.attention(*args[:-1], draw=call.draw(args[-1], *_weights(call, 0)))


def _attention_backward(call: Call, *args: Any) -> Results:
    return kernels.attention_backward(*args[:-1], draw=call.draw(args[-1], *_weights(call, 1)))


def _weights(call: Call, query: int) -> tuple[tuple[int, ...], Property]:
    """Return the global shape of the weights of attention, and how they are sharded: as the queries are."""
    return (*call.inputs[query].shape[:3], call.inputs[query + 1].shape[2]), call.step.inputs[query]


def _cross_entropy(call: Call, logits: Tensor, target: Tensor, ignore: int) -> Results:
    held = call.step.inputs[0]
    if not (isinstance(held, Sharded) and held.dim == 1):
        return kernels.cross_entropy(logits, target, ignore)
    fabric = call.site.fabric
    padded = torch.cat([logits, logits.new_full((logits.shape[0], 1), -torch.inf)], 1)
    largest = fabric.all_reduce(padded.amax(1), largest=True)()
    logsumexp = largest + torch.log(fabric.all_reduce(torch.exp(logits - largest.unsqueeze(1)).sum(1))())
    index = target - call.first(held, call.inputs[0].shape[1], 1)
    inside = (index >= 0) & (index < logits.shape[1]) & (target != ignore)
    index = torch.where(inside, index, logits.shape[1])
    chosen = torch.where(inside, padded.gather(1, index.unsqueeze(1)).squeeze(1), 0.0)
    chosen = fabric.all_reduce(chosen)()
    return torch.where(target != ignore, logsumexp - chosen, 0.0), logsumexp


def _cross_entropy_backward(call: Call, *args: Any) -> Tensor:
    first = call.first(call.step.inputs[1], call.inputs[1].shape[1], 1)
    return kernels.cross_entropy_backward(*args, first=first)


def _grouped_mm(call: Call, x: Tensor, weight: Tensor, expert: Tensor) -> Tensor:
    return kernels.grouped_mm(x, weight, expert, call.first(call.step.inputs[1], call.inputs[1].shape[0], 0))


def _grouped_mm_weight(call: Call, x: Tensor, gradient: Tensor, expert: Tensor, experts: int) -> Tensor:
    return kernels.grouped_mm_weight(x, gradient, expert, call.shape[0], call.first(call.output, experts, 0))


SPECIAL: dict[str, Callable[..., Any]] = {
    "view": _view,
    "expand": _expand,
    "full": _full,
    "arange": _arange,
    "constant": _constant,
    "slice.Tensor": _slice,
    "split.Tensor": _split,
    "split_with_sizes": _split,
    "slice_backward": _slice_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    **dict.fromkeys((f"upsample_{kind}_backward" for kind in RESIZED), _resized_backward),
    "dropout": _dropout,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "grouped_mm": _grouped_mm,
    "grouped_mm_weight": _grouped_mm_weight,
}
