"""Whatever the plan, training is that of a single process: the loss of every step, gradient norms and final weights."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
import torch
from tests import nightly
from tests.runtime.equal import ADAM, SGD, require_equal, require_equal_weights
from tests.runtime.reference import reference_run
from tests.runtime.samples import STEPS, plan_of, replica, stage, tiny_model
from tests.runtime.workers import Case, Outcome, run_cases

from shardwright.plans.check import check
from shardwright.plans.plan import Overlap, Recompute
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.state.recipe import LossScale

SELECTIVE = Recompute(granularity="selective")
UNIFORM = Recompute(granularity="full", method="uniform", layers=2)
BLOCK = Recompute(granularity="full", method="block", layers=1)
LLAMA, GPT2 = tiny_model(), tiny_model(5, family="gpt2")
SMALL, TIED = tiny_model(4), tiny_model(4, family="qwen3", tied=True)
WINDOW = tiny_model(4, window=5)
MIXTURE = tiny_model(3, family="qwen2", experts=4, shared=True)
TWO = replica(stage((0, 3)), stage((3, 6)), micro_batches=3)
DEEP_AND_FLAT = (replica(stage((0, 2)), stage((2, 6)), micro_batches=5), replica(stage((0, 6)), micro_batches=3))

PLANS = {
    "one rank, accumulation": (plan_of(LLAMA, replica(stage((0, 6)), micro_batches=4), micro_batch=2), ADAM),
    "uniform 2 x 2": (plan_of(LLAMA, replica(*TWO.stages, count=2, micro_batches=3)), ADAM),
    "two depths, unequal micro-batches": (plan_of(LLAMA, *DEEP_AND_FLAT), ADAM),
    "two depths, distributed optimizer": (plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1"), ADAM),
    "two depths, sgd, no overlap": (replace(plan_of(LLAMA, *DEEP_AND_FLAT), overlap=Overlap()), SGD),
    "three depths": (
        plan_of(
            LLAMA,
            replica(stage((0, 2)), stage((2, 6)), micro_batches=3),
            replica(stage((0, 1)), stage((1, 4)), stage((4, 6)), micro_batches=2),
            replica(stage((0, 6)), micro_batches=1),
        ),
        ADAM,
    ),
    "three depths, distributed optimizer, tied": (
        plan_of(
            TIED,
            replica(stage((0, 1)), stage((1, 4)), micro_batches=3),
            replica(stage((0, 1)), stage((1, 1)), stage((1, 4)), micro_batches=2),
            replica(stage((0, 4)), micro_batches=1),
            sharding="zero1",
        ),
        ADAM,
    ),
    "different splits, recomputed": (
        plan_of(
            LLAMA,
            replica(stage((0, 2), recompute=SELECTIVE), stage((2, 6), recompute=UNIFORM), micro_batches=3),
            replica(stage((0, 4), recompute=BLOCK), stage((4, 6)), micro_batches=2),
        ),
        ADAM,
    ),
    "interleaved": (
        plan_of(
            LLAMA,
            replica(stage((0, 1), (2, 3)), stage((1, 2), (3, 6)), count=2, micro_batches=4),
            virtual_stages=2,
        ),
        ADAM,
    ),
    "interleaved, two depths": (
        plan_of(
            GPT2,
            replica(stage((0, 1), (2, 3)), stage((1, 2), (3, 5)), micro_batches=2),
            replica(stage((0, 1), (3, 4)), stage((1, 2), (4, 4)), stage((2, 3), (4, 5)), micro_batches=3),
            virtual_stages=2,
            sharding="zero1",
        ),
        ADAM,
    ),
    "zero bubble": (
        plan_of(LLAMA, replica(stage((0, 2)), stage((2, 4)), stage((4, 6)), micro_batches=5), zero_bubble=True),
        ADAM,
    ),
    "zero bubble, two depths, distributed optimizer": (
        plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1", zero_bubble=True),
        ADAM,
    ),
    "zero bubble, virtual stages, tied": (
        plan_of(
            GPT2,
            replica(stage((0, 1), (2, 3)), stage((1, 2), (3, 5)), count=2, micro_batches=4),
            virtual_stages=2,
            zero_bubble=True,
            sharding="zero1",
        ),
        ADAM,
    ),
    "zero bubble, tp 2 and 1, sequence parallel": (
        plan_of(
            SMALL,
            replica(stage((0, 2), tp=2), stage((2, 4)), micro_batches=3),
            sequence_parallel=True,
            zero_bubble=True,
        ),
        ADAM,
    ),
    "zero bubble, tp 2, all-reduce": (
        plan_of(SMALL, replica(stage((0, 2), tp=2), stage((2, 4), tp=2), micro_batches=2), zero_bubble=True),
        ADAM,
    ),
    "zero bubble, experts": (
        plan_of(
            MIXTURE,
            replica(stage((0, 1), ep=2), stage((1, 3), ep=2), count=2, micro_batches=3),
            zero_bubble=True,
        ),
        ADAM,
    ),
    "zero bubble, fewer micro-batches than stages": (
        plan_of(LLAMA, replica(stage((0, 2)), stage((2, 4)), stage((4, 6)), micro_batches=2), zero_bubble=True),
        ADAM,
    ),
    "gpt2, tied, two depths": (
        plan_of(GPT2, replica(stage((0, 2)), stage((2, 5)), micro_batches=2), replica(stage((0, 5)), micro_batches=1)),
        ADAM,
    ),
    "tp 2": (plan_of(SMALL, replica(stage((0, 2), tp=2), stage((2, 4), tp=2), micro_batches=2)), ADAM),
    "tp 2, sequence parallel, gpt2": (
        plan_of(GPT2, replica(stage((0, 5), tp=2), count=2, micro_batches=1), sequence_parallel=True),
        ADAM,
    ),
    "tp 4, fewer key-value heads, tied": (plan_of(TIED, replica(stage((0, 4), tp=4), micro_batches=1)), ADAM),
    "tp 4 to 1, sequence parallel": (
        plan_of(SMALL, replica(stage((0, 2), tp=4), stage((2, 4)), micro_batches=2), sequence_parallel=True),
        ADAM,
    ),
    "tp 2, 1 and 4 of one layer": (
        plan_of(
            SMALL,
            replica(stage((0, 1), tp=2), stage((1, 4)), micro_batches=2),
            replica(stage((0, 4), tp=4), micro_batches=1),
            sequence_parallel=True,
            sharding="zero1",
        ),
        ADAM,
    ),
    "cp 2, two depths": (
        plan_of(
            SMALL,
            replica(stage((0, 2), cp=2, recompute=SELECTIVE), stage((2, 4), cp=2, recompute=BLOCK), micro_batches=3),
            replica(stage((0, 4)), micro_batches=1),
            sharding="zero1",
        ),
        ADAM,
    ),
    "cp 2, tp 2, sequence parallel, gpt2": (
        plan_of(GPT2, replica(stage((0, 2), tp=2, cp=2), stage((2, 5), cp=2), micro_batches=2), sequence_parallel=True),
        ADAM,
    ),
    "cp 4, a window": (plan_of(WINDOW, replica(stage((0, 4), cp=4), micro_batches=1)), ADAM),
    "experts over cp 2 and tp 2": (
        plan_of(MIXTURE, replica(stage((0, 3), cp=2, tp=2, ep=4, etp=1), micro_batches=2), sequence_parallel=True),
        ADAM,
    ),
    "mixture of experts, two depths": (
        plan_of(
            MIXTURE, replica(stage((0, 1)), stage((1, 3)), micro_batches=2), replica(stage((0, 3)), micro_batches=2)
        ),
        ADAM,
    ),
    "mixture of experts, tp 2": (
        plan_of(MIXTURE, replica(stage((0, 3), tp=2), count=2, micro_batches=1), sequence_parallel=True),
        ADAM,
    ),
    "experts over two copies, recomputed": (
        plan_of(
            MIXTURE,
            replica(stage((0, 2), ep=2, recompute=UNIFORM), stage((2, 3), ep=2), count=2, micro_batches=2),
        ),
        ADAM,
    ),
    "experts over copies and tp, whole on each rank": (
        plan_of(
            MIXTURE,
            replica(stage((0, 1), tp=2, ep=4, etp=1), stage((1, 3), tp=2, ep=2, etp=1), count=2, micro_batches=2),
            sequence_parallel=True,
            sharding="zero1",
        ),
        ADAM,
    ),
    "experts over other ranks in each replica": (
        plan_of(
            MIXTURE,
            replica(stage((0, 3), tp=2, ep=2, etp=2), count=2, micro_batches=2),
            replica(stage((0, 2), tp=2, ep=1, etp=1), stage((2, 3)), micro_batches=3),
            sequence_parallel=True,
            sharding="zero1",
        ),
        ADAM,
    ),
    "half of the optimizer in host memory": (plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1", offload=0.5), ADAM),
    "all of the optimizer in host memory, tp 2": (
        plan_of(
            SMALL,
            replica(stage((0, 4), tp=2), count=2, micro_batches=2),
            sequence_parallel=True,
            sharding="zero1",
            offload=1.0,
        ),
        ADAM,
    ),
    "zero2, four copies": (
        plan_of(LLAMA, replica(stage((0, 6)), count=4, micro_batches=2), sharding="zero2"),
        ADAM,
    ),
    "zero2, two depths": (plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero2"), ADAM),
    "zero3, three copies, tied": (
        plan_of(TIED, replica(stage((0, 4)), count=3, micro_batches=2), sharding="zero3"),
        ADAM,
    ),
    "zero3, recomputed": (
        plan_of(LLAMA, replica(stage((0, 6), recompute=UNIFORM), count=2, micro_batches=2), sharding="zero3"),
        ADAM,
    ),
    "zero3, stages, tp 2, sequence parallel, tied": (
        plan_of(
            GPT2,
            replica(stage((0, 2), tp=2, recompute=BLOCK), stage((2, 5), tp=2), count=2, micro_batches=3),
            sequence_parallel=True,
            sharding="zero3",
        ),
        ADAM,
    ),
    "zero3, interleaved, half in host memory, merged": (
        plan_of(
            LLAMA,
            replica(stage((0, 1), (2, 3)), stage((1, 2), (3, 6)), count=2, micro_batches=4),
            virtual_stages=2,
            sharding="zero3",
            offload=0.5,
        ),
        ADAM,
    ),
    "zero3, experts over two of four copies": (
        plan_of(
            MIXTURE,
            replica(stage((0, 3), ep=2, recompute=SELECTIVE), count=4, micro_batches=2),
            sharding="zero3",
        ),
        ADAM,
    ),
    "zero3, two depths of two copies": (
        plan_of(
            LLAMA,
            replica(stage((0, 2)), stage((2, 6)), count=2, micro_batches=3),
            replica(stage((0, 6)), count=2, micro_batches=2),
            sharding="zero3",
        ),
        ADAM,
    ),
}

# Trained at night alone: each of their parts is in two others, or beside more.
AT_NIGHT = {
    "uniform 2 x 2",
    "two depths, unequal micro-batches",
    "two depths, distributed optimizer",
    "three depths",
    "zero bubble",
    "gpt2, tied, two depths",
    "tp 2",
    "tp 2, sequence parallel, gpt2",
    "cp 4, a window",
    "mixture of experts, two depths",
    "mixture of experts, tp 2",
    "half of the optimizer in host memory",
    "zero2, two depths",
}
TRAINED = {name: plan for name, plan in PLANS.items() if nightly.wanted or name not in AT_NIGHT}
UNIT_BY_UNIT = [name for name in TRAINED if name.startswith("zero") and "merged" not in name]

# One course of training under four plans, of six samples a step each: the checkpoint of one begins the next.
RELAY = {
    "relay 1": plan_of(
        TIED,
        replica(stage((0, 1)), stage((1, 4)), micro_batches=4),
        replica(stage((0, 4)), micro_batches=2),
        sharding="zero1",
        offload=0.5,
    ),
    "relay, sharded": plan_of(
        TIED, replica(stage((0, 4), recompute=UNIFORM), count=3, micro_batches=2), sharding="zero3", offload=0.3
    ),
    "relay 2": plan_of(TIED, replica(stage((0, 4), tp=4), micro_batches=3), micro_batch=2, sequence_parallel=True),
    "relay 3": plan_of(
        TIED, replica(stage((0, 3), tp=2), stage((3, 4)), micro_batches=3), replica(stage((0, 4)), micro_batches=3)
    ),
}
LAP = 2  # steps of each: the second goes by the state that the first has kept
END = 5  # ends a document about every thirtieth token: in half of the samples
DOCUMENTS = {
    "documents, stages, recomputed": plan_of(
        LLAMA, replica(stage((0, 2), recompute=SELECTIVE), stage((2, 6), recompute=UNIFORM), micro_batches=4)
    ),
    "documents, cp 4, a window": plan_of(WINDOW, replica(stage((0, 4), cp=4), micro_batches=3)),
    "documents, cp 2, tp 2": plan_of(
        SMALL, replica(stage((0, 4), cp=2, tp=2), micro_batches=3), sequence_parallel=True
    ),
}
BF16 = plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1", precision="bf16")
FP16 = plan_of(LLAMA, *DEEP_AND_FLAT, sharding="zero1", precision="fp16")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [
        replace(Case(name, plan, recipe), **({"largest_merged": 1} if name in UNIT_BY_UNIT else {}))
        for name, (plan, recipe) in TRAINED.items()
    ]
    folders = ("", *RELAY)
    for before, (name, plan) in zip(folders, RELAY.items(), strict=False):
        cases.append(Case(name, plan, ADAM, steps=LAP, load=before, save=name))
    cases += [Case(name, plan, ADAM, end=END) for name, plan in DOCUMENTS.items()]
    cases += [Case("bf16", BF16, ADAM), Case("fp16", FP16, ADAM)]
    cases.append(Case("fp16, overflow", FP16, ADAM, steps=1, first_scale=2.0**24, save="fp16"))
    cases.append(Case("fp16, resumed", FP16, ADAM, steps=7, load="fp16"))
    return run_cases(cases, processes=8)


@pytest.mark.parametrize("name", TRAINED)
def test_training_equals_that_of_one_process(name: str, outcomes: dict[str, Outcome]) -> None:
    plan, recipe = PLANS[name]
    assert check(plan) == () and unrunnable(plan) == ()
    expected, found = reference_run(plan, recipe, steps=STEPS, seed=7), outcomes[name]
    require_equal(found, expected)
    assert expected.losses[-1] < 0.995 * expected.losses[0]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_training_within_documents_equals_that_of_one_process(name: str, outcomes: dict[str, Outcome]) -> None:
    plan = DOCUMENTS[name]
    expected = reference_run(plan, ADAM, steps=STEPS, seed=7, end=END)
    require_equal(outcomes[name], expected)
    assert expected.losses != pytest.approx(reference_run(plan, ADAM, steps=STEPS, seed=7).losses, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("zero2, four copies", 0),
        ("zero3, recomputed", 2),
        ("zero3, three copies, tied", 3),
        ("zero3, experts over two of four copies", 4),
    ],
)
def test_weights_are_whole_for_a_unit_and_the_next(name: str, most: int, outcomes: dict[str, Outcome]) -> None:
    """Those of the next are on their way. A head needs the embedding tied to it too, and a layer with experts has a
    bucket of theirs."""
    assert outcomes[name].most_gathered == most


def test_a_checkpoint_goes_on_under_another_plan_and_world_size(outcomes: dict[str, Outcome]) -> None:
    expected = reference_run(RELAY["relay 1"], ADAM, steps=LAP * len(RELAY), seed=7)
    losses = [loss for name in RELAY for loss in outcomes[name].losses]
    assert losses == pytest.approx(expected.losses, rel=1e-5)
    require_equal_weights(outcomes["relay 3"], expected)


def test_bf16_with_fp32_master_weights_follows_fp32(outcomes: dict[str, Outcome]) -> None:
    expected = reference_run(BF16, ADAM, steps=STEPS, seed=7)
    assert outcomes["bf16"].losses == pytest.approx(expected.losses, rel=1e-2)


def test_fp16_with_scaled_loss_follows_fp32(outcomes: dict[str, Outcome]) -> None:
    expected, found = reference_run(FP16, ADAM, steps=STEPS, seed=7), outcomes["fp16"]
    assert found.losses == pytest.approx(expected.losses, rel=2e-3)
    assert found.norms == pytest.approx(expected.norms, rel=2e-2)
    assert found.scales[-1] == LossScale(good_steps=STEPS)


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale_everywhere(outcomes: dict[str, Outcome]) -> None:
    found, resumed = outcomes["fp16, overflow"], outcomes["fp16, resumed"]
    assert not isfinite(found.norms[0]) and isfinite(found.losses[0])
    for name, weight in reference_run(FP16, ADAM, steps=0, seed=7).weights.items():
        assert torch.equal(found.weights[name][: len(weight)], weight.half().float()), name
    finite = [isfinite(norm) for norm in resumed.norms]
    assert found.scales[-1] == resumed.scales[0] and any(finite)
    for before, after, good in zip(resumed.scales, resumed.scales[1:], finite, strict=False):
        assert before is not None and after == before.after(finite=good)
    assert resumed.scales[0] == LossScale(value=2.0**23, skipped=1)
