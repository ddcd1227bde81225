"""What a layer keeps for its backward pass, counted under fake tensors and a process group that sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from tests.runtime.samples import tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.runtime.model.blocks import layer_forward
from shardwright.runtime.model.context import WHOLE
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.parallel import ALONE, TensorGroup
from shardwright.runtime.model.parameters import unit_parameters
from shardwright.spec.model import Model

BATCH, LENGTH = 2, 64


@contextmanager
def pretended(ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def saved(model: Model, tp: int, *, sequence: bool) -> list[torch.Tensor]:
    """Return the tensors that the first layer of a model saves on rank 0 of `tp`, each storage once, weights left out."""
    found: dict[int, torch.Tensor] = {}
    with pretended(tp), FakeTensorMode():
        tensor = TensorGroup(rank=0, size=tp, group=dist.group.WORLD if tp > 1 else None, sequence=sequence and tp > 1)
        weights = {
            p.name.removeprefix("layers.0."): torch.nn.Parameter(torch.empty(p.local_shape(0, 0, tp)))
            for p in unit_parameters(model, 1, model.vocab)
        }
        own = {weight.untyped_storage()._cdata for weight in weights.values()}

        def pack(value: torch.Tensor) -> torch.Tensor:
            place = value.untyped_storage()._cdata
            if place not in own:
                found[place] = value
            return value

        x = torch.empty(BATCH, LENGTH // (tp if tensor.sharded else 1), model.hidden, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            layer_forward(
                x, weights, model.layers[0], model, Details(), None, tensor, ALONE, WHOLE, recompute_attention=False
            )
    return list(found.values())


@pytest.mark.parametrize(("family", "tp"), [("llama", 2), ("llama", 4), ("gpt2", 2), ("qwen3", 4)])
def test_sequence_parallelism_keeps_this_ranks_positions_alone(family: str, tp: int) -> None:
    model = tiny_model(2, family=family, hidden=32, heads=4, kv_heads=4)
    whole, part = (saved(model, tp, sequence=sequence) for sequence in (False, True))
    inputs = (BATCH, LENGTH, model.hidden)
    assert any(tuple(value.shape) == inputs for value in whole), "the count sees what is kept"
    assert not any(tuple(value.shape) == inputs for value in part)
    outside = [value for value in part if tuple(value.shape) == (BATCH, LENGTH // tp, model.hidden)]
    assert len(outside) >= 4  # inputs of both norms, and what attention and feed-forward gather
