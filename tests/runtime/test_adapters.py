"""Adapters trained under any plan are those that PEFT trains in one process, and go to and from its files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from tests.nightly import nightly
from tests.runtime.adapted import adapter_parts, peft_model, trained_by_peft, write_base
from tests.runtime.equal import ADAM, SGD, require_equal
from tests.runtime.families import first_of_each
from tests.runtime.random_plans import MOST_GPUS, drawn
from tests.runtime.recovery.fleet import Fleet, copies, undisturbed
from tests.runtime.reference import reference_run
from tests.runtime.samples import STEPS, plan_of, replica, stage, tiny_model
from tests.runtime.trained_plans import SEED, end_of, recipe_of, runnable
from tests.runtime.workers import Case, Outcome, run_cases

from shardwright import Model, check, make_job
from shardwright.errors import Problem, SpecError
from shardwright.plans.cuts import misfits
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Schedule
from shardwright.plans.trainable import TOGETHER, untrainable_adapters
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.model.initial import beside, seeded
from shardwright.runtime.model.names import FAMILIES
from shardwright.runtime.model.nf4 import packed, unpacked
from shardwright.runtime.model.parameters import TARGETS, trained_parameters
from shardwright.runtime.state.recipe import Recipe
from shardwright.runtime.storage.weights import from_folder, open_adapters, save_adapters
from shardwright.spec.adapter import SHORT, adapter_parameters, parse_adapter
from shardwright.spec.layer import Layer, interned
from shardwright.spec.mixers import Mamba
from shardwright.spec.read.huggingface import model_of_config

SMALL = replace(tiny_model(3), norm_epsilon=1e-5)
TIED = replace(tiny_model(4, family="qwen3", tied=True), norm_epsilon=1e-5)
BIASED = replace(tiny_model(3, family="qwen2"), norm_epsilon=1e-5)
UNIFORM = Recompute(granularity="full", method="uniform", layers=2)
ALL = replace(UNIFORM, layers=1)
UNCLIPPED = replace(ADAM, clip=0.0)  # gradients in their buffers are clipped ones
MAMBA = Layer(attention=None, mlp=SMALL.layers[0].mlp, moe=None, mixer=Mamba(inner=24, state=5, rank=3, width=4))
UNEQUAL = (replica(stage((0, 1), tp=2), stage((1, 3)), micro_batches=3), replica(stage((0, 3)), micro_batches=2))


def widened(model: Model, times: int) -> Model:
    """Return a model so many times as wide, with as many heads and experts."""

    def wider(layer: Layer) -> Layer:
        attention, mlp, moe = layer.self_attention, layer.mlp, layer.moe
        return replace(
            layer,
            attention=replace(
                attention, head_dim=times * attention.head_dim, value_head_dim=times * attention.value_head_dim
            ),
            mlp=mlp and replace(mlp, width=times * mlp.width),
            moe=moe and replace(moe, shared_width=times * moe.shared_width),
        )

    return replace(model, hidden=times * model.hidden, layers=interned([wider(layer) for layer in model.layers]))


WIDE = widened(SMALL, 8)


def adapted(plan: Plan, text: str = "lora:4", targets: str | None = None) -> Plan:
    return replace(plan, job=replace(plan.job, adapter=parse_adapter(text, targets)))


def layered(plan: Plan, *states: int) -> Plan:
    """A plan as uneven FSDP, of which each replica keeps so many parts."""
    replicas = tuple(
        replace(item, rows=item.micro_batches, state=state) for item, state in zip(plan.replicas, states, strict=True)
    )
    return replace(
        plan,
        replicas=replicas,
        schedule=Schedule(kind="layered", waves=1),
        optimizer=OptimizerPlan(sharding="zero3", parts=sum(states)),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )


PLANS: dict[str, tuple[Plan, Recipe]] = {
    "one rank": (adapted(plan_of(SMALL, replica(stage((0, 3)), micro_batches=2))), ADAM),
    "unequal replicas": (adapted(plan_of(SMALL, *UNEQUAL)), ADAM),
    "unequal replicas, zero1, dora": (adapted(plan_of(SMALL, *UNEQUAL, sharding="zero1"), "dora:3"), ADAM),
    "three depths, sgd, attention alone": (
        adapted(
            plan_of(SMALL, replica(stage((0, 1)), stage((1, 3)), micro_batches=3), *UNEQUAL[1:], sharding="zero1"),
            targets="attention",
        ),
        SGD,
    ),
    "tp 2, sequence parallel, biases, dora": (
        adapted(
            plan_of(BIASED, replica(stage((0, 3), tp=2), count=2, micro_batches=1), sequence_parallel=True), "dora:4"
        ),
        ADAM,
    ),
    "tp 4, fewer key-value heads, tied, dora": (
        adapted(plan_of(TIED, replica(stage((0, 4), tp=4), micro_batches=2)), "dora:4"),
        ADAM,
    ),
    "zero2, recomputed": (
        adapted(plan_of(SMALL, replica(stage((0, 3), recompute=UNIFORM), count=3, micro_batches=1), sharding="zero2")),
        ADAM,
    ),
    "zero3, stages, tied": (
        adapted(plan_of(TIED, replica(stage((0, 1)), stage((1, 4)), count=2, micro_batches=2), sharding="zero3")),
        ADAM,
    ),
    "zero3, tp 2, dora": (
        adapted(
            plan_of(
                SMALL, replica(stage((0, 3), tp=2), count=2, micro_batches=2), sequence_parallel=True, sharding="zero3"
            ),
            "dora:4",
            "q_proj+v_proj+down_proj",
        ),
        ADAM,
    ),
    "uneven FSDP": (
        layered(
            adapted(
                plan_of(SMALL, replica(stage((0, 3)), micro_batches=3), replica(stage((0, 3)), micro_batches=1)),
            ),
            3,
            1,
        ),
        ADAM,
    ),
    "4 bits": (adapted(plan_of(WIDE, replica(stage((0, 3)), micro_batches=2)), "qlora:4"), UNCLIPPED),
    "4 bits, unequal replicas, zero1, dora": (
        adapted(plan_of(WIDE, *UNEQUAL, sharding="zero1"), "qdora:3"),
        replace(SGD, clip=0.0),
    ),
    "4 bits, zero3, tp 2, sequence parallel": (
        adapted(
            plan_of(
                WIDE, replica(stage((0, 3), tp=2), count=2, micro_batches=2), sequence_parallel=True, sharding="zero3"
            ),
            "qlora:4",
        ),
        UNCLIPPED,
    ),
    "4 bits, tp 2, stages": (
        adapted(plan_of(WIDE, replica(stage((0, 1), tp=2), stage((1, 3), tp=2), micro_batches=3)), "qlora:4"),
        UNCLIPPED,
    ),
    "4 bits, uneven FSDP, recomputed": (
        layered(
            adapted(
                plan_of(WIDE, *(replica(stage((0, 3), recompute=ALL), micro_batches=m) for m in (3, 1))), "qlora:4"
            ),
            3,
            1,
        ),
        replace(SGD, clip=0.0),
    ),
    "cp 2": (adapted(plan_of(SMALL, replica(stage((0, 3), cp=2), micro_batches=2))), ADAM),
}
RELAY = {
    "relay 1": adapted(plan_of(SMALL, replica(stage((0, 2), tp=2), stage((2, 3)), micro_batches=4)), "dora:4"),
    "relay 2": adapted(plan_of(SMALL, replica(stage((0, 3)), count=2, micro_batches=2), sharding="zero3"), "dora:4"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    cases = [Case(name, plan, recipe) for name, (plan, recipe) in PLANS.items()]
    for before, (name, plan) in zip(("", *RELAY), RELAY.items(), strict=False):
        cases.append(Case(name, plan, ADAM, steps=3, load=before, save=name))
    return run_cases(cases, processes=4)


def require_close(found: torch.Tensor, expected: torch.Tensor, name: str, rounding: float = 1e-7) -> None:
    assert found.shape == expected.shape, name
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm()) + rounding, name


@pytest.mark.parametrize("name", PLANS)
def test_adapters_are_those_that_peft_trains(name: str, outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    plan, recipe = PLANS[name]
    for library in ("peft", *(["bitsandbytes"] if plan.job.nf4 else [])):
        pytest.importorskip(library, reason=f"{library} is not installed")
    assert check(plan) == () and unrunnable(plan) == ()
    found, expected = outcomes[name], trained_by_peft(plan, recipe, STEPS, 7, tmp_path)
    assert found.losses == pytest.approx(expected.losses, rel=1e-5)
    assert found.norms == pytest.approx(expected.norms, rel=1e-5)
    assert found.held_out == pytest.approx(expected.held_out, rel=1e-5)
    assert all(value.any() for value in expected.adapters.values()), "B begins at zero and has moved"
    largest = max(float(gradient.norm()) for gradient in expected.gradients.values())
    for part, gradient in expected.gradients.items():
        require_close(found.gradients[part], gradient, part, 1e-5 * largest)
        require_close(found.weights[part], expected.adapters[part], part)
    assert found.weights.keys() == found.gradients.keys() == expected.adapters.keys(), "nothing else is trained"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_blocks_of_bytes_stand_for_what_those_of_bitsandbytes_do(dtype: torch.dtype) -> None:
    """Of matrices of any shape and spread, with blocks of zeros, and of those that files have turned."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    generator = torch.Generator().manual_seed(5)
    for rows, columns, spread in ((1, 64, 1.0), (61, 192, 1e-4), (130, 448, 30.0), (64, 128, 1e-6)):
        matrix = (spread * torch.randn(rows, columns, generator=generator)).to(dtype)
        matrix[rows // 2, :64] = 0.0
        codes, state = functional.quantize_4bit(matrix, quant_type="nf4", blocksize=64, compress_statistics=False)
        expected = functional.dequantize_4bit(codes, state)
        turned = matrix.t().contiguous().t()
        assert torch.equal(unpacked(packed(matrix), dtype), expected), (rows, columns)
        assert torch.equal(packed(turned), packed(matrix))


def test_a_checkpoint_of_adapters_begins_another_plan(outcomes: dict[str, Outcome]) -> None:
    plan = RELAY["relay 2"]
    expected = reference_run(plan, ADAM, steps=6, seed=7)
    assert outcomes["relay 1"].losses + outcomes["relay 2"].losses == pytest.approx(expected.losses, rel=1e-5)
    for part, value in expected.weights.items():
        require_close(outcomes["relay 2"].weights[part], value, part)


def test_peft_opens_what_is_saved_with_equal_logits(tmp_path: Path) -> None:
    """What PEFT wrote comes back as it was, and merged into the weights it gives what the adapters beside them do."""
    pytest.importorskip("peft", reason="peft is not installed")
    plan, _ = PLANS["tp 2, sequence parallel, biases, dora"]
    model, adapter = plan.model, plan.job.adapter
    assert adapter is not None
    write_base(tmp_path / "base", model, 7)
    frozen = seeded(model, 7)
    noise = torch.Generator().manual_seed(3)
    values = {
        part.name: (value := beside(frozen, 7)(part)) + 0.1 * torch.randn(value.shape, generator=noise)
        for part in adapter_parts(plan)
    }
    save_adapters(tmp_path / "adapters", model, adapter, values.__getitem__, "base")
    opened = peft_model(tmp_path / "base", tmp_path / "adapters").eval()
    tokens = torch.arange(32)[None] % model.vocab
    with torch.no_grad():
        beside_weights = opened(input_ids=tokens).logits
        merged = opened.merge_and_unload()(input_ids=tokens).logits
    assert float((beside_weights - merged).norm()) <= 1e-5 * float(merged.norm())
    back = from_folder(frozen, open_adapters(tmp_path / "adapters", adapter), model)
    assert all(torch.equal(back(part), values[part.name]) for part in adapter_parts(plan))


@pytest.mark.parametrize("text", ["lora:8", "dora:4"])
def test_adapters_of_another_rank_or_form_are_refused(text: str, tmp_path: Path) -> None:
    plan = PLANS["one rank"][0]
    model, adapter = plan.model, parse_adapter("lora:4")
    values = {part.name: beside(seeded(model, 7), 7)(part) for part in adapter_parts(plan)}
    save_adapters(tmp_path, model, adapter, values.__getitem__, "base")
    with pytest.raises(SpecError, match=r"adapter_config\.json.*in the plan"):
        open_adapters(tmp_path, parse_adapter(text))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("text", ["lora:4", "dora:3"])
def test_a_model_has_as_many_weights_of_adapters_as_a_plan_is_priced_with(family: str, text: str) -> None:
    model = tiny_model(3, family=family, experts=4 * (family == "qwen2"), shared=True)
    adapter = parse_adapter(text)
    parts = [p for u in range(len(model.layers) + 2) for p in trained_parameters(model, adapter, u, model.vocab)]
    assert sum(torch.Size(part.shape).numel() for part in parts) == adapter_parameters(model, adapter)


def test_what_is_not_trained_is_refused_by_name() -> None:
    plan = plan_of(SMALL, replica(stage((0, 3)), micro_batches=1))
    mixture = plan_of(tiny_model(3, experts=4), replica(stage((0, 3)), micro_batches=1))
    fused = plan_of(tiny_model(3, family="gpt2"), replica(stage((0, 3)), micro_batches=1))
    said = {
        "32 of the hidden size, no multiple of 64": adapted(plan, "qlora:4"),
        "beside layers without attention": adapted(
            replace(plan, model=replace(SMALL, layers=(MAMBA,) * 3)), "qlora:4", "down_proj"
        ),
        "frozen weights in 8 bits": adapted(plan, "lora8bit:4"),
        "routed experts": adapted(mixture, targets="all"),
        "q_proj, k_proj, v_proj of gpt2 are one matrix": adapted(fused),
        "no matrix of the model": adapted(fused, targets="gate_proj"),
    }
    for words, case in said.items():
        assert any(words in problem.message for problem in unrunnable(case)), words
        own = replace(case, job=replace(case.job, framework="train"))
        assert any(words in problem.message for problem in check(own)), words
    assert not unrunnable(adapted(fused, targets="o_proj+up_proj+down_proj"))
    assert not list(untrainable_adapters(SMALL, plan.job))


def test_matrices_that_are_together_in_files_are_those_of_the_names() -> None:
    for family, names in FAMILIES.items():
        forms = {TARGETS[block] for block, form in names.forms.items() if block in TARGETS and form not in ALONE}
        assert forms == set(TOGETHER.get(family, ())), family


ALONE = ("alone", "turned")
TEXTS = ("lora:4", "dora:4", "lora:1", "dora:3", "qlora:4", "qdora:3")
WHERE = (None, None, "attention", "q_proj+v_proj", "down_proj+o_proj", "gate_proj+up_proj", "k_proj")
NIGHT, TOGETHER_RUN = 600, 60
# Uneven FSDP (72); context parallelism beside experts over unequal ranks (317), the same with weights in four bits and
# virtual stages (525).
SAMPLE = (72, 317, 525)


def drawn_with_adapters(seed: int) -> Plan | None:
    """Return a random plan of adapters, None where it is not legal."""
    plan, random = drawn(seed), Random(seed)
    plan = adapted(plan, random.choice(TEXTS), random.choice(WHERE))
    if plan.job.nf4:
        plan = replace(plan, model=widened(plan.model, 16))
    known = replace(plan.model, family="llama")
    fits = runnable(drawn(seed)) and not plan.schedule.weights_apart and not misfits(plan, "train")
    return plan if fits and not list(untrainable_adapters(known, plan.job)) else None


@pytest.mark.parametrize("seeds", [SAMPLE, *nightly(range(i, i + TOGETHER_RUN) for i in range(0, NIGHT, TOGETHER_RUN))])
def test_adapters_under_random_plans_are_those_of_one_process(seeds: Sequence[int]) -> None:
    """The oracle multiplies by merged matrices, and knows nothing of products with A and B. Matrices that are together
    in a family's files are trained too: it is PEFT's files that have no place for their adapters."""
    plans = {seed: plan for seed in seeds if (plan := drawn_with_adapters(seed)) is not None}
    assert seeds is not SAMPLE or list(plans) == list(SAMPLE)
    cases = [
        Case(
            str(seed), plan, recipe_of(plan), steps=3, seed=SEED, end=end_of(seed),
            **({"largest_merged": 1} if seed % 2 else {}),
        )
        for seed, plan in plans.items()
    ]  # fmt: skip
    found = run_cases(cases, MOST_GPUS)
    for seed, plan in plans.items():
        expected = reference_run(plan, recipe_of(plan), steps=3, seed=SEED, end=end_of(seed))
        require_equal(found[str(seed)], expected, rounded=plan.job.optimizer == "muon")


@pytest.mark.nightly
def test_adapters_outlive_a_machine(tmp_path: Path) -> None:
    """Nobody sends frozen weights: who joins has them from where the run has."""
    plan = adapted(copies(), "dora:4")
    with Fleet(tmp_path / "fleet", plan, 24, every=4) as fleet:
        fleet.until(lambda: fleet.step() >= 8, "steps")
        fleet.lose(1)
        fleet.finish()
        assert fleet.recoveries()[-1]["ranks"] == 2
        losses = fleet.losses()
    assert losses == pytest.approx(list(undisturbed(tmp_path / "alone", 24, plan).values()), rel=1e-5)


def refusals(model: Model, targets: str) -> list[Problem]:
    job = replace(make_job(global_batch=4, seq_len=16), adapter=parse_adapter("lora:4", targets))
    return list(untrainable_adapters(model, job))


@pytest.mark.parametrize("text", ["all", "linear", "q_proj", "gate_proj+up_proj"])
def test_the_targets_that_a_refusal_names_are_run(text: str) -> None:
    refused = 0
    for name, config in first_of_each().items():
        model = model_of_config(config, name)
        for problem in refusals(model, text):
            if "no matrix of the model" in problem.message:
                continue
            targets = re.search(r"adapter_targets=([\w+]+)", problem.hint)
            some = not all(refusals(model, target) for target in SHORT["all"])
            assert some if targets else not some and "leave `adapter` out" in problem.hint, (name, problem)
            assert targets is None or not refusals(model, targets[1]), (name, problem)
            refused += 1
    assert refused > 5
