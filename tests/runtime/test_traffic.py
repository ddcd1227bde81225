"""What ranks send is what the cost model prices, byte for byte: layers in 32, 16 and 8 bits, experts, and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.cost.samples import BARE
from tests.nightly import nightly
from tests.runtime.equal import ADAM
from tests.runtime.one_rank import TOP_K, Setting, chunk_of, evenly, input_of, length_for, pretended, shard_of, wide
from tests.runtime.recorded import Recorded
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.test_saved_tensors import MIXERS, sharing
from tests.runtime.workers import batch_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import bias
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.layers.seconds import OperatorSeconds, layer_seconds
from shardwright.cost.network.collectives import Fabric
from shardwright.plans.plan import Recompute, Sharding
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.chunk import forward
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.state import buckets
from shardwright.runtime.step.engine import make_engine, train_step
from shardwright.spec.job import Precision
from shardwright.spec.layer import Moe
from shardwright.spec.mixers import Mixer
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
ONE_BYTE_A_SECOND = Fabric(
    domain_gpus=64, intra_bytes_per_second=1.0, intra_latency_seconds=0.0, inter_bytes_per_second=1.0,
    inter_latency_seconds=0.0,
)  # fmt: skip
SMALL = 0.003  # part of the traffic that scales, routers and counts of rows are, which have no price
PADDED = 0.02
SPLITS = [Setting(), *(Setting(tp=tp, sequence=on) for tp in (2, 4) for on in (False, True))]


@pytest.fixture(params=["fp32", "bf16", "fp8"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Precision:
    monkeypatch.setattr(bias, "causal_lower_right", lambda *_: None)  # it is no tensor of the kind that is faked
    return cast("Precision", request.param)


def passed(recorded: Recorded, how: Setting) -> float:
    """Return the bytes that come to a rank: of a gathered buffer all but its own part, and so for the rest. Functional
    collectives are those of tensor parallelism."""
    received = 0.0
    for name, given, result in recorded.calls:
        if name == "all_gather_into_tensor":
            received += result.nbytes * (how.tp - 1) / how.tp
        elif name == "reduce_scatter_tensor":
            received += given.nbytes * (how.tp - 1) / how.tp
        elif name == "all_reduce":
            received += 2.0 * given.nbytes * (how.tp - 1) / how.tp
        elif name == "alltoall_base_":
            received += given.nbytes * (how.ep - 1) / how.ep
        elif name == "_allgather_base_":
            received += given.nbytes * (how.cp - 1) / how.cp
        elif name == "_reduce_scatter_base_":
            received += given.nbytes * (how.cp - 1)
    return received


def tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def sent(model: Model, how: Setting) -> tuple[float, float]:
    """Return the bytes of the forward and of the backward pass of two layers."""
    torch.set_default_dtype(DTYPES[how.precision])
    with pretended(how), FakeTensorMode(), evenly(how):
        chunk, source = chunk_of(model, how), input_of(model, how)
        with Recorded() as first:
            out = forward(chunk, source * 1)
        with Recorded() as second:
            out.backward(torch.empty_like(out))
    torch.set_default_dtype(torch.float32)
    return passed(first, how), passed(second, how)


def priced(model: Model, how: Setting) -> tuple[float, float]:
    """Return the same from the cost model, over links of a byte a second and beside no computation."""
    shard, job = shard_of(how)
    nothing = np.zeros(1)
    found = layer_seconds(
        model, model.layers[0], shard, job, ONE_BYTE_A_SECOND, BARE, "alltoall", OperatorSeconds(*[nothing] * 5)
    )
    return (
        2.0 * float((found.tp_forward + found.cp_forward + found.ep_forward)[0]),
        2.0 * float((found.tp_backward + found.cp_backward + found.ep_backward)[0]),
    )


def require_priced(model: Model, settings: list[Setting], precision: Precision) -> None:
    for how in settings:
        these = replace(how, precision=precision)
        assert sent(model, these) == pytest.approx(priced(model, these), rel=SMALL), these


def shortened(mixer: Mixer | None) -> list[Setting]:
    """Return two ranks with and without sequence parallelism, with as many positions as a mixer needs."""
    return [replace(how, length=length_for(mixer)) for how in SPLITS[1:3]]


def experts(shared: int) -> Model:
    moe = Moe(experts=16, top_k=TOP_K, expert_width=1408, gated=True, shared_width=shared, shared_gate=bool(shared))
    return wide("qwen2", 16, 16, moe)


def test_layers_send_what_is_priced(precision: Precision) -> None:
    """A few of each kind: dense ones, shared and routed experts that are cut, and whole on a rank."""
    require_priced(wide("llama", 32, 8), [Setting(tp=2, cp=2), Setting(tp=2, sequence=True)], precision)
    require_priced(experts(0), [Setting(tp=2, sequence=True, ep=4, etp=2)], precision)
    require_priced(experts(2816), [Setting(tp=2, sequence=True, ep=4, etp=etp) for etp in (1, 2)], precision)


@pytest.mark.parametrize(
    "name", ["Mamba", "Kimi delta", *nightly(name for name in MIXERS if name not in ("Mamba", "Kimi delta"))]
)
def test_mixers_send_what_is_priced(name: str) -> None:
    """In one precision: what they sum and gather between their products, too."""
    model = wide("llama", 32, 8)
    layer = replace(model.layers[0], attention=None, mlp=None, mixer=MIXERS[name], norms=1)
    require_priced(replace(model, layers=(layer, layer)), shortened(MIXERS[name]), "bf16")


@pytest.mark.parametrize("model", sharing(), ids=["a block alone", "with what is of low rank"])
def test_blocks_that_layers_share_send_what_is_priced(model: Model) -> None:
    require_priced(model, shortened(model.layers[0].mixer), "bf16")


@pytest.mark.nightly
def test_layers_of_all_kinds_send_what_is_priced(precision: Precision) -> None:
    """165 configurations."""
    require_priced(wide("llama", 32, 8), [replace(how, cp=cp) for how in SPLITS for cp in (1, 2)], precision)
    require_priced(wide("llama", 32, 2), [Setting(tp=4, sequence=True, cp=2)], precision)
    for shared in (0, 2816):
        cut = [replace(how, ep=ep, etp=how.tp) for how in SPLITS for ep in (1, 4)]
        whole = [Setting(tp=tp, sequence=True, ep=ep) for tp in (2, 4) for ep in (1, 4, 8)]
        require_priced(experts(shared), cut + whole, precision)


BLOCKS = {
    "model_type": "zamba2", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
    "num_attention_heads": 4, "n_mamba_heads": 8, "mamba_d_state": 16, "num_mem_blocks": 2, "adapter_rank": 8,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba"], "chunk_size": 16,
}  # fmt: skip
FULL = Recompute(granularity="full", method="uniform", layers=1)


@pytest.mark.parametrize(
    ("model", "sharding", "again"),
    [
        pytest.param("plain", "none", Recompute(), marks=pytest.mark.nightly),
        ("plain", "zero1", Recompute()),
        ("plain", "zero3", FULL),
        ("shared blocks", "zero3", FULL),
        pytest.param("plain", "zero3", Recompute(), marks=pytest.mark.nightly),
        pytest.param("plain", "zero2", Recompute(), marks=pytest.mark.nightly),
        pytest.param("shared blocks", "zero2", Recompute(), marks=pytest.mark.nightly),
        pytest.param("shared blocks", "zero3", Recompute(), marks=pytest.mark.nightly),
    ],
)
def test_weights_and_gradients_travel_as_is_priced(
    model: str, sharding: Sharding, again: Recompute, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step of two micro-batches on two ranks, by `cost.iteration.step`: gradients once or, in parts, with each
    micro-batch; weights once, or for each pass of a micro-batch. The head's are there still when its backward pass
    begins, and the embedding's when the next micro-batch does, or all the time with blocks that layers share. Buckets
    are filled up to equal parts."""
    monkeypatch.setattr(buckets, "LARGEST_MERGED_ELEMENTS", 1)  # each unit has its own, as large ones do
    shares = model == "shared blocks"
    _require_travelling(
        model_of_config(BLOCKS, "config.json") if shares else tiny_model(6, hidden=64, vocab=64),
        sharding, again, precision, embedding=1 if shares else 3,
    )  # fmt: skip


def _require_travelling(
    model: Model, sharding: Sharding, again: Recompute, precision: Precision, *, embedding: int
) -> None:
    """`embedding`: how often a step gathers its weights under ZeRO-3."""
    plan = plan_of(
        model, replica(stage((0, 6), recompute=again), count=2, micro_batches=2), precision=precision, sharding=sharding
    )
    layout = layout_of(plan)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    engine = make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), recipe=ADAM, initial=seeded(model, 7),
        precision=precision, device=torch.device("cpu"),
    )  # fmt: skip
    with Recorded() as recorded:
        train_step(engine, batch_of(engine, 0), 0)
    dist.destroy_process_group()

    def moved(operator: str) -> int:
        """The bytes of what a collective of that name has, or gives, first."""
        return sum(tensors(given)[0].nbytes for name, given, _ in recorded.calls if name == operator)

    own = widths_of(replace(plan.job, framework="train"))
    ends = model.embedding_parameters, model.head_parameters
    layers = model.parameters - sum(ends)
    passes = {"none": (0, 0, 0), "zero3": (embedding, 4, 2)}.get(sharding, (1, 1, 1))
    gathers = sum(weights * times for weights, times in zip((ends[0], layers, ends[1]), passes, strict=True))
    scatters = {"none": 0, "zero1": 1}.get(sharding, 2) * model.parameters
    assert moved("_allgather_base_") == pytest.approx(own.weight_gather * gathers, rel=PADDED)
    assert 2 * moved("_reduce_scatter_base_") == pytest.approx(own.gradient_reduction * scatters, rel=PADDED)
    reduced = own.gradient_reduction * model.parameters * (sharding == "none")
    assert moved("allreduce_") == pytest.approx(reduced, rel=PADDED, abs=64)  # and the norm
