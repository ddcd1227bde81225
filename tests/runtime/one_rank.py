"""Two layers as rank 0 holds them: fake tensors, and process groups that send nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.samples import tiny_model
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.cost.compute.operators import Shard
from shardwright.plans.plan import Recompute
from shardwright.runtime.model.chunk import Chunk, table_of
from shardwright.runtime.model.context import ContextGroup, positions_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup
from shardwright.runtime.model.parameters import ModelParameter, unit_parameters
from shardwright.runtime.model.products import FP8, PLAIN
from shardwright.runtime.model.scans import SELECTIVE_CHUNK
from shardwright.runtime.state.buckets import matrix_of
from shardwright.spec.job import Job, Precision
from shardwright.spec.layer import Mlp, Moe
from shardwright.spec.mixers import GatedDelta, Mamba, Mixer
from shardwright.spec.model import Model

LENGTH, TOP_K = 1024, 2
RECOMPUTED = {
    "none": Recompute(),
    "selective": Recompute(granularity="selective"),
    "uniform": Recompute(granularity="full", method="uniform", layers=1),
    "block": Recompute(granularity="full", method="block", layers=1),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How rank 0 holds two layers."""

    tp: int = 1
    sequence: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1
    batch: int = 1
    length: int = LENGTH
    recompute: str = "none"
    precision: Precision = "bf16"


@contextmanager
def pretended(how: Setting) -> Iterator[None]:
    """Be rank 0 of as many as share the layers."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=max(how.tp * how.cp, how.ep))
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def evenly(how: Setting) -> Iterator[None]:
    """Say, where the host reads how many rows go where, that all ranks get alike: a fake tensor has no values."""
    rows = how.batch * how.length // how.cp // (how.tp if how.etp < how.tp else 1) * TOP_K
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensor, "tolist", lambda _: [[rows // how.ep] * how.ep] * 2)
        yield


def chunk_of(model: Model, how: Setting) -> Chunk:
    """Return two layers of a model on rank 0."""
    group: Any = dist.group.WORLD
    positions = positions_of(0, how.cp, how.length)
    return Chunk(
        units=(1, 2), weights=weights_of(model, how), model=model, details=Details(),
        tensor=TensorGroup(size=how.tp, group=group, sequence=how.sequence and how.tp > 1),
        recompute=RECOMPUTED[how.recompute], positions=positions,
        table=table_of(model, Details(), positions, torch.get_default_dtype()),
        experts=ExpertGroup(size=how.ep, group=group, local=how.etp < how.tp),
        context=ContextGroup(parts=tuple(range(how.cp)), group=group),
        products=FP8 if how.precision == "fp8" else PLAIN,
    )  # fmt: skip


def input_of(model: Model, how: Setting) -> torch.Tensor:
    """Return what comes into the layers, of this rank's positions."""
    length = how.length // how.cp // (how.tp if how.sequence else 1)
    return torch.empty(how.batch, length, model.hidden, requires_grad=True)


def weights_of(model: Model, how: Setting) -> Mapping[str, torch.Tensor]:
    """Return the weights of two layers, a matrix of all experts of the rank as one."""
    parameters: dict[str, list[ModelParameter]] = {}
    units = (0, 1, 2) if model.shared_blocks else (1, 2)  # what layers share stands with the embedding
    for parameter in (p for unit in units for p in unit_parameters(model, unit, model.vocab)):
        parameters.setdefault(matrix_of(parameter), []).append(parameter)
    found = {}
    for first, *others in parameters.values():
        shape = first.local_shape(0, 0, how.tp if first.expert is None else how.etp)
        many = () if first.expert is None else ((1 + len(others)) // how.ep,)
        found[first.name] = torch.nn.Parameter(torch.empty(*many, *shape))
    return found


def shard_of(how: Setting) -> tuple[Shard, Job]:
    """Return the same for the cost model."""
    column = {"tp": how.tp, "cp": how.cp, "ep": how.ep, "etp": how.etp, "micro_batch": how.batch}
    switches = {"sequence_parallel": how.sequence, "flash": True, "overlap_tp": False}
    shard = Shard(**{name: np.array([value]) for name, value in (column | switches).items()})
    return shard, Job(global_batch=8, seq_len=how.length, precision=how.precision, framework="train")


def length_for(mixer: Mixer | None) -> int:
    """Return of how many positions two layers are with a mixer: of four chunks, where a scan has many operators for each
    64 positions."""
    return 4 * SELECTIVE_CHUNK if isinstance(mixer, (Mamba, GatedDelta)) else LENGTH


def wide(family: str, heads: int, kv_heads: int, moe: Moe | None = None) -> Model:
    """A model of the sizes of a real one: under fake tensors they cost nothing."""
    model = tiny_model(2, family=family, hidden=2048, heads=heads, kv_heads=kv_heads)
    if family == "gpt2":
        return model
    layer = replace(model.layers[0], mlp=None if moe else Mlp(width=5632, gated=True), moe=moe)
    return replace(model, layers=(layer, layer))
