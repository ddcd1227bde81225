"""Uneven FSDP trains as one process does, whatever the shares, and each rank keeps its share alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.runtime.equal import ADAM, SGD, require_equal, require_equal_weights
from tests.runtime.reference import reference_run
from tests.runtime.samples import STEPS, plan_of, replica, stage, tiny_model, under
from tests.runtime.workers import Case, Outcome, moment_bytes, run_cases

from shardwright import Model, check
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule
from shardwright.runtime.job.describe import layout_text
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.state.slots import make_slots
from shardwright.runtime.state.store import fill, make_store

Share = tuple[int, int, int, int]  # GPUs, rows, micro-batches, parts of the state
SELECTIVE = Recompute(granularity="selective")
UNIFORM = Recompute(granularity="full", method="uniform", layers=1)
BLOCK = Recompute(granularity="full", method="block", layers=2)
LLAMA, GPT2 = tiny_model(4), tiny_model(3, family="gpt2")
TIED, MIXTURE = tiny_model(3, family="qwen3", tied=True), tiny_model(2, family="qwen2", experts=4, shared=True)


def shared(model: Model, *shares: Share, waves: int = 1, recompute: tuple[Recompute, ...] = ()) -> Plan:
    """A plan of uneven FSDP; GPU types alternate."""
    modes = recompute or (Recompute(),) * len(shares)
    replicas = tuple(
        Replica(
            count=count,
            micro_batches=micro_batches,
            rows=rows,
            state=state,
            stages=(stage((0, len(model.layers)), gpu=("H100-SXM", "other")[index % 2], recompute=mode),),
        )
        for index, ((count, rows, micro_batches, state), mode) in enumerate(zip(shares, modes, strict=True))
    )
    plain = plan_of(model, replica(stage((0, len(model.layers))), micro_batches=1), sharding="zero3")
    return replace(
        plain,
        job=replace(plain.job, global_batch=sum(count * rows for count, rows, _, _ in shares)),
        micro_batch=max(each.sizes(1)[0] for each in replicas),
        schedule=Schedule(kind="layered", waves=waves),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding="zero3", parts=sum(count * state for count, _, _, state in shares)),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )


PLANS = {
    "two unequal ranks": (shared(LLAMA, (1, 5, 2, 7), (1, 2, 1, 3)), ADAM),
    "even state, uneven rows": (shared(LLAMA, (2, 3, 3, 1), (2, 1, 1, 1)), SGD),
    "four unequal ranks, two waves": (
        shared(GPT2, (1, 5, 4, 1), (1, 4, 2, 5), (2, 2, 2, 2), waves=2, recompute=(UNIFORM, BLOCK, Recompute())),
        ADAM,
    ),
    "one keeps no state": (shared(LLAMA, (1, 1, 1, 0), (2, 4, 2, 3), recompute=(SELECTIVE, UNIFORM)), ADAM),
    "tied embedding": (shared(TIED, (1, 4, 2, 1), (2, 2, 2, 3), waves=2, recompute=(UNIFORM, Recompute())), ADAM),
    "experts": (shared(MIXTURE, (1, 5, 2, 2), (1, 2, 1, 5)), ADAM),
}
MUON = under("muon", shared(MIXTURE, (1, 5, 2, 2), (1, 2, 1, 5), (1, 1, 1, 0))), replace(ADAM, method="muon")
EIGHT = (  # a vocabulary whose matrices are whole blocks
    under("adam8bit", shared(tiny_model(3, vocab=64), (1, 5, 2, 7), (1, 2, 1, 3))),
    replace(ADAM, method="adamw8bit", learning_rate=2e-4),
)
TRAINED = PLANS | {"muon, one keeps no state": MUON, "8 bits": EIGHT}
DOCUMENTS = shared(LLAMA, (1, 5, 2, 7), (1, 2, 1, 3), recompute=(UNIFORM, SELECTIVE))
RELAY = {
    "relay 1": shared(TIED, (1, 4, 2, 7), (1, 2, 1, 3)),
    "relay 2": plan_of(TIED, replica(stage((0, 2), tp=2), stage((2, 3)), micro_batches=6), sharding="zero1"),
    "relay 3": shared(TIED, (2, 1, 1, 5), (1, 4, 4, 1), recompute=(Recompute(), UNIFORM)),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [Case(name, plan, recipe) for name, (plan, recipe) in TRAINED.items()]
    for before, (name, plan) in zip(("", *RELAY), RELAY.items(), strict=False):
        cases.append(Case(name, plan, ADAM, steps=7, load=before, save=name))
    cases.append(Case("documents", DOCUMENTS, ADAM, end=5))
    return run_cases(cases, processes=4)


def test_training_within_documents_equals_that_of_one_process(outcomes: dict[str, Outcome]) -> None:
    require_equal(outcomes["documents"], reference_run(DOCUMENTS, ADAM, steps=STEPS, seed=7, end=5))


@pytest.mark.parametrize("name", TRAINED)
def test_training_equals_that_of_one_process(name: str, outcomes: dict[str, Outcome]) -> None:
    plan, recipe = TRAINED[name]
    assert check(plan) == () and unrunnable(plan) == ()
    expected = reference_run(plan, recipe, steps=STEPS, seed=7)
    require_equal(outcomes[name], expected, rounded=recipe.method == "adamw8bit")
    assert expected.losses[-1] < (1.0 - 1e-3 * STEPS) * expected.losses[0]


@pytest.mark.parametrize(
    ("name", "most"), [("two unequal ranks", 2), ("tied embedding", 3), ("experts", 4), ("one keeps no state", 2)]
)
def test_the_next_unit_is_on_its_way_and_no_other(name: str, most: int, outcomes: dict[str, Outcome]) -> None:
    """A head needs the embedding tied to it too, and a layer with experts has a bucket of theirs."""
    assert outcomes[name].most_gathered == most


def test_a_checkpoint_goes_on_under_other_shares_and_other_plans(outcomes: dict[str, Outcome]) -> None:
    expected = reference_run(RELAY["relay 1"], ADAM, steps=7 * len(RELAY), seed=7)
    losses = [loss for name in RELAY for loss in outcomes[name].losses]
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    require_equal_weights(outcomes["relay 3"], expected)


@pytest.mark.parametrize("name", PLANS)
def test_a_rank_keeps_its_share_alone(name: str) -> None:
    """Weights, gradients and optimizer state between steps are the parts that the plan says, and sum to the model."""
    plan, recipe = PLANS[name]
    layout, kept = layout_of(plan), []
    for place in layout.places:
        store = make_store(layout, place, torch.float32, torch.device("cpu"))
        fill(store, seeded(plan.model, 7))
        slots = make_slots(store, place.rank, recipe, sharded=True, offload=0.0)
        held = sum(flat.kept.numel() for b in store.buffers for flat in (b.weights, b.gradients))
        memory = sum(flat.whole.untyped_storage().nbytes() for b in store.buffers for flat in (b.weights, b.gradients))
        assert memory == 0, "nothing is whole between steps"
        own = sum(stop - start for start, stop in (b.bucket.own(place.rank, sharded=True) for b in store.buffers))
        updated = sum(slot.stop - slot.start for slot in slots)
        moments = sum(moment_bytes(slot) for slot in slots)
        assert held == 2 * own and updated <= own and moments in (4 * updated, 8 * updated)
        total = sum(buffer.bucket.elements for buffer in store.buffers)
        share = (plan.replicas[place.replica].state or 0) / (plan.optimizer.parts or 1)
        assert abs(own - share * total) <= 256 * len(store.buffers), "but for rounding to blocks of 256"
        kept.append(own)
    assert sum(kept) == total


@st.composite
def random_shares(draw: st.DrawFn) -> Plan:
    model = draw(st.sampled_from([LLAMA, GPT2, TIED, MIXTURE]))
    waves = draw(st.integers(1, 2))
    shares, modes = [], []
    for _ in range(draw(st.integers(2, 4))):
        micro_batches = waves * draw(st.integers(1, 2))
        shares.append((1, draw(st.integers(micro_batches, 6)), micro_batches, draw(st.integers(0, 9))))
        modes.append(draw(st.sampled_from([Recompute(), SELECTIVE, UNIFORM, BLOCK])))
    shares[0] = (*shares[0][:3], shares[0][3] + 1)
    return shared(model, *shares, waves=waves, recompute=tuple(modes))


@pytest.mark.nightly
@settings(max_examples=5, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(random_shares(), min_size=8, max_size=8))
def test_random_shares_train_as_one_process_does(found: list[Plan]) -> None:
    outcomes = run_cases([Case(str(n), plan, SGD, steps=6) for n, plan in enumerate(found)], processes=4)
    for number, plan in enumerate(found):
        assert check(plan) == ()
        require_equal(outcomes[str(number)], reference_run(plan, SGD, steps=6, seed=7))


def test_the_layout_tells_the_shares() -> None:
    text = layout_text(layout_of(PLANS["two unequal ranks"][0]))
    assert "takes      2 micro-batches of 3 and 2, from sample 0" in text
    assert "keeps      7 of 10 parts" in text
    assert "takes      1 micro-batch of 2, from sample 5" in text
