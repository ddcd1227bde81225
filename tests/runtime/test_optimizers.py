"""Muon and AdamW with moments in 8 bits: the same as in one process whatever the plan cuts, and as large as priced. The
scale of the loss in fp16 from step to step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
from tests import nightly
from tests.runtime.equal import ADAM, require_equal, require_equal_weights
from tests.runtime.reference import in_8_bits, reference_run
from tests.runtime.samples import plan_of, replica, stage, tiny_model, under
from tests.runtime.workers import Case, Outcome, batch_of, moment_bytes, run_cases

from shardwright import Model, check
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.plans.plan import Plan, Sharding
from shardwright.runtime.job.course import course_of, differences
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.state import slots
from shardwright.runtime.state.blocks import code_book, zeros
from shardwright.runtime.state.muon import newton_schulz
from shardwright.runtime.state.recipe import GROWTH_STEPS, METHOD_OF, LossScale, Method, Recipe
from shardwright.runtime.state.slots import make_slots
from shardwright.runtime.state.store import make_store
from shardwright.runtime.step.engine import Engine, apply_vote, make_engine, run_passes, take_vote, train_step
from shardwright.runtime.storage.manifest import Course, Manifest
from shardwright.spec.job import Optimizer
from shardwright.spec.layer import Mlp

if TYPE_CHECKING:
    from shardwright.runtime.storage.mixture import Mixture

MUON = replace(ADAM, method="muon")
EIGHT = replace(ADAM, method="adamw8bit", learning_rate=2e-4)


def wide() -> Model:
    """Two layers of which tensor parallelism 2 leaves rows of 256 weights: blocks of 8-bit moments are then the same."""
    model = tiny_model(2, hidden=256)
    attention = replace(model.layers[0].self_attention, head_dim=128, value_head_dim=128)
    layer = replace(model.layers[0], attention=attention, mlp=Mlp(width=512, gated=True))
    return replace(model, layers=(layer, layer))


LLAMA, SMALL, WIDE = tiny_model(), tiny_model(4), wide()
MIXTURE = tiny_model(3, family="qwen2", experts=4, shared=True)
DEEP_AND_FLAT = (replica(stage((0, 2)), stage((2, 6)), micro_batches=5), replica(stage((0, 6)), micro_batches=3))
PLANS: dict[str, tuple[Plan, Recipe]] = {
    "muon, two depths, zero1, half in host memory": (plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1", offload=0.5), MUON),
    "muon, tp 2, 1 and 4 of one layer": (
        plan_of(
            SMALL,
            replica(stage((0, 1), tp=2), stage((1, 4)), micro_batches=2),
            replica(stage((0, 4), tp=4), micro_batches=1),
            sequence_parallel=True,
            sharding="zero1",
        ),
        MUON,
    ),
    "muon, zero3, experts over two of four copies": (
        plan_of(MIXTURE, replica(stage((0, 3), ep=2), count=4, micro_batches=2), sharding="zero3"),
        MUON,
    ),
    "8 bits, zero1, two depths": (
        plan_of(WIDE, replica(stage((0, 1)), stage((1, 2)), micro_batches=2), replica(stage((0, 2)), micro_batches=2), sharding="zero1"),
        EIGHT,
    ),
    "8 bits, zero3, tp 2": (
        plan_of(WIDE, replica(stage((0, 2), tp=2), count=2, micro_batches=2), sequence_parallel=True, sharding="zero3"),
        EIGHT,
    ),
}  # fmt: skip
RELAY = {
    "muon": (
        plan_of(SMALL, replica(stage((0, 2)), stage((2, 4)), micro_batches=2), replica(stage((0, 4)), micro_batches=1), sharding="zero1"),
        plan_of(SMALL, replica(stage((0, 4), tp=2), micro_batches=3)),
    ),
    "adam8bit": (
        plan_of(WIDE, replica(stage((0, 2)), count=3, micro_batches=1), sharding="zero1"),
        plan_of(WIDE, replica(stage((0, 2), tp=2), micro_batches=3)),
    ),
}  # fmt: skip
FEW = 6 if nightly.wanted else 4  # steps
NAMES: dict[str, Optimizer] = {"muon": "muon", "adamw8bit": "adam8bit"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [Case(name, under(NAMES[recipe.method], plan), recipe, steps=FEW) for name, (plan, recipe) in PLANS.items()]
    for optimizer, (before, after) in RELAY.items():
        recipe = MUON if optimizer == "muon" else EIGHT
        cases.append(Case(f"{optimizer} 1", under(optimizer, before), recipe, steps=FEW // 2, save=optimizer))
        cases.append(Case(f"{optimizer} 2", under(optimizer, after), recipe, steps=FEW // 2, load=optimizer))
    return run_cases(cases, processes=7)


@pytest.mark.parametrize("name", PLANS)
def test_training_equals_that_of_one_process(name: str, outcomes: dict[str, Outcome]) -> None:
    plan, recipe = PLANS[name]
    plan = under(NAMES[recipe.method], plan)
    assert check(plan) == () and unrunnable(plan) == ()
    expected = reference_run(plan, recipe, steps=FEW, seed=7)
    require_equal(outcomes[name], expected, rounded=recipe is EIGHT)
    plain = reference_run(plan, replace(recipe, method="adamw"), steps=FEW, seed=7)
    with pytest.raises(AssertionError):  # it is another method
        require_equal_weights(outcomes[name], plain, rounded=recipe is EIGHT)


@pytest.mark.parametrize("optimizer", RELAY)
def test_a_checkpoint_goes_on_under_another_plan(optimizer: str, outcomes: dict[str, Outcome]) -> None:
    recipe = MUON if optimizer == "muon" else EIGHT
    expected = reference_run(RELAY[optimizer][0], recipe, steps=FEW, seed=7)
    losses = [*outcomes[f"{optimizer} 1"].losses, *outcomes[f"{optimizer} 2"].losses]
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    require_equal_weights(outcomes[f"{optimizer} 2"], expected, rounded=recipe is EIGHT)


@pytest.mark.parametrize("optimizer", ["adam", "adam8bit", "muon"])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_state_is_as_large_as_priced(optimizer: Optimizer, sharding: Sharding) -> None:
    """Master weights and moments, within 2 % on every rank."""
    stages = (stage((0, 1), tp=2), stage((1, 2), tp=2))
    plan = plan_of(
        replace(wide(), vocab=4096), replica(*stages, count=2, micro_batches=2), sharding=sharding, precision="bf16"
    )
    plan = under(optimizer, plan)
    layout, memory = layout_of(plan), mixed_iteration(plan, Analytic()).replicas[0].memory
    recipe = Recipe(method=METHOD_OF[optimizer])
    for place in layout.places:
        store = make_store(layout, place, torch.bfloat16, torch.device("cpu"))
        slots = make_slots(store, place.rank, recipe, sharded=plan.optimizer.distributed, offload=0.0)
        measured = sum(slot.master.nbytes + moment_bytes(slot) for slot in slots)
        assert measured == pytest.approx(float(memory.optimizer[place.stage]), rel=0.02), place.name


def test_a_step_of_muon_changes_nothing_until_all_of_it_is_there() -> None:
    """So a rank that is lost before leaves the others where they were; after, each updates by itself."""
    plan = under("muon", plan_of(SMALL, replica(stage((0, 4)), micro_batches=2)))
    found = []
    for elastic in (False, True):
        engine = engine_of(plan, MUON)
        for step in range(2):
            if not elastic:
                train_step(engine, batch_of(engine, step), step)
                continue
            loss = run_passes(engine, batch_of(engine, step))
            before = state_of(engine)
            vote = take_vote(engine, step, loss, asked_to_stop=False)
            assert state_of(engine) == before
            apply_vote(engine, step, vote)
            assert state_of(engine) != before and not engine.steps
        found.append(state_of(engine))
    assert found[0] == found[1]


def engine_of(plan: Plan, recipe: Recipe) -> Engine:
    layout = layout_of(plan)
    return make_engine(
        layout, 0, make_process_groups(layout, 0), details=Details(), recipe=recipe, initial=seeded(plan.model, 7),
        precision="fp32", device=torch.device("cpu"),
    )  # fmt: skip


def state_of(engine: Engine) -> list[list[float]]:
    return [s.read(kind, s.start, s.stop).tolist() for s in engine.slots for kind in s.kinds]


@pytest.mark.parametrize(("before", "now", "free"), [("adamw", "adamw8bit", True), ("adamw", "muon", False)])
def test_adamw_goes_on_with_moments_in_8_bits_and_as_no_other_method(before: Method, now: Method, free: bool) -> None:
    plan = PLANS["8 bits, zero3, tp 2"][0]
    samples = SimpleNamespace(
        name="a", tokens=1, fingerprint="f", parts=[SimpleNamespace(file=SimpleNamespace(tokenizer="bytes"))]
    )

    def course(method: Method) -> Course:
        return course_of(
            plan, Settings(data=(), out=Path("out"), steps=1, recipe=Recipe(method=method)), cast("Mixture", samples)
        )

    was = course(before)
    manifest = Manifest(step=1, model="", settings=was.settings, data=was.data, parameters={}, pieces=())
    (found,) = differences(manifest, plan, course(now))
    assert (found.name, found.change) == ("method", "free" if free else "fixed")


@pytest.mark.parametrize("shape", [(48, 80), (80, 48)])
def test_a_step_of_muon_is_that_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape)
    optimizer = torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    optimizer.step()
    step = newton_schulz(weight.grad[None].bfloat16())[0].float() * (0.2 * max(shape) ** 0.5)
    assert float((step + weight.detach()).norm()) < 0.02 * float(step.norm())


def test_blocks_keep_what_they_hold() -> None:
    """Values that were in 8 bits once go through fp32, as in checkpoints, unchanged; new ones are near."""
    torch.manual_seed(0)
    for signed in (True, False):
        blocks = zeros(1000, torch.device("cpu"), signed=signed)
        values = torch.randn(1000) * 10.0 ** torch.randn(1000)
        values = values if signed else values.square()
        blocks.put(0, values)
        once = blocks.values(0, 1000)
        torch.testing.assert_close(once[:768], in_8_bits(values[:768], signed=signed))
        assert float((once - values).norm()) < 0.02 * float(values.norm())
        blocks.put(256, once[256:])
        assert torch.equal(blocks.values(0, 1000), once) and torch.equal(blocks.values(300, 700), once[300:700])


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_the_kernel_that_gpus_run_does_what_the_operators_do() -> None:
    torch.manual_seed(0)
    books = (code_book(torch.device("cpu"), signed=True), code_book(torch.device("cpu"), signed=False))
    figures = torch.tensor([0.9, 0.95, 1e-8, 1e-3, 1e-4])
    gradients = torch.randn(3, 1000)
    found = []
    for step in (slots._step, slots._fast_step()):
        weights = torch.linspace(-1.0, 1.0, 1000)
        first, second = (zeros(1000, weights.device, signed=signed) for signed in (True, False))
        for gradient, left_out in zip(gradients, (0.0, 1.0, 0.0), strict=True):
            parts = (blocks.part(slice(0, 1000)) for blocks in (first, second))
            step(weights, gradient, *parts, books, figures, torch.ones(()), torch.tensor(left_out))
        found.append((weights, first.values(0, 1000), second.values(0, 1000)))
    plain, fast = found
    torch.testing.assert_close(fast[0], plain[0], rtol=0.0, atol=1e-5)
    for one, other in zip(plain[1:], fast[1:], strict=True):
        assert float((one - other).norm()) < 1e-3 * float(one.norm())


def test_the_scale_halves_on_overflow_and_doubles_after_good_steps() -> None:
    scale = LossScale().after(finite=False)
    assert scale == LossScale(value=2.0**15, skipped=1)
    for _ in range(GROWTH_STEPS - 1):
        scale = scale.after(finite=True)
    assert scale == LossScale(value=2.0**15, good_steps=1_999, skipped=1)
    assert scale.after(finite=False) == LossScale(value=2.0**14, skipped=2)
    assert scale.after(finite=True) == LossScale(value=2.0**16, skipped=1)
