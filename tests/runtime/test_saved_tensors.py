"""What layers keep for their backward pass, counted under fake tensors and process groups that send nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.runtime.samples import tiny_model
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.nn.attention import bias
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwright.cost.compute.operators import Shard
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.plans.plan import Recompute
from shardwright.runtime.model.chunk import Chunk, forward, table_of
from shardwright.runtime.model.context import ContextGroup, positions_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.fp8 import FP8
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup
from shardwright.runtime.model.parameters import Parameter, unit_parameters
from shardwright.runtime.model.products import PLAIN
from shardwright.runtime.state.buckets import matrix_of
from shardwright.spec.job import Job, Precision
from shardwright.spec.model import Mlp, Model, Moe

LENGTH, TOP_K = 1024, 2
RECOMPUTED = {
    "none": Recompute(),
    "selective": Recompute(granularity="selective"),
    "uniform": Recompute(granularity="full", method="uniform", layers=1),
    "block": Recompute(granularity="full", method="block", layers=1),
}
SPLITS = ((1, False), *product((2, 4, 8), (False, True)))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How rank 0 holds two layers."""

    tp: int = 1
    sequence: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1
    batch: int = 1
    recompute: str = "none"
    precision: Precision = "bf16"


class FusedNorm(torch.autograd.Function):
    """RMSNorm that keeps what the fused kernel of a GPU does: its input and a number a row. On CPUs PyTorch composes it
    of operators that keep more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return x * scale.to(x.dtype) * weight


class Made(TorchDispatchMode):
    """Notes the memory that operators make, without keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[StorageWeakRef, int, tuple[int, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in (leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)):
            storage = tensor.untyped_storage()
            self.found[storage._cdata] = (StorageWeakRef(storage), storage.nbytes(), tuple(tensor.shape))
        return out


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fused norms, bf16, and causal attention to a part of the keys by the fused kernel."""
    monkeypatch.setattr(functional, "rms_norm", lambda x, _, weight, epsilon: FusedNorm.apply(x, weight, epsilon))
    monkeypatch.setattr(bias, "causal_lower_right", lambda *_: None)
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def pretended(ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def evenly(tokens: int, ranks: int) -> Iterator[None]:
    """Say, where the host reads how many rows go where, that all ranks get alike: a fake tensor has no values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensor, "tolist", lambda _: [[tokens * TOP_K // ranks] * ranks] * 2)
        yield


def kept(model: Model, how: Setting) -> list[tuple[int, tuple[int, ...]]]:
    """Return bytes and shape of what two layers of a model keep on rank 0, their input included, weights and output
    left out."""
    with pretended(max(how.tp * how.cp, how.ep)), FakeTensorMode():
        group: Any = dist.group.WORLD
        tensor = TensorGroup(size=how.tp, group=group, sequence=how.sequence and how.tp > 1)
        positions = positions_of(0, how.cp, LENGTH)
        chunk = Chunk(
            units=(1, 2), weights=weights_of(model, how), model=model, details=Details(), tensor=tensor,
            recompute=RECOMPUTED[how.recompute], positions=positions,
            table=table_of(model, Details(), positions, torch.get_default_dtype()),
            experts=ExpertGroup(size=how.ep, group=group, local=how.etp < how.tp),
            context=ContextGroup(parts=tuple(range(how.cp)), group=group),
            products=FP8 if how.precision == "fp8" else PLAIN,
        )  # fmt: skip
        length = LENGTH // how.cp // (how.tp if tensor.sharded else 1)
        source = torch.empty(how.batch, length, model.hidden, requires_grad=True)
        seen = how.batch * (length if chunk.experts.local else LENGTH // how.cp)
        with Made() as made, evenly(seen, how.ep):
            out = forward(chunk, source * 1)
        others = [*chunk.weights.values(), *(chunk.table or ()), out]
        left_out = {value.untyped_storage()._cdata for value in others}
        alive = {place: item for place, item in made.found.items() if not item[0].expired()}
        return [(size, shape) for place, (_, size, shape) in alive.items() if place not in left_out]


def weights_of(model: Model, how: Setting) -> Mapping[str, torch.Tensor]:
    """Return the weights of two layers, a matrix of all experts of the rank as one."""
    parameters: dict[str, list[Parameter]] = {}
    for parameter in (p for unit in (1, 2) for p in unit_parameters(model, unit, model.vocab)):
        parameters.setdefault(matrix_of(parameter), []).append(parameter)
    found = {}
    for name, (first, *others) in parameters.items():
        shape = first.local_shape(0, 0, how.tp if first.expert is None else how.etp)
        many = () if first.expert is None else ((1 + len(others)) // how.ep,)
        found[name] = torch.nn.Parameter(torch.empty(*many, *shape))
    return found


def priced(model: Model, how: Setting) -> float:
    column = {"tp": how.tp, "cp": how.cp, "ep": how.ep, "etp": how.etp, "micro_batch": how.batch}
    switches = {"sequence_parallel": how.sequence, "flash": True, "overlap_tp": False}
    shard = Shard(**{name: np.array([value]) for name, value in (column | switches).items()})
    job = Job(global_batch=8, seq_len=LENGTH, precision=how.precision, framework="train")
    bytes_of = layer_activation_bytes(model, shard, job)
    whole, core, inputs = (float(part[1][0]) for part in (bytes_of.kept, bytes_of.core, bytes_of.inputs))
    each = {"none": 2 * whole, "selective": 2 * (whole - core), "uniform": 2 * inputs, "block": whole + inputs}
    return each[how.recompute]


def wide(family: str, heads: int, kv_heads: int, moe: Moe | None = None) -> Model:
    """A model of the sizes of a real one: under fake tensors they cost nothing."""
    model = tiny_model(2, family=family, hidden=2048, heads=heads, kv_heads=kv_heads)
    if family == "gpt2":
        return model
    layer = replace(model.layers[0], mlp=None if moe else Mlp(width=5632, gated=True), moe=moe)
    return replace(model, layers=(layer, layer))


def require_priced(model: Model, settings: list[Setting]) -> None:
    for how in settings:
        found = sum(size for size, _ in kept(model, how))
        assert found == pytest.approx(priced(model, how), rel=0.02), how


@pytest.mark.parametrize(("family", "tp"), [("llama", 2), ("llama", 4), ("gpt2", 2), ("qwen3", 4)])
def test_sequence_parallelism_keeps_this_ranks_positions_alone(family: str, tp: int) -> None:
    model = tiny_model(2, family=family, hidden=32, heads=4, kv_heads=4)
    whole, part = ([shape for _, shape in kept(model, Setting(tp=tp, sequence=on))] for on in (False, True))
    assert (1, LENGTH, model.hidden) in whole, "the count sees what is kept"
    assert (1, LENGTH, model.hidden) not in part
    assert part.count((1, LENGTH // tp, model.hidden)) >= 4  # inputs of norms, and what blocks gather


@pytest.mark.parametrize(
    ("family", "heads"),
    [
        ("llama", (32, 8)),
        ("llama", (16, 16)),
        ("gpt2", (32, 32)),
        ("gpt2", (16, 16)),
        ("qwen2", (32, 8)),
        ("qwen3", (16, 4)),
    ],
)
def test_dense_layers_keep_what_is_priced(family: str, heads: tuple[int, int], as_on_a_gpu: None) -> None:
    """Within 2 %: 42 configurations of tensor parallelism, some with fewer key-value heads than ranks."""
    require_priced(wide(family, *heads), [Setting(tp=tp, sequence=on, batch=2) for tp, on in SPLITS])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_recomputed_layers_and_parts_of_sequences_keep_what_is_priced(family: str, as_on_a_gpu: None) -> None:
    """Within 2 %: 48 configurations."""
    found = product(SPLITS[:3], (1, 4), RECOMPUTED)
    require_priced(
        wide(family, 32, 8), [Setting(tp=tp, sequence=on, cp=cp, recompute=how) for (tp, on), cp, how in found]
    )


@pytest.mark.parametrize(("shared", "gate"), [(0, False), (2816, False), (2816, True)])
def test_layers_with_experts_keep_what_is_priced(shared: int, gate: bool, as_on_a_gpu: None) -> None:
    """Within 2 %: 45 configurations, experts on one rank or spread over four, cut or whole there."""
    moe = Moe(experts=16, top_k=TOP_K, expert_width=1408, gated=True, shared_width=shared, shared_gate=gate)
    cut = [Setting(tp=tp, sequence=on, ep=ep, etp=tp) for (tp, on), ep in product(SPLITS[:3], (1, 4))]
    places = [*cut, Setting(tp=2, sequence=True, ep=4)]
    both = [replace(place, cp=2, recompute=how) for place, how in product(places[-2:], RECOMPUTED)]
    require_priced(wide("qwen2", 16, 4, moe), places + both)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "experts"])
def test_layers_in_fp8_keep_what_is_priced(family: str, as_on_a_gpu: None) -> None:
    """Within 2 %: 48 configurations, with routed experts in 16 bits."""
    moe = Moe(experts=16, top_k=TOP_K, expert_width=1408, gated=True, shared_width=2816, shared_gate=True)
    model = wide("qwen2", 16, 4, moe) if family == "experts" else wide(family, 32, 8)
    found = product(SPLITS[:3], (1, 2), ("none", "selective"))
    require_priced(
        model,
        [Setting(tp=tp, sequence=on, etp=tp, cp=cp, recompute=how, precision="fp8") for (tp, on), cp, how in found],
    )
