"""What layers and the loss keep for their backward pass, under fake tensors and process groups that send nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests import nightly as night
from tests.nightly import nightly
from tests.runtime.one_rank import (
    LENGTH,
    RECOMPUTED,
    TOP_K,
    Setting,
    chunk_of,
    evenly,
    input_of,
    length_for,
    pretended,
    shard_of,
    wide,
)
from tests.runtime.samples import tiny_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.nn.attention import bias
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.cost.memory.ends import head_bytes
from shardwright.cost.memory.facts import memory_facts, trial
from shardwright.runtime.model.chunk import forward
from shardwright.runtime.model.loss import summed_loss
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.spec.forward_pass import PLAIN
from shardwright.spec.layer import Moe, SharedBlock
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, ShortConvolution
from shardwright.spec.model import Model

MIXERS = {
    "Mamba": Mamba(inner=4096, state=16, rank=128, width=4),
    "normed Mamba": Mamba(inner=4096, state=16, rank=128, width=4, normed=True),
    "Mamba-2": Mamba2(heads=64, head_dim=64, groups=8, state=128, width=4),
    "Mamba-2, plain": Mamba2(heads=64, head_dim=64, groups=8, state=128, width=4, gated_norm=False),
    "delta": GatedDelta(key_heads=16, key_dim=128, value_heads=32, value_dim=128, width=4),
    "Kimi delta": GatedDelta(
        key_heads=16, key_dim=128, value_heads=16, value_dim=128, width=4, decay="channel", gate_rank=128
    ),
    "lightning": Lightning(heads=16, head_dim=128),
    "convolution": ShortConvolution(channels=2048, width=3),
}
BRANCHES: dict[str, Any] = {
    "branch_scales": ((1.3, 0.8), (1.2, 0.5)), "key_scale": 0.3, "gate_scale": 0.7,
    "stream_scales": ((1.0, 1.0), (1.0, 1.0), (1.0, 0.6)),
}  # fmt: skip
SPLITS = ((1, False), *product((2, 4, 8), (False, True)))


def sharing() -> list[Model]:
    """Two layers that share a block, with Mamba of several heads, and with Mamba-2 and what is of low rank."""
    model, models = wide("llama", 32, 32), []
    attention = replace(model.layers[0].self_attention, head_dim=128, value_head_dim=128, doubled=True)
    low_rank = SharedBlock(feed_rank=128, attention_rank=64)
    by_head = Mamba(inner=4096, state=16, rank=128, width=4, heads=8)
    for mixer, block in ((by_head, SharedBlock()), (MIXERS["Mamba-2, plain"], low_rank)):
        layer = replace(model.layers[0], attention=attention, mixer=mixer, norms=4, shared=block)
        models.append(replace(model, layers=(layer, layer), shared_blocks=1, position="none"))
    return models


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
    composed = functional.rms_norm

    def rms_norm(x: torch.Tensor, shape: tuple[int, ...], weight: torch.Tensor | None = None, eps: float = 0.0) -> Any:
        return composed(x, shape, eps=eps) if weight is None else FusedNorm.apply(x, weight, eps)

    monkeypatch.setattr(functional, "rms_norm", rms_norm)
    monkeypatch.setattr(bias, "causal_lower_right", lambda *_: None)
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


def kept(model: Model, how: Setting) -> list[tuple[int, tuple[int, ...]]]:
    """Return bytes and shape of what two layers of a model keep on rank 0, their input included, weights and output
    left out."""
    with pretended(how), FakeTensorMode():
        chunk, source = chunk_of(model, how), input_of(model, how)
        with Made() as made, evenly(how):
            out = forward(chunk, source * 1)
        others = [*chunk.weights.values(), *(chunk.table.full or ()), *(chunk.table.windowed or ()), out]
        left_out = {value.untyped_storage()._cdata for value in others}
        alive = {place: item for place, item in made.found.items() if not item[0].expired()}
        return [(size, shape) for place, (_, size, shape) in alive.items() if place not in left_out]


def priced(model: Model, how: Setting) -> float:
    bytes_of = layer_activation_bytes(model, *shard_of(how))
    whole, core, inputs = (float(part[1][0]) for part in (bytes_of.kept, bytes_of.core, bytes_of.inputs))
    each = {"none": 2 * whole, "selective": 2 * (whole - core), "uniform": 2 * inputs, "block": whole + inputs}
    return each[how.recompute]


def require_priced(model: Model, settings: list[Setting]) -> None:
    """An ordinary run takes one setting in three."""
    for how in settings[:: 1 if night.wanted else night.FEWER]:
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
        ("gpt2", (16, 16)),
        ("qwen3", (16, 4)),
        *nightly([("llama", (16, 16)), ("gpt2", (32, 32)), ("qwen2", (32, 8))]),
    ],
)
def test_dense_layers_keep_what_is_priced(family: str, heads: tuple[int, int], as_on_a_gpu: None) -> None:
    """Within 2 %: 42 configurations of tensor parallelism, some with fewer key-value heads than ranks."""
    require_priced(wide(family, *heads), [Setting(tp=tp, sequence=on, batch=2) for tp, on in SPLITS])


@pytest.mark.parametrize("family", ["llama", *nightly(["gpt2"])])
def test_recomputed_layers_and_parts_of_sequences_keep_what_is_priced(family: str, as_on_a_gpu: None) -> None:
    """Within 2 %: 48 configurations."""
    found = product(SPLITS[:3], (1, 4), RECOMPUTED)
    require_priced(
        wide(family, 32, 8), [Setting(tp=tp, sequence=on, cp=cp, recompute=how) for (tp, on), cp, how in found]
    )


@pytest.mark.parametrize(("shared", "gate"), [(2816, True), *nightly([(0, False), (2816, False)])])
def test_layers_with_experts_keep_what_is_priced(shared: int, gate: bool, as_on_a_gpu: None) -> None:
    """Within 2 %: 45 configurations, experts on one rank or spread over four, cut or whole there."""
    moe = Moe(experts=16, top_k=TOP_K, expert_width=1408, gated=True, shared_width=shared, shared_gate=gate)
    cut = [Setting(tp=tp, sequence=on, ep=ep, etp=tp) for (tp, on), ep in product(SPLITS[:3], (1, 4))]
    places = [*cut, Setting(tp=2, sequence=True, ep=4)]
    both = [replace(place, cp=2, recompute=how) for place, how in product(places[-2:], RECOMPUTED)]
    require_priced(wide("qwen2", 16, 4, moe), places + both)


@pytest.mark.parametrize("family", ["experts", *nightly(["llama", "gpt2", "qwen3"])])
def test_layers_in_fp8_keep_what_is_priced(family: str, as_on_a_gpu: None) -> None:
    """Within 2 %: 48 configurations, with routed experts in 16 bits."""
    moe = Moe(experts=16, top_k=TOP_K, expert_width=1408, gated=True, shared_width=2816, shared_gate=True)
    model = wide("qwen2", 16, 4, moe) if family == "experts" else wide(family, 32, 8)
    found = product(SPLITS[:3], (1, 2), ("none", "selective"))
    require_priced(
        model,
        [Setting(tp=tp, sequence=on, etp=tp, cp=cp, recompute=how, precision="fp8") for (tp, on), cp, how in found],
    )


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_keep_what_is_priced(name: str, as_on_a_gpu: None) -> None:
    """Within 3 %, in layers without a feed-forward block, which would hide it."""
    model = wide("llama", 32, 8)
    layer = replace(model.layers[0], attention=None, mlp=None, mixer=MIXERS[name], norms=1)
    model = replace(model, layers=(layer, layer))
    length = length_for(MIXERS[name])
    for how in [Setting(tp=tp, sequence=on, batch=2, length=length) for tp, on in (*SPLITS[:3], *SPLITS[-2:])]:
        assert sum(size for size, _ in kept(model, how)) == pytest.approx(priced(model, how), rel=0.03), how


def test_attention_and_a_mixer_side_by_side_keep_what_is_priced(as_on_a_gpu: None) -> None:
    """Within 2 %; where neither is scaled they share an input that the account counts for each."""
    model = wide("llama", 32, 8)
    layer = replace(model.layers[0], mixer=MIXERS["Mamba-2, plain"])
    computed = replace(PLAIN, mixer_scales=(0.9, 0.6, 0.7, 0.8, 0.4), **BRANCHES)
    model = replace(model, layers=(layer, layer), forward_pass=computed)
    require_priced(model, [Setting(tp=tp, sequence=on, batch=2) for tp, on in SPLITS])


@pytest.mark.parametrize("model", sharing(), ids=["a block alone", "with what is of low rank"])
def test_blocks_that_layers_share_keep_what_is_priced(model: Model, as_on_a_gpu: None) -> None:
    length = length_for(model.layers[0].mixer)
    require_priced(model, [Setting(tp=tp, sequence=on, batch=2, length=length) for tp, on in SPLITS])
    again = [Setting(tp=2, sequence=True, length=length, recompute=how) for how in ("selective", "uniform")]
    require_priced(model, again)


@pytest.mark.parametrize(("tp", "on"), SPLITS[:3])
def test_the_loss_keeps_the_logits_that_are_priced(tp: int, on: bool, as_on_a_gpu: None) -> None:
    """Once, in the precision of products; beside them its own input. A loss is of eight rows at a time."""
    how, model = Setting(tp=tp, sequence=on, batch=2, length=128), replace(wide("llama", 32, 8), vocab=32_000)
    with pretended(how), FakeTensorMode():
        tensor = TensorGroup(size=tp, group=dist.group.WORLD, sequence=on)
        x, weight = input_of(model, how), torch.empty(model.vocab // tp, model.hidden, requires_grad=True)
        with Made() as made:
            loss = summed_loss(x * 1, weight, torch.empty(2, how.length, dtype=torch.int64), model.vocab, tensor)
        left_out = {value.untyped_storage()._cdata for value in (weight, loss)}
        alive = {place: size for place, (held, size, _) in made.found.items() if not held.expired()}
    shard, job = shard_of(how)
    with trial(
        {job.framework: replace(memory_facts(job.framework), chunk_elements=0.0)}
    ):  # what is made beside is gone again
        logits = head_bytes(model, job, shard.micro_batch, shard.cp, shard.tp)[0]
    assert sum(size for place, size in alive.items() if place not in left_out) == logits + x.nbytes
