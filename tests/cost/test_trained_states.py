"""States that people train with: masters or none, optimizers, a chunked loss, and activations in host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from tests.cost.samples import parameter_state

import shardwright
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.frameworks.optimizer import (
    optimizer_widths,
    paged_width,
    state_width,
    stored_width,
    update_width,
)
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.iteration.step import optimizer_seconds
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.ends import logit_bytes
from shardwright.cost.memory.sizes import update_copy_bytes
from shardwright.cost.strategies import UNIFORM, UNSHARDED, ZERO1, ZERO2, ZERO3, strategies
from shardwright.errors import SpecError
from shardwright.spec.adapter import Adapter
from shardwright.spec.job import Job, Optimizer
from shardwright.spec.options import Options

MODEL = shardwright.load_model("llama-3-8b")
(POOL,) = shardwright.load_cluster("1x8xH100-SXM").pools
PURE = Options(master_weights="none")


def job(**told: Any) -> Job:
    return replace(Job(global_batch=8, seq_len=4096, framework="fsdp"), **told)


def peak(of: Job, **columns: Any) -> Footprint:
    """Return the memory of a GPU of eight under ZeRO-3 with recomputation, unless told otherwise."""
    context = Context(model=MODEL, pool=POOL, job=of, efficiency=default_efficiency())
    layers = len(MODEL.layers)
    row = {"dp": 8, "micro_batch": 1, "flash": True, "sharding": ZERO3, "recompute": UNIFORM, "recompute_layers": 1}
    rows = strategies([row | {"first_layers": layers, "last_layers": layers} | columns])
    return footprint(context, rows, layer_rows(context, rows), np.array([[0, layers]]))


def whole_state(of: Job) -> float:
    """Return bytes of weights, gradients and optimizer state of a parameter on one GPU."""
    found = parameter_state(MODEL, of, UNSHARDED)
    return float((found.weights + found.gradients + found.optimizer)[0])


def test_every_optimizer_has_its_row() -> None:
    assert set(optimizer_widths()) == set(get_args(Optimizer))


@pytest.mark.parametrize(
    ("optimizer", "mixed", "pure"),
    [
        ("adam", 18.0, 8.0),
        ("foreach_adam", 18.0, 8.0),
        ("adam8bit", 12.03125, 6.03125),
        ("paged_adam", 10.0, 4.0),
        ("lion", 14.0, 6.0),
        ("adafactor", 10.002, 4.002),
        ("sgd", 14.0, 6.0),
        ("plain_sgd", 10.0, 4.0),
        ("muon", 14.0, 6.0),
    ],
)
def test_bytes_of_a_parameter(optimizer: Optimizer, mixed: float, pure: float) -> None:
    """bf16 weights, and fp32 gradients and masters, or bf16 gradients and moments (8-bit moments are what they are)."""
    assert whole_state(job(optimizer=optimizer)) == pytest.approx(mixed)
    assert whole_state(job(optimizer=optimizer, options=PURE)) == pytest.approx(pure)


def test_no_masters_move_less_and_are_stored_smaller() -> None:
    assert update_width(job(options=PURE)) == 2 * 2 + 2 * 2 + 2 * 4  # gradients twice, weights and moments both ways
    assert stored_width(MODEL, job(options=PURE)) == state_width(MODEL, job(options=PURE)) == 4.0


def test_a_paged_state_waits_on_the_link_to_the_host_and_no_other_does() -> None:
    rows = strategies([{"dp": 8, "sharding": ZERO3}])
    held = np.array([[8e9]])

    def seconds(optimizer: Optimizer) -> float:
        context = Context(model=MODEL, pool=POOL, job=job(optimizer=optimizer), efficiency=default_efficiency())
        return float(optimizer_seconds(context, rows, held, np.zeros((1, 1)))[0, 0])

    link = POOL.gpu.pcie_bytes_per_second * 0.8
    assert seconds("paged_adam") - seconds("adam") == pytest.approx(2 * 8 * 1e9 / link)
    assert paged_width(job(optimizer="paged_adam", options=PURE)) == 4.0


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(("options", "width"), [(PURE, 2.0), (Options(), 4.0)])
def test_an_update_of_several_kernels_has_a_copy_of_a_moment(ranks: int, options: Options, width: float) -> None:
    """Beside weights, gradients and moments alone, whoever shares them out."""
    sharding = UNSHARDED if ranks == 1 else ZERO3
    short = job(seq_len=64, options=options)
    fused, several = (
        peak(replace(short, optimizer=optimizer), dp=ranks, sharding=sharding) for optimizer in ("adam", "foreach_adam")
    )
    sixteen_bits_of_masters = 2.0 * (options != PURE)  # which are gone by then
    updated, states = MODEL.parameters / ranks, whole_state(replace(short, optimizer="adam")) - sixteen_bits_of_masters
    least, most = (states + width) * updated, float(fused.tensors[0, 0]) + width * updated
    assert least * (1.0 - 1e-9) <= float(several.tensors[0, 0]) <= most * (1.0 + 1e-9)
    assert update_width(replace(short, optimizer="foreach_adam")) > 2.0 * update_width(short)


@pytest.mark.parametrize(("sharding", "ranks"), [(UNSHARDED, 1), (ZERO1, 4), (ZERO2, 8), (ZERO3, 4), (ZERO3, 64)])
def test_deepspeed_has_gradients_of_what_it_updates_three_times(sharding: int, ranks: int) -> None:
    """In the type of the passes as they came and in one tensor, and in fp32; under ZeRO-3 of 1e9 weights at a time. In
    fp32 throughout they are there once."""
    deepspeed = job(framework="deepspeed", seq_len=64, global_batch=64)
    updated = np.array([[MODEL.parameters / ranks]])
    copies = update_copy_bytes(deepspeed, np.array([[sharding]]), updated)
    at_once = min(float(updated[0, 0]), 1e9) if sharding == ZERO3 else float(updated[0, 0])
    assert float(copies[0, 0]) == pytest.approx(6.0 * at_once)
    single = replace(deepspeed, options=Options(grad_reduce="fp32"))
    assert float(update_copy_bytes(single, np.array([[sharding]]), updated)[0, 0]) == 0.0
    rank = parameter_state(MODEL, deepspeed, sharding, dense_ranks=float(ranks))
    wide = parameter_state(MODEL, single, sharding, dense_ranks=float(ranks))
    assert float((wide.gradients - rank.gradients)[0]) == pytest.approx(2.0 / (ranks if sharding >= ZERO2 else 1))
    assert widths_of(deepspeed).gradient_reduction == 2.0 and widths_of(single).gradient_reduction == 4.0


def test_weights_without_masters_are_their_own_shard() -> None:
    """FSDP casts its fp32 masters to 16 bits."""
    shards = {
        name: float(parameter_state(MODEL, of, ZERO3, dense_ranks=8.0).weights[0])
        for name, of in {"masters": job(), "pure": job(options=PURE)}.items()
    }
    assert shards == {"masters": 0.0, "pure": 2 / 8}


def test_weights_of_deepspeed_in_host_memory_leave_those_of_two_layers() -> None:
    """Two bytes of each are there, beside whatever of the state is."""
    deepspeed = job(framework="deepspeed")
    host = replace(deepspeed, options=Options(weight_offload="host"))
    for part in (0.0, 0.5, 1.0):
        here, away = (peak(of, offload=part) for of in (deepspeed, host))
        shard = 2.0 * MODEL.parameters / 8
        assert float((here.weights - away.weights)[0, 0]) == pytest.approx(shard)
        assert float((away.in_host - here.in_host)[0, 0]) == pytest.approx(shard)
        assert float(away.optimizer[0, 0]) == float(here.optimizer[0, 0])


def test_offloaded_inputs_leave_two_of_a_layer() -> None:
    here, away = peak(job()), peak(job(options=Options(activation_offload="inputs")))
    size, layers = 2.0 * 4096 * MODEL.hidden, len(MODEL.layers)
    assert float((here.activations - away.activations)[0, 0]) == pytest.approx((layers - 2) * size)


def test_a_chunked_loss_grows_with_the_hidden_state_and_not_with_the_vocabulary() -> None:
    """Over eight times the tokens, where the logits are most of the peak."""
    long = job(seq_len=32768)
    whole, chunked = (float(peak(replace(long, options=Options(loss=name))).logits[0, 0]) for name in (None, "chunked"))
    assert whole > 40e9 and chunked < 4.0 * 32768 * MODEL.hidden + 7.0 * MODEL.hidden * MODEL.vocab


def test_a_chunked_loss_makes_no_gradient_of_a_frozen_projection() -> None:
    """Beside adapters it is not trained."""
    chunked = job(options=Options(loss="chunked"))
    trained, frozen = (
        logit_bytes(MODEL, of, *np.ones((3, 1))) for of in (chunked, replace(chunked, adapter=Adapter()))
    )
    assert float((trained - frozen)[0]) == 2.0 * MODEL.hidden * MODEL.vocab and float(frozen[0]) > 0.0


def test_gradients_of_one_micro_batch_come_in_place_of_activations() -> None:
    """Of two micro-batches the second finds those of the first; those of the head are there before layers run backward
    and free what they kept."""
    one, two = peak(job(), recompute=0), peak(job(global_batch=16), recompute=0)
    shard = 4.0 * (MODEL.parameters - MODEL.hidden * MODEL.vocab) / 8
    assert float((two.gradients - one.gradients)[0, 0]) == pytest.approx(shard)


def test_master_weights_are_told_by_name() -> None:
    made = shardwright.make_job(global_batch=8, seq_len=512, framework="fsdp", master_weights="none")
    assert made.options == PURE and not made.masters
    with pytest.raises(SpecError, match="master weights"):
        shardwright.make_job(global_batch=8, seq_len=512, master_weights="some")
