"""What trains a program of a graph that ships: weights for its parameters, batches of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardwright.errors import bad
from shardwright.spmd.document import Synthesized
from shardwright.spmd.task import Task
from shardwright.synthesis.graph import Graph, Value
from shardwright.synthesis.models.transformers import ANGLES

Rows = Callable[[int, int], NDArray[np.int64]]
"""From the number of the first sample and how many are wanted to their tokens, [samples, positions + 1]."""
SPREAD = 0.02  # of initial weights: GPT-2's and Llama's initializer_range
ROTARY_BASE = 10_000.0  # Su et al., arXiv 2104.09864


def batch_shape(graph: Graph) -> tuple[int, int, int]:
    """Return rows, positions and vocabulary of a language model's graph. Raises `SpecError` where it is none."""
    values = _values(graph)
    shape = values["tokens"].shape if "tokens" in graph.inputs else ()
    if len(shape) != 2 or graph.inputs.keys() != {"tokens", "labels"} or "embedding.weight" not in graph.parameters:
        raise bad("the program", "is of a module of your own", "name its task: MODULE:FACTORY")
    return shape[0], shape[1], values["embedding.weight"].shape[0]


def described_task(found: Synthesized, rows: Rows) -> Task:
    """Return the training of a language model's graph from scratch: AdamW without decay of vectors, on samples of
    `rows` in their order."""
    values = _values(found.graph)
    batch, positions, _ = batch_shape(found.graph)

    def batches(step: int) -> dict[str, Tensor]:
        tokens = torch.from_numpy(rows(step * batch, batch))
        return {"tokens": tokens[:, :positions].contiguous(), "labels": tokens[:, 1:].flatten()}

    return Task(
        build=lambda: _leaves(found.graph, values),
        batch={name: torch.empty(values[name].shape, dtype=torch.int64) for name in found.graph.inputs},
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
