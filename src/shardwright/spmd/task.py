"""What a user wants to train: a module, a batch, a loss, and where batches and the optimizer come from; and what trains
a program of a graph that ships: weights for its parameters, batches of tokens.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shardwright.errors import SpecError, bad
from shardwright.records import record
from shardwright.spmd.document import Synthesized
from shardwright.spmd.trace import Loss, user_code
from shardwright.synthesis.graph import Graph, Value
from shardwright.synthesis.models.transformers import ANGLES

# From the number of the first sample and how many are wanted to their tokens, [samples, positions + 1].
Rows = Callable[[int, int], NDArray[np.int64]]
SPREAD = 0.02  # of initial weights: GPT-2's and Llama's initializer_range
ROTARY_BASE = 10_000.0  # Su et al., arXiv 2104.09864


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@record(slots=False)
class Task:
    """A training run, as `shardwright spmd` is given it.

    `build` makes the module; planning calls it on the device "meta", where it takes no memory. `batch` has the shapes
    of every batch, all ranks' rows together; `loss(module, batch)` returns a scalar. `batches(step)` returns the batch
    of a step (`batch` itself, if not given), `optimizer(parameters)` any optimizer that works element by element.
    `small()` returns the same task with fewer layers, narrower ones and fewer rows, less than a gigabyte of tensors:
    planning runs a step of it, to see that programs for it equal eager mode. `groups(name)` returns the options of the
    optimizer for a parameter, such as `{"weight_decay": 0.0}`: `optimizer` is then given PyTorch's groups.
    """

    build: Callable[[], nn.Module]
    batch: Mapping[str, Tensor]
    loss: Loss
    batches: Callable[[int], Mapping[str, Tensor]] | None = None
    optimizer: Callable[[Any], torch.optim.Optimizer] = _adamw
    small: Callable[[], Task] | None = None
    groups: Callable[[str], Mapping[str, Any]] | None = None

    def batch_of(self, step: int) -> Mapping[str, Tensor]:
        return self.batches(step) if self.batches else self.batch

    def optimizer_of(self, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Return the optimizer of parameters by name, in groups of equal options if there are `groups`."""
        if self.groups is None:
            return self.optimizer([parameter for _, parameter in named])
        groups: list[dict[str, Any]] = []
        for name, parameter in named:
            options = dict(self.groups(name))
            group = next((group for group in groups if {**group, "params": 0} == {**options, "params": 0}), None)
            if group is None:
                groups.append(group := {**options, "params": []})
            group["params"].append(parameter)
        return self.optimizer(groups)

    def module(self) -> nn.Module:
        """Return the module, ready for training. Raises `SpecError` with the line at which `build` fails."""
        with user_code("the task's `build` fails", "the task"):
            built = self.build()
        if not isinstance(built, nn.Module):
            raise bad("the task", f"its `build` returns a {type(built).__name__}", "return a torch.nn.Module")
        if any(type(part).__name__ == "OptimizedModule" for part in built.modules()):
            raise bad("the task", "its `build` compiles the module", "leave out torch.compile: a program is traced")
        for name, tensor in (*built.named_parameters(), *built.named_buffers()):
            if is_lazy(tensor):
                hint = "give its sizes, or have `build` run the module once"
                raise bad("the task", f"its `build` leaves {name} without a shape", hint)
        return built.train()

    def skeleton(self) -> nn.Module:
        """Return the same without memory for its parameters, unless values of tensors are read to build it."""
        try:
            with torch.device("meta"):
                return self.module()
        except SpecError as error:
            if not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
                raise
        return self.module()


def load_task(name: str) -> Task:
    """Return what `module:factory` returns, a `Task`. The current folder is searched first.

    Raises `SpecError` where the module cannot be imported, with the line at which it fails, or the factory is missing,
    fails or returns something else.
    """
    module, _, factory = name.partition(":")
    if not module or not factory:
        raise bad(name, "is not of the form module:factory", "for example train:task, for `def task()` in train.py")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with user_code("cannot be imported", name):
            made: Any = getattr(importlib.import_module(module), factory, None)
    except SpecError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == module:
            raise bad(name, f"cannot be imported: {error.__cause__}", "run it from the folder of the module") from error
        raise
    if made is None:
        raise bad(name, f"{module} has no {factory!r}", "name a function that returns a shardwright.spmd.task.Task")
    with user_code(f"{name} fails", name):
        task = made() if callable(made) else made
    if not isinstance(task, Task):
        raise bad(name, f"returns a {type(task).__name__}", "return a shardwright.spmd.task.Task")
    return task


def batch_shape(graph: Graph) -> tuple[int, int, int]:
    """Return rows, positions and vocabulary of a language model's graph. Raises `SpecError` where it is none."""
    values = _values(graph)
    shape = values["tokens"].shape if "tokens" in graph.inputs else ()
    if len(shape) != 2 or graph.inputs.keys() != {"tokens", "labels"} or "embedding.weight" not in graph.parameters:
        raise bad("the program", "is of a module of your own", "name its task: MODULE:FACTORY")
    return shape[0], shape[1], values["embedding.weight"].shape[0]


def described_task(synthesized: Synthesized, rows: Rows) -> Task:
    """Return the training of a language model's graph from scratch: AdamW without decay of vectors, on samples of
    `rows` in their order."""
    values = _values(synthesized.graph)
    batch, positions, _ = batch_shape(synthesized.graph)

    def batches(step: int) -> dict[str, Tensor]:
        tokens = torch.from_numpy(rows(step * batch, batch))
        return {"tokens": tokens[:, :positions].contiguous(), "labels": tokens[:, 1:].flatten()}

    return Task(
        build=lambda: _leaves(synthesized.graph, values),
        batch={name: torch.empty(values[name].shape, dtype=torch.int64) for name in synthesized.graph.inputs},
        loss=_without_code,
        batches=batches,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95)),
        groups=lambda name: {"weight_decay": 0.1 if len(values[name].shape) > 1 else 0.0},
    )


def _values(graph: Graph) -> dict[str, Value]:
    nodes = graph.by_name()
    tables: tuple[Mapping[str, Any], ...] = (graph.parameters, graph.buffers, graph.inputs)
    return {name: nodes[ref.node].outputs[ref.output] for table in tables for name, ref in table.items()}


def _leaves(graph: Graph, values: Mapping[str, Value]) -> nn.Module:
    """Return a module that holds the parameters and buffers of a graph under their names, and computes nothing."""
    root = nn.Module()
    for name in (*graph.parameters, *graph.buffers):
        *path, last = name.split(".")
        place = root
        for word in path:
            if not hasattr(place, word):
                place.add_module(word, nn.Module())
            place = place.get_submodule(word)
        value = values[name]
        dtype = getattr(torch, value.dtype)
        if name in graph.buffers:
            place.register_buffer(last, _angles(name, value.shape).to(dtype))
        else:
            place.register_parameter(last, nn.Parameter(_initial(last, value.shape).to(dtype)))
    return root


def _initial(last: str, shape: tuple[int, ...]) -> Tensor:
    if len(shape) > 1:
        return torch.randn(shape) * SPREAD
    return torch.zeros(shape) if last == "bias" else torch.ones(shape)


def _angles(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return cosines or sines of rotary positions, [positions, head size]."""
    positions, size = shape
    turns = torch.arange(positions)[:, None] * ROTARY_BASE ** -(torch.arange(0, size, 2) / size)
    both = turns.repeat(1, 2)
    return both.cos() if name == ANGLES[0] else both.sin()


def _without_code(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    raise NotImplementedError("a graph that ships is run as it is, not traced")
