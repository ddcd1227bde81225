"""What a plan for `shardwright train` can say, `train` does, or `check` refuses it by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.cost.samples import llama, mixtral
from tests.nightly import nightly
from tests.runtime.random_plans import drawn
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Job, SpecError, check, load_cluster, make_job
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import parse_pins
from shardwright.spec.adapter import Adapter
from shardwright.spec.options import Options
from shardwright.spec.preference import Preference

SPLIT = plan_of(tiny_model(4, experts=4), replica(stage((0, 4), tp=2, cp=2), micro_batches=2), sequence_parallel=True)
TWO_STAGES = replica(stage((0, 2), cp=2, tp=2), stage((2, 4), tp=2), micro_batches=2)


def with_job(**values: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, job=replace(plan.job, **values))


def with_stage(**values: Any) -> Callable[[Plan], Plan]:
    def changed(plan: Plan) -> Plan:
        (only,) = plan.replicas
        return replace(plan, replicas=(replace(only, stages=(replace(only.stages[0], **values),)),))

    return changed


# Options that `train` does not run, with what asks for them and where `check` says so.
REFUSED: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "Job.optimizer_rank": (with_job(optimizer_rank=64), "job.optimizer_rank"),
    "Overlap.tensor_parallel": (
        lambda plan: replace(plan, overlap=Overlap(tensor_parallel=True)),
        "overlap.tensor_parallel",
    ),
    "Plan.flash_attention": (lambda plan: replace(plan, flash_attention=False), "flash_attention"),
    "Job.adapter": (with_job(adapter=Adapter(frozen="int8")), "job.adapter"),
    "Job.fp8_storage": (with_job(fp8_storage=True), "job.fp8_storage"),
    "Job.fp8_recipe": (with_job(precision="fp8", fp8_recipe="blockwise"), "job.fp8_recipe"),
    "Job.fused_loss": (with_job(fused_loss=True), "job.fused_loss"),
    "Job.preference": (with_job(preference=Preference(loss="dpo")), "job.preference"),
    "Job.images_per_sequence": (with_job(images_per_sequence=1), "job.images_per_sequence"),
    "Job.image_size": (with_job(image_size=(448, 448)), "job.image_size"),
    "Job.sounds_per_sequence": (with_job(sounds_per_sequence=1), "job.sounds_per_sequence"),
    "Job.sound_seconds": (with_job(sound_seconds=10.0), "job.sound_seconds"),
    "Job.freeze": (with_job(freeze=("vision",)), "job.freeze"),
    "Job.encoder_seq_len": (with_job(encoder_seq_len=512), "job.encoder_seq_len"),
    **{
        f"Options.{name}": (with_job(precision="bf16", options=Options(**{name: value})), f"job.options.{name}")
        for name, value in {
            "recompute_modules": ("mlp",),
            "grad_reduce": "bf16",
            "main_grads": "bf16",
            "main_params": "fp16",
            "exp_avg": "bf16",
            "exp_avg_sq": "fp8",
            "loss": "fused",
            "dispatcher": "flex",
            "expert_capacity": 1.0,
            "expert_padding": "capacity",
            "expert_imbalance": 1.5,
            "expert_products": "loop",
            "master_weights": "none",
            "activation_offload": "inputs",
            "weight_offload": "host",
            "gradient_sync": "last",
            "param_gather": "fp8",
            "cuda_graph": "full",
            "exchange_overlap": "batches",
        }.items()
    },
}
# Values of options that it runs otherwise.
PARTLY: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "no update": (with_job(optimizer="none"), "job.optimizer"),
    "an optimizer that others have": (with_job(optimizer="lion"), "job.optimizer"),
    "experts cut otherwise than matrices": (with_stage(expert_tensor_parallel=4), "replicas[0].stages[0].expert_tensor_parallel"),
    "context parallelism in some stages": (
        lambda plan: replace(plan, replicas=(TWO_STAGES,)),
        "replicas[0].stages[1].context_parallel",
    ),
}  # fmt: skip
# What random plans have several values of, and train with (`tests/runtime/test_random_plans.py`).
TRAINED: dict[str, Callable[[Plan], Any]] = {
    "Plan.model": lambda plan: plan.model,
    "Plan.micro_batch": lambda plan: plan.micro_batch,
    "Plan.sequence_parallel": lambda plan: plan.sequence_parallel,
    "Plan.rank_order": lambda plan: plan.rank_order,
    "Job.global_batch": lambda plan: plan.job.global_batch,
    "Job.seq_len": lambda plan: plan.job.seq_len,
    "Job.optimizer": lambda plan: plan.job.optimizer,
    **{
        f"{kind.__name__}.{field.name}": lambda plan, kind=kind, name=field.name: values(plan, kind, name)
        for kind in (Overlap, OptimizerPlan, Schedule, Replica, Stage, Recompute)
        for field in fields(kind)
        if f"{kind.__name__}.{field.name}" not in REFUSED
    },
}
# What makes no other step: names, money, what is predicted; the precision has tests of its own, in which steps differ.
NO_STEP = {
    "Plan.job", "Plan.cluster", "Plan.schedule", "Plan.replicas", "Plan.optimizer", "Plan.overlap", "Plan.label",
    "Plan.prediction", "Job.tokens", "Job.precision", "Job.objective", "Job.framework", "Job.document_tokens",
    "Job.budget_dollars", "Job.deadline_hours", "Job.options",
}  # fmt: skip


def values(plan: Plan, kind: type, name: str) -> Any:
    """Return what a plan has of a field, of the first where it has several."""
    first = plan.replicas[0]
    parts: dict[type, Any] = {
        Overlap: plan.overlap,
        OptimizerPlan: plan.optimizer,
        Schedule: plan.schedule,
        Replica: first,
        Stage: first.stages[0],
        Recompute: first.stages[0].recompute,
    }
    return getattr(parts[kind], name)


def test_every_option_is_trained_refused_or_no_part_of_a_step() -> None:
    every = {
        f"{kind.__name__}.{field.name}"
        for kind in (Plan, Job, Options, Overlap, OptimizerPlan, Schedule, Replica, Stage, Recompute)
        for field in fields(kind)
    }
    groups = (set(TRAINED), set(REFUSED), NO_STEP)
    assert set.union(*groups) == every and sum(map(len, groups)) == len(every)


def test_random_plans_have_every_option_that_is_trained() -> None:
    legal = [plan for plan in map(drawn, range(300)) if not check(plan)]
    for name, of in TRAINED.items():
        assert len({of(plan) for plan in legal}) > 1, name


@pytest.mark.parametrize("name", [*REFUSED, *PARTLY])
def test_what_is_not_run_is_refused_by_name_where_train_is_to_run_it(name: str) -> None:
    asks, path = (REFUSED | PARTLY)[name]
    plan = with_job(framework="train")(SPLIT)
    assert check(plan) == ()
    assert path in [problem.path for problem in check(asks(plan))]


@pytest.mark.parametrize("name", ["Overlap.tensor_parallel", "Plan.flash_attention", "Job.fused_loss"])
def test_another_trainer_may_be_asked_for_it(name: str) -> None:
    assert check(REFUSED[name][0](SPLIT)) == ()


@pytest.mark.parametrize("seed", [*range(10), *nightly(range(10, 60))])
def test_sizes_that_nothing_cuts_rightly_are_refused_before_the_search(seed: int) -> None:
    """Of four bits blocks of 64 columns, of fp8 and of experts rows of 16 bytes: a model that has them gets a plan that
    runs, any other is refused, by the size that is at fault."""
    pick = random.Random(seed)
    what = pick.choice(("nf4", "fp8", "experts"))
    multiple = {"nf4": 64, "fp8": 16, "experts": 8}[what]
    heads, width = 4, multiple * pick.randint(2, 9) + pick.choice((0, 0, multiple // 2))
    hidden = multiple * heads * pick.randint(1, 4) + pick.choice((0, 0, multiple // 2))
    if what == "experts":
        model = mixtral(2, hidden, heads, heads, width, 512, 4, 2)
    else:
        model = llama(2, hidden, heads, heads, width, 512)
    job = make_job(
        global_batch=8, seq_len=256, framework="train", precision="fp8" if what == "fp8" else "bf16",
        adapter="qlora:8" if what == "nf4" else None,
    )  # fmt: skip
    sizes = {hidden, width} | ({hidden // heads * heads} if what != "experts" else set())
    cluster, space = load_cluster("1x2xH100-SXM"), parse_pins(["pp=1", "cp=1"])
    if any(size % multiple for size in sizes):
        with pytest.raises(SpecError, match=f"{what} cannot be run in train: .* no multiple of {multiple}"):
            search(model, cluster, job, space=space, top=1)
    else:
        assert check(search(model, cluster, job, space=space, top=1).best) == ()
