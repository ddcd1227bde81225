"""Whether a program does what its module does: one step on threads of this machine, against PyTorch's own, run eagerly
with dropout drawn by position.

The ranks are as many as the program has, each with its share of units, on the CPU. Loss, every gradient and every new
buffer must be those of the untouched module, up to rounding.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardwright.errors import bad
from shardwright.records import record
from shardwright.spmd.document import Synthesized
from shardwright.spmd.kernels import Draw, dropout
from shardwright.spmd.shards import RankPlace, cut
from shardwright.spmd.task import Task
from shardwright.spmd.trace import Loss, user_code
from shardwright.spmd.training import SpmdStep, whole_state
from shardwright.synthesis.graph import REPLICATED, Graph, Property

SPREAD = 0.02  # of what is drawn where a parameter starts constant, the usual spread of weights
ROUNDINGS = 3.0  # the difference that is rounding, in square roots of the precision: 1e-3 in fp32; chosen, 1 to 10
FLOOR = 1e-6  # of the norm of all gradients: what is left of one that is zero but for rounding; chosen, 1e-7 to 1e-5
TIMES = 10.0  # as far from the step in fp64 as eager is: then eager rounds as badly; chosen, 3 to 30
Results = dict[str, tuple[Tensor, Property]]
T = TypeVar("T")


@record
class Difference:
    """How far what a rank has of a result is from its part of eager's, as norms: of the difference, of the whole."""

    name: str
    rank: int
    distance: float
    norm: float

    def __str__(self) -> str:
        kind, _, name = self.name.partition(" ")
        subject = f"the gradient of {name}" if kind == "gradient" else f"the {self.name}"
        part = f"{self.distance / self.norm:.2g} of its norm" if self.norm else f"{self.distance:.2g} from zero"
        return f"{subject} differs from eager's by {part} on rank {self.rank}"


def require_equal(synthesized: Synthesized, task: Task, what: str = "the task") -> None:
    """Raise `SpecError` unless one step of the program gives what `task` gives in eager mode: the loss, every gradient
    and every new buffer. `what` names the task in the message.

    Parameters that start constant, as biases and norms do, are drawn: gradients that pass through zeros would be equal
    whatever the program does. A norm of a difference is rounding up to `ROUNDINGS` square roots of the precision, or if
    eager is about as far from the step in fp64.
    """
    module = _module(task)
    with user_code(f"{what} fails in eager mode", what):
        batch = {name: tensor.cpu() for name, tensor in task.batch_of(0).items()}
        expected = eager(module, batch, task.loss)
    if not torch.isfinite(expected["loss"]):
        raise bad(what, f"has the loss {expected['loss'].item()} in eager mode", "give batches that can be trained on")
    state = {name: tensor.detach() for name, tensor in whole_state(module).items()}
    ranks = on_ranks(synthesized.program.ranks, lambda fabric: _results(synthesized, fabric, state, batch))
    floor = FLOOR * sum(float(x.double().square().sum()) for x in expected.values()) ** 0.5
    large = [
        difference
        for difference in _differences(ranks, expected, synthesized)
        if not difference.distance <= _rounding(ranks[0][difference.name][0]) * difference.norm + floor
    ]
    if large and any(not torch.equal(x, expected[name]) for name, x in eager(module, batch, task.loss).items()):
        message = "does not give the same in eager mode when it is run again: it draws numbers, and not by dropout"
        raise bad(what, message, "put what is drawn into the batch; `check=False` writes the program all the same")
    wrong = _beyond_rounding(large, ranks, synthesized, module, batch, task, expected) if large else []
    if wrong:
        more = f" ({len(wrong) - 1} more results differ)" if len(wrong) > 1 else ""
        raise bad(what, f"{wrong[0]}{more}", "nothing is written; `check=False` writes the program all the same")


def require_elementwise(task: Task, graph: Graph, device: torch.device) -> None:
    """Raise `SpecError` for an optimizer that does not update each element by itself, as those that look at norms or
    factors of a tensor: of a rank's part it would make something else than of the whole."""
    values = graph.values()
    shapes = {name: (6, *(4 for _ in values[ref].shape[1:])) for name, ref in graph.parameters.items()}

    def updated(rows: slice) -> list[Tensor]:
        weights = {}
        for name, shape in shapes.items():
            whole = torch.arange(math.prod(shape), dtype=torch.float32).cos().view(shape)
            weights[name] = nn.Parameter(whole[rows].to(device), requires_grad=name in graph.gradients)
        optimizer = task.optimizer_of(weights.items())
        for step in range(1, 4):
            for weight in weights.values():
                if weight.requires_grad:
                    weight.grad = (weight.detach() * step).sin()
            optimizer.step()
        return [weight.detach() for weight in weights.values()]

    with user_code("the task's `optimizer` fails"):
        whole, first, last = (updated(rows) for rows in (slice(None), slice(2), slice(2, None)))
    for name, both, *parts in zip(shapes, whole, first, last, strict=True):
        if not torch.allclose(both, torch.cat(parts), rtol=1e-4, atol=1e-6):
            message = f"updates {name} otherwise in parts than whole"
            raise bad("the task's optimizer", message, "take one that works element by element, as Adam does")


def _module(task: Task) -> nn.Module:
    """Return the task's module with weights, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = task.module()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                    parameter.add_(torch.randn(parameter.shape).to(parameter.dtype) * SPREAD)
    return module


def _results(
    synthesized: Synthesized, fabric: ThreadFabric, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]
) -> Results:
    """Return what one step leaves on a rank, and how it is distributed."""
    graph = synthesized.graph
    step = SpmdStep(graph, synthesized.program, names=synthesized.names, fabric=fabric)
    step.load(state)
    loss = step(batch)
    parameters, buffers = dict(step.named_parameters()), dict(step.named_buffers())
    left: Results = {"loss": (loss, REPLICATED)}
    for name in graph.gradients:
        gradient = parameters[name].grad
        assert gradient is not None, "a step leaves every gradient"
        left[f"gradient {name}"] = gradient, step.held(graph.parameters[name])
    for name in graph.buffer_updates:
        left[f"buffer {name}"] = buffers[name], step.held(graph.buffers[name])
    return left


def _differences(
    ranks: Sequence[Results], expected: Mapping[str, Tensor], synthesized: Synthesized
) -> list[Difference]:
    most = []
    for name, (first, _) in ranks[0].items():
        whole = expected[name].double() if name in expected else None
        rows = []
        for rank, results in enumerate(ranks):
            part, held = results[name]
            place = RankPlace(rank=rank, sizes=synthesized.program.sizes)
            wanted = torch.zeros_like(first) if whole is None else cut(whole, held, place)
            distance = float((part.double() - wanted).norm())
            norm = 0.0 if whole is None else float(whole.norm())
            rows.append(Difference(name=name, rank=rank, distance=distance, norm=norm))
        most.append(max(rows, key=lambda row: row.distance))
    return most


def _rounding(x: Tensor) -> float:
    return ROUNDINGS * torch.finfo(x.dtype).eps ** 0.5 if x.is_floating_point() else 0.0


def _beyond_rounding(
    large: Sequence[Difference], ranks: Sequence[Results], synthesized: Synthesized, module: nn.Module,
    batch: Mapping[str, Tensor], task: Task, expected: Mapping[str, Tensor],
) -> list[Difference]:  # fmt: skip
    """Return the differences that eager's own rounding, seen from a step in fp64, does not explain, largest first."""
    try:
        doubled = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        exact = eager(copy.deepcopy(module).double(), doubled, task.loss)
    except Exception:  # a module that mixes types by name: then there is no such step
        exact = dict(expected)
    names = {difference.name for difference in large}
    off = {
        difference.name: difference.distance
        for difference in _differences(ranks, exact, synthesized)
        if difference.name in names
    }
    rounded = {name: float((exact[name].double() - expected[name].double()).norm()) for name in names & exact.keys()}
    wrong = [
        difference for difference in large if not off[difference.name] <= TIMES * rounded.get(difference.name, 0.0)
    ]
    return sorted(wrong, key=lambda difference: -difference.distance / max(difference.norm, 1e-30))


DROPOUT, ATTENTION = nn.functional.dropout, nn.functional.scaled_dot_product_attention


class Masked(TorchFunctionMode):
    """Draws every dropout by position, in the order of the calls, as a program does in the step of this `seed`: those
    in PyTorch's own functions too, such as `multi_head_attention_forward`, inside which no mode is told of calls."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.numbers = seed, itertools.count()

    def __enter__(self) -> Masked:
        functions: Any = nn.functional
        functions.dropout, functions.scaled_dot_product_attention = self._dropout, self._any_attention
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        functions: Any = nn.functional
        functions.dropout, functions.scaled_dot_product_attention = DROPOUT, ATTENTION
        super().__exit__(*raised)

    def _drop(self, x: Tensor, chance: float) -> Tensor:
        return x * dropout(torch.ones_like(x), chance, Draw(number=next(self.numbers), seed=self.seed))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is DROPOUT:
            return self._dropout(*args, **kwargs)
        if function is ATTENTION:
            return self._any_attention(*args, **kwargs)
        return function(*args, **kwargs)

    def _any_attention(self, *args: Any, **kwargs: Any) -> Tensor:
        chance = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return self._attention(*args, **kwargs) if chance else ATTENTION(*args, **kwargs)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return self._drop(input, p) if training and p else input

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            added = (
                torch.zeros_like(scores).masked_fill(~attn_mask, -torch.inf)
                if attn_mask.dtype == torch.bool
                else attn_mask
            )
            scores = scores + added
        return self._drop(scores.softmax(-1), dropout_p) @ v


def eager(module: nn.Module, batch: Mapping[str, Tensor], loss: Loss, seed: int = 0) -> dict[str, Tensor]:
    """Return loss, gradients and new buffers of one step, by the names that a program leaves them under: "loss",
    "gradient NAME", "buffer NAME". The module is left as it was, but for its gradients."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.zero_grad()
    with Masked(seed):
        value = loss(module, batch)
    value.backward()
    left = {"loss": value.detach()}
    left |= {f"gradient {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    left |= {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return left


class Board:
    """Where ranks that are threads lay down what the others read."""

    def __init__(self, ranks: int) -> None:
        self.slots: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks)


class ThreadFabric:
    """A `RankFabric` whose ranks are threads; sums are taken in the order of the ranks."""

    def __init__(self, rank: int, ranks: int, board: Board) -> None:
        self.rank, self.ranks, self._board = rank, ranks, board

    def _exchange(self, mine: T) -> list[T]:
        self._board.slots[self.rank] = mine
        self._board.barrier.wait()
        everything = list(self._board.slots)
        self._board.barrier.wait()
        return everything

    def all_reduce(self, x: Tensor, *, largest: bool = False, hierarchical: bool = False) -> Callable[[], Tensor]:
        first, *others = self._exchange(x)
        result = first.clone()
        for part in others:
            result = torch.maximum(result, part) if largest else result.add_(part)
        return lambda: result

    def all_gather(self, part: Tensor, rows: Sequence[int], *, padded: bool) -> Callable[[], Tensor]:
        parts = self._exchange(part)
        assert [x.shape[0] for x in parts] == list(rows)
        return lambda: torch.cat(parts)

    def reduce_scatter(self, whole: Tensor, rows: Sequence[int], *, padded: bool) -> Callable[[], Tensor]:
        first, *others = [sent.split(list(rows))[self.rank] for sent in self._exchange(whole)]
        total = first.clone()
        for part in others:
            total.add_(part)
        return lambda: total

    def all_to_all(self, parts: Sequence[Tensor], counts: Sequence[int]) -> Callable[[], Tensor]:
        coming = [sent[self.rank] for sent in self._exchange(list(parts))]
        assert [x.numel() for x in coming] == list(counts)
        return lambda: torch.cat(coming)


def on_ranks(ranks: int, run: Callable[[ThreadFabric], T]) -> list[T]:
    """Return what `run` returns on each of `ranks` ranks; the first failure is raised."""
    board = Board(ranks)

    def guarded(rank: int) -> T:
        try:
            return run(ThreadFabric(rank, ranks, board))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(ranks)]
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
