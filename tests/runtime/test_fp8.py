"""Training in fp8: each product against one in 64 bits, whole runs against bf16, and what travels between ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.cli.running import refused, run
from tests.runtime.equal import ADAM
from tests.runtime.recorded import Recorded
from tests.runtime.reference import reference_run
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.workers import Case, Outcome, run_cases
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright import Job, Model, Plan, SpecError, check, save
from shardwright.cli.train_input import with_precision
from shardwright.cost.frameworks.widths import widths_of
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.products import FP8, WHOLE, scaled
from shardwright.search.planner import plan as make_plan
from shardwright.spec.layer import Mlp, Moe

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
STEPS = 30


def even() -> Model:
    """A model whose sizes are multiples of 16 under tensor parallelism 2 as well."""
    model = tiny_model(2, hidden=64, vocab=64)
    return replace(model, layers=(replace(model.layers[0], mlp=Mlp(width=96, gated=True)),) * 2)


def mixture() -> Model:
    """The same with experts, of which a rank has 24 columns."""
    moe = Moe(experts=4, top_k=2, expert_width=48, gated=True, shared_width=64)
    return replace(MODEL, layers=(replace(MODEL.layers[0], mlp=None, moe=moe),) * 2)


MODEL = even()
MIXTURE = mixture()
PLANS = {
    "one rank": plan_of(MODEL, replica(stage((0, 2)), micro_batches=2), micro_batch=4, precision="fp8"),
    "tp 2, experts in 16 bits": plan_of(
        MIXTURE, replica(stage((0, 2), tp=2), micro_batches=2), micro_batch=4, precision="fp8"
    ),
    "tp 2 in parts, pp 2": plan_of(
        MODEL, replica(stage((0, 1), tp=2), stage((1, 2), tp=2), micro_batches=2), micro_batch=4, precision="fp8",
        sequence_parallel=True, sharding="zero1",
    ),
}  # fmt: skip


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def test_a_product_and_its_gradients_are_those_of_what_fp8_leaves_of_their_factors() -> None:
    """Exactly but for the 16 bits of the result. Of the factors themselves: rounding to 3 bits behind the point errs by
    up to 2^-4, evenly spread 2^-4 / sqrt(3) = 3.6 % at most, to 2 bits (gradients) twice that; a sum of products of
    independent errors has the errors of both factors: 5.1 %, and 8.1 % with a gradient."""
    torch.manual_seed(0)
    x = torch.randn(2, 64, 96, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.nn.Parameter(0.02 * torch.randn(80, 96, dtype=torch.bfloat16))
    y = FP8.leave(x, weight, WHOLE)
    gradient = torch.randn_like(y) * 1e-4
    y.backward(gradient)
    assert x.grad is not None and weight.grad is not None

    def left(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        part = scaled(value.detach(), kind)
        assert float(part.values.float().abs().max()) == torch.finfo(kind).max, "the format's range is used"
        return part.values.double() * part.scale.double()

    for factors, most in (
        ((left(x, E4M3), left(weight, E4M3), left(gradient, E5M2)), (0.003, 0.003)),
        ((x.detach().double(), weight.detach().double(), gradient.double()), (0.051, 0.081)),
    ):
        inputs, matrix, pushed = factors
        assert off(y.detach(), inputs @ matrix.T) < most[0]
        assert off(x.grad, pushed @ matrix) < most[1]
        assert off(weight.grad, pushed.flatten(0, 1).T @ inputs.flatten(0, 1)) < most[1]
    assert off(y.detach(), x.detach().double() @ weight.detach().double().T) > 0.01, "it is in 8 bits"


def test_transposed_gradients_are_brought_into_the_order_of_rows() -> None:
    """In which alone the kernels of GPUs take a first factor; those of CPUs take any."""
    found = scaled(torch.randn(32, 16).t(), E5M2)
    assert found.values.shape == (16, 32) and found.values.is_contiguous()


def test_zeros_stay_zeros_and_what_is_not_finite_shows() -> None:
    zeros = scaled(torch.zeros(16, 16), E4M3)
    assert torch.equal(zeros.values.float(), torch.zeros(16, 16))
    for wrong in (torch.inf, torch.nan):
        x = torch.ones(16, 16)
        x[3, 5] = wrong
        assert not FP8.leave(x, torch.ones(16, 16), WHOLE).isfinite().any()


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [Case(name, plan, ADAM, steps=STEPS) for name, plan in PLANS.items()]
    return run_cases([*cases, Case("bf16", under(PLANS["one rank"], precision="bf16"), ADAM, steps=STEPS)], processes=4)


@pytest.mark.parametrize("name", PLANS)
def test_training_follows_that_in_16_and_32_bits(name: str, outcomes: dict[str, Outcome]) -> None:
    """Gradients that err by 8 % at random change what a step wins by the square of that, 0.64 % of the way from a loss
    of 4.18 to one of 2.1; single losses vary by some times that. The first one, before any step, is of logits which
    hardly differ yet."""
    plan, found = PLANS[name], outcomes[name]
    assert check(plan) == () and unrunnable(plan) == ()
    half = [outcomes["bf16"].losses] if plan.model == MODEL else []
    for expected in (reference_run(plan, ADAM, steps=STEPS, seed=7).losses, *half):
        way = expected[0] - expected[-1]
        assert way > 2.0
        assert found.losses[0] == pytest.approx(expected[0], rel=1e-3)
        assert found.losses == pytest.approx(expected, abs=0.02 * way)
        assert sum(found.losses[-10:]) / 10 == pytest.approx(sum(expected[-10:]) / 10, abs=0.0064 * way)
    assert found.losses not in half


def test_ranks_that_hold_parts_of_a_sequence_gather_8_bits_an_element() -> None:
    """What the cost model prices: three gathers a block, of its input, again, and of the gradient of its output."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    tensor = TensorGroup(size=2, group=dist.group.WORLD, sequence=True)
    x = torch.randn(1, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    with Recorded() as recorded:
        (wide,) = FP8.enter(x, [(torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True), None)], tensor)
        FP8.leave(wide, torch.randn(64, 32, dtype=torch.bfloat16, requires_grad=True), tensor).sum().backward()
    dist.destroy_process_group()
    widths, elements = widths_of(Job(global_batch=1, seq_len=32, precision="fp8", framework="train")), 32 * 64
    gathered = [result.nbytes for name, _, result in recorded.calls if "gather" in name and "wait" not in name]
    summed = [given.nbytes for name, given, _ in recorded.calls if name == "reduce_scatter_tensor"]
    assert gathered == [elements * widths.tensor_gather] * 3
    assert summed == [elements * widths.tensor_reduce] * 2


def under(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, job=replace(plan.job, **changes))


def test_what_cannot_be_run_in_fp8_is_said(tmp_path: Any) -> None:
    plan = PLANS["one rank"]
    assert "blockwise" in str(unrunnable(under(plan, fp8_recipe="blockwise"))[0])
    assert unrunnable(under(plan, fp8_recipe="tensorwise")) == ()
    own = under(plan, fp8_recipe="mxfp8", framework="train")
    assert [problem.path for problem in check(own)] == ["job.fp8_recipe"]
    with pytest.raises(SpecError, match="mxfp8 is not there in train"):
        make_plan(own.model, own.cluster, own.job)
    assert "has 24 of" in str(unrunnable(replace(plan, model=tiny_model(2, hidden=48, heads=4)))[0])
    (problem,) = unrunnable(
        under(plan_of(tiny_model(2, experts=4), replica(stage((0, 2), tp=2), micro_batches=2)), precision="bf16")
    )
    assert "experts cannot be run: a rank has 12 of" in problem.message
    (pool,) = plan.cluster.pools[:1]
    older = replace(pool.gpu, peak_flops=tuple(item for item in pool.gpu.peak_flops if item[0] != "fp8"))
    cluster = replace(plan.cluster, pools=(replace(pool, gpu=older), *plan.cluster.pools[1:]))
    save(replace(with_precision(plan, "bf16"), cluster=cluster), tmp_path / "older.json")
    for command in ("train", "train --dry-run"):
        told = [*command.split(), str(tmp_path / "older.json"), "--precision", "fp8"]
        assert "cannot compute in fp8" in refused(run(told))
    with pytest.raises(SpecError, match="one of bf16, fp16, fp8, fp32"):
        with_precision(plan, "int8")
